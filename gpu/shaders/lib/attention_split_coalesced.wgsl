// One split of attention.wgsl for GPUs: neighbouring lanes load neighbouring bytes of a key. CHUNKS
// lanes share a key, a chunk of its dimensions each, and VALUE_GROUPS of these groups take keys.
//
//   score   the chains of its chunks, added in order
//   values  the chains of SPLIT / VALUE_GROUPS consecutive keys, added in order; sums of weights
//           likewise
//
// All scores of the split are known before the first weight, so nothing is rescaled.
var<workgroup> scores: array<f32, QUERIES * SPLIT>; // then weights 2^(score − maximum)
// [query][lane], or [number of a chunk][lane] of one query
var<workgroup> partial: array<f32, LANES * max(QUERIES, 4u * CACHED_VEC4S)>;
var<workgroup> group_sums: array<f32, 2u * QUERIES * VALUE_GROUPS>;
var<workgroup> states: array<State, QUERIES>;

// Consecutive keys of a group of lanes.
fn group_keys() -> u32 { return SPLIT / VALUE_GROUPS; }

fn attend(run: SequenceRows, split: u32, lane: u32) {
  let begin = split * SPLIT;
  let end = min(run.last + 1u, begin + SPLIT);
  let seen = max(begin, first_seen(run.least)); // keys before it have weight 0 for all rows
  score_split(run, begin, seen, end, lane);
  weigh_split(run, begin, lane);
  add_values(run, split, seen, end, lane);
  for (var i = lane; i < QUERIES; i += LANES) {
    if (has_keys(run, i, split)) { store_state(run, split, i); }
  }
  workgroupBarrier();
}

fn state_of(i: u32) -> State { return states[i]; }

fn score_split(run: SequenceRows, begin: u32, seen: u32, end: u32, lane: u32) {
  let chunk = lane % CHUNKS;
  var queries = array<Numbers, QUERIES>();
  for (var i = 0u; i < QUERIES; i++) {
    let at = query_at(run, i) + chunk * CACHED_VEC4S;
    for (var v = 0u; v < CACHED_VEC4S; v++) { queries[i][v] = floats_of(q[at + v]); }
  }
  for (var done = 0u; done < SPLIT; done += VALUE_GROUPS) {
    let first = begin + done;
    let key = first + lane / CHUNKS;
    if (key >= seen && key < end) {
      let k = key_numbers(key_at(run, key) + chunk);
      for (var i = 0u; i < QUERIES; i++) {
        var sum = 0.0;
        for (var v = 0u; v < CACHED_VEC4S; v++) { sum = dot_add(queries[i][v], k[v], sum); }
        partial[i * LANES + lane] = sum;
      }
    }
    workgroupBarrier();
    for (var n = lane; n < QUERIES * VALUE_GROUPS; n += LANES) {
      let i = n / VALUE_GROUPS;
      let place = first + n % VALUE_GROUPS;
      var score = LOWEST;
      if (place < end && is_seen(run, i, place)) {
        var sum = 0.0;
        let at = i * LANES + n % VALUE_GROUPS * CHUNKS;
        for (var c = 0u; c < CHUNKS; c++) { sum += partial[at + c]; }
        score = soft_cap(vec4f(sum * SCALE)).x;
      }
      scores[i * SPLIT + place - begin] = score;
    }
    workgroupBarrier();
  }
}

// Whether query i sees the key at `position`.
fn is_seen(run: SequenceRows, i: u32, position: u32) -> bool {
  let row = i / HEADS;
  if (row >= run.n) { return false; }
  let own = step.rows[run.first + row].position;
  return position <= own && position >= first_seen(own);
}

// Turns scores into weights, and leaves the state of every query.
fn weigh_split(run: SequenceRows, begin: u32, lane: u32) {
  for (var n = lane; n < QUERIES * VALUE_GROUPS; n += LANES) {
    let at = n * group_keys(); // query n / VALUE_GROUPS, group n % VALUE_GROUPS
    var top = LOWEST;
    for (var k = 0u; k < group_keys(); k++) { top = max(top, scores[at + k]); }
    group_sums[n] = top;
  }
  workgroupBarrier();
  for (var i = lane; i < QUERIES; i += LANES) {
    var top = LOWEST;
    for (var g = 0u; g < VALUE_GROUPS; g++) { top = max(top, group_sums[i * VALUE_GROUPS + g]); }
    states[i] = State(top, 0.0, 0.0);
  }
  workgroupBarrier();
  for (var n = lane; n < QUERIES * VALUE_GROUPS; n += LANES) {
    let i = n / VALUE_GROUPS;
    let top = states[i].maximum;
    var sum = 0.0;
    var weighted = 0.0;
    // Counted from zero: of n * 16 to (n + 1) * 16, 16 rounds, NVIDIA's compiler made 33.
    let at = n * group_keys();
    for (var k = 0u; k < group_keys(); k++) {
      let below = scores[at + k] - top;
      // A query may see no key of the split; then all differences are 0 and weights would be 1.
      let weight = select(exp2(below), 0.0, scores[at + k] == LOWEST);
      scores[at + k] = weight;
      sum += weight;
      if (CAPTURE) { weighted = fma(weight, below, weighted); }
    }
    group_sums[n] = sum;
    if (CAPTURE) { group_sums[QUERIES * VALUE_GROUPS + n] = weighted; }
  }
  workgroupBarrier();
  for (var i = lane; i < QUERIES; i += LANES) {
    for (var g = 0u; g < VALUE_GROUPS; g++) {
      states[i].sum += group_sums[i * VALUE_GROUPS + g];
      if (CAPTURE) { states[i].weighted += group_sums[(QUERIES + i) * VALUE_GROUPS + g]; }
    }
  } // read by other lanes after the barriers of add_values
}

// Adds the weighted values of the split and stores them.
fn add_values(run: SequenceRows, split: u32, seen: u32, end: u32, lane: u32) {
  let chunk = lane % CHUNKS;
  let first = lane / CHUNKS * group_keys(); // in the split
  var values = array<Numbers, QUERIES>();
  for (var own = 0u; own < group_keys(); own++) {
    let k = first + own;
    let key = split * SPLIT + k;
    if (key < seen) { continue; }
    if (key >= end) { break; } // memory there may hold NaN
    let x = value_numbers(key_at(run, key) + chunk);
    for (var i = 0u; i < QUERIES; i++) {
      let weight = vec4f(scores[i * SPLIT + k]);
      for (var v = 0u; v < CACHED_VEC4S; v++) { values[i][v] = fma(weight, x[v], values[i][v]); }
    }
  }
  for (var i = 0u; i < QUERIES; i++) {
    for (var v = 0u; v < CACHED_VEC4S; v++) {
      for (var e = 0u; e < 4u; e++) { partial[(4u * v + e) * LANES + lane] = values[i][v][e]; }
    }
    workgroupBarrier();
    for (var d = lane; d < HEAD_VEC4S; d += LANES) {
      var total = vec4f();
      for (var g = 0u; g < VALUE_GROUPS; g++) {
        let at = d % CACHED_VEC4S * 4u * LANES + g * CHUNKS + d / CACHED_VEC4S;
        total += vec4f(partial[at], partial[at + LANES],
                       partial[at + 2u * LANES], partial[at + 3u * LANES]);
      }
      if (has_keys(run, i, split)) { store_values(run, split, i, d, total); }
    }
    workgroupBarrier();
  }
}
