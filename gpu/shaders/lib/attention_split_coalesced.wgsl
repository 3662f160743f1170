// One split of attention.wgsl for GPUs: neighbouring lanes load neighbouring bytes of a key. CHUNKS
// lanes share a key, a chunk of its dimensions each, and each of VALUE_GROUPS such groups of lanes
// takes consecutive keys of the split.
//
//   score   the chains of its chunks, added in order
//   values  the chains of the groups of lanes, added in order; sums of weights likewise
//
// A GPU waits much longer for memory than it computes here: a lane asks for LOADED_KEYS keys and
// their values before it uses the first. All scores of the split are known before the first weight,
// so nothing is rescaled.
// prelude: const LOADED_KEYS (consecutive keys, a multiple of 4 in one KV block), SCORED_QUERIES,
// ADDED_QUERIES (queries whose partial scores, and values, are in workgroup memory at a time;
// QUERIES is a multiple of both)
const QUADS = LOADED_KEYS / 4u; // of a lane's keys
const SCORED_QUADS = SCORED_QUERIES * VALUE_GROUPS * QUADS; // in workgroup memory at a time
const BANKS = min(8u, VALUE_GROUPS * QUADS);
const ADDED_ROUNDS = QUERIES / ADDED_QUERIES;
const SHARED_VEC4S = max(SCORED_QUERIES * QUADS, ADDED_QUERIES * CACHED_VEC4S); // of a lane
alias KeyPlaces = array<u32, LOADED_KEYS>; // offsets in the pools
alias KeyLoads = array<KeyLoad, LOADED_KEYS>;
alias ValueLoads = array<ValueLoad, LOADED_KEYS>;

// Partial scores, [chunk][query][quad of keys]; then values, [query][vec4 of a chunk][lane].
var<workgroup> partial: array<vec4f, LANES * SHARED_VEC4S>;
// [query][quad of keys]: scores, then weights 2^(score − maximum)
var<workgroup> weights: array<vec4f, QUERIES * SPLIT / 4u>;
var<workgroup> maxima: array<f32, QUERIES * SPLIT / 4u>; // of a quad of keys
var<workgroup> group_sums: array<f32, 2u * QUERIES * VALUE_GROUPS>;
var<workgroup> states: array<State, QUERIES>;

struct SplitKeys { // positions of the keys of a split
  begin: u32,
  seen: u32, // the first that a row sees: those before have weight 0 for all rows
  end: u32,
}

// Consecutive keys of a group of lanes.
fn group_keys() -> u32 { return SPLIT / VALUE_GROUPS; }

fn attend(run: SequenceRows, split: u32, lane: u32) {
  var keys = SplitKeys();
  keys.begin = split * SPLIT;
  keys.end = min(run.last + 1u, keys.begin + SPLIT);
  keys.seen = max(keys.begin, run.least);
  var values = ValueLoads();
  score_split(run, keys, lane, &values);
  weigh_split(lane);
  add_values(run, split, keys, lane, &values);
  for (var i = lane; i < QUERIES; i += LANES) {
    if (has_keys(run, i, split)) { store_state(run, split, i); }
  }
}

fn state_of(i: u32) -> State { return states[i]; }

// Places of this lane's LOADED_KEYS keys from number `some` of its group on. Those that no row sees
// have weight 0, but memory there may hold NaN: another key takes their place.
fn key_places(run: SequenceRows, keys: SplitKeys, some: u32, lane: u32) -> KeyPlaces {
  let last = keys.end - 1u;
  let seen = min(keys.seen, last);
  let own = keys.begin + lane / CHUNKS * group_keys() + some;
  let first = clamp(own, seen / LOADED_KEYS * LOADED_KEYS, last / LOADED_KEYS * LOADED_KEYS);
  let at = key_at(run, first) + lane % CHUNKS;
  var places = KeyPlaces();
  for (var j = 0u; j < LOADED_KEYS; j++) { // unroll
    places[j] = at + (clamp(first + j, seen, last) - first) * CHUNKS;
  }
  return places;
}

// Scores all keys of the split, and loads the first values.
fn score_split(
  run: SequenceRows, keys: SplitKeys, lane: u32, values: ptr<function, ValueLoads>,
) {
  for (var some = 0u; some < group_keys(); some += LOADED_KEYS) {
    let at = key_places(run, keys, some, lane);
    var loads = KeyLoads();
    if (keys.seen < keys.end) { // else every key of the split is before the rows' windows
      for (var j = 0u; j < LOADED_KEYS; j++) { loads[j] = load_key(at[j]); } // unroll
      if (some == 0u) {
        for (var j = 0u; j < LOADED_KEYS; j++) { (*values)[j] = load_value(at[j]); } // unroll
      }
    }
    for (var first = 0u; first < QUERIES; first += SCORED_QUERIES) {
      share_scores(run, first, at, loads, lane);
      workgroupBarrier();
      add_scores(run, keys.begin, first, some, lane);
      workgroupBarrier();
    }
  }
}

// Place in `partial` of the score of chunk `c` number `n`. Neighbouring lanes store in different
// banks.
fn score_place(c: u32, n: u32) -> u32 { return c * SCORED_QUADS + (n ^ (c % BANKS)); }

// Leaves the products of this lane's chunk with SCORED_QUERIES queries from `first` on.
fn share_scores(run: SequenceRows, first: u32, at: KeyPlaces, loads: KeyLoads, lane: u32) {
  let chunk = lane % CHUNKS;
  var queries = array<Numbers, SCORED_QUERIES>();
  for (var i = 0u; i < SCORED_QUERIES; i++) { // unroll
    let query = query_at(run, first + i) + chunk * CACHED_VEC4S;
    for (var v = 0u; v < CACHED_VEC4S; v++) { queries[i][v] = floats_of(q[query + v]); } // unroll
  }
  for (var quad = 0u; quad < QUADS; quad++) { // unroll
    var k = array<Numbers, 4>();
    for (var j = 0u; j < 4u; j++) { // unroll
      k[j] = key_of(loads[4u * quad + j], at[4u * quad + j]);
    }
    for (var i = 0u; i < SCORED_QUERIES; i++) { // unroll
      var sum = vec4f();
      for (var v = 0u; v < CACHED_VEC4S; v++) { // unroll
        sum = vec4f(dot_add(queries[i][v], k[0][v], sum.x), dot_add(queries[i][v], k[1][v], sum.y),
                    dot_add(queries[i][v], k[2][v], sum.z), dot_add(queries[i][v], k[3][v], sum.w));
      }
      partial[score_place(chunk, (i * VALUE_GROUPS + lane / CHUNKS) * QUADS + quad)] = sum;
    }
  }
}

// Adds the chunks of the scores that were shared, and masks them.
fn add_scores(run: SequenceRows, begin: u32, first: u32, some: u32, lane: u32) {
  for (var n = lane; n < SCORED_QUADS; n += LANES) {
    let i = first + n / (VALUE_GROUPS * QUADS);
    let quad = (n / QUADS % VALUE_GROUPS * group_keys() + some) / 4u + n % QUADS; // of the split
    var sum = vec4f();
    for (var c = 0u; c < CHUNKS; c++) { sum += partial[score_place(c, n)]; }
    let keys = vec4u(begin + 4u * quad) + vec4u(0u, 1u, 2u, 3u);
    let biased = scores_of(sum, key_biases(run, i, keys));
    let score = select(vec4f(LOWEST), biased, are_seen(run, i, keys));
    weights[i * (SPLIT / 4u) + quad] = score;
    maxima[i * (SPLIT / 4u) + quad] = max(max(score.x, score.y), max(score.z, score.w));
  }
}

// Which of four keys query i sees.
fn are_seen(run: SequenceRows, i: u32, keys: vec4u) -> vec4<bool> {
  if (i / HEADS >= run.n) { return vec4<bool>(); }
  let row = row_of(run, i);
  let in_range = (keys <= vec4u(last_seen(row))) & (keys >= vec4u(first_seen(row)));
  return in_range & are_unmasked(run, i, keys);
}

// Turns scores into weights, and leaves the state of every query.
fn weigh_split(lane: u32) {
  for (var n = lane; n < QUERIES * VALUE_GROUPS; n += LANES) {
    let i = n / VALUE_GROUPS;
    var top = LOWEST;
    for (var quad = 0u; quad < SPLIT / 4u; quad++) {
      top = max(top, maxima[i * (SPLIT / 4u) + quad]);
    }
    var sum = 0.0;
    var weighted = 0.0;
    // Counted from zero: of n * 16 to (n + 1) * 16, 16 rounds, NVIDIA's compiler made 33.
    let at = n * (group_keys() / 4u);
    for (var quad = 0u; quad < group_keys() / 4u; quad++) {
      let score = weights[at + quad];
      let below = score - top;
      // A query may see no key of the split; then all differences are 0 and weights would be 1.
      let weight = select(exp2(below), vec4f(), score == vec4f(LOWEST));
      weights[at + quad] = weight;
      sum = sum + weight.x + weight.y + weight.z + weight.w;
      if (CAPTURE) {
        weighted = fma(weight.y, below.y, fma(weight.x, below.x, weighted));
        weighted = fma(weight.w, below.w, fma(weight.z, below.z, weighted));
      }
    }
    group_sums[n] = sum;
    if (CAPTURE) { group_sums[QUERIES * VALUE_GROUPS + n] = weighted; }
    if (n % VALUE_GROUPS == 0u) { states[i] = State(top, 0.0, 0.0); }
  }
  workgroupBarrier();
  for (var i = lane; i < QUERIES; i += LANES) {
    for (var g = 0u; g < VALUE_GROUPS; g++) {
      states[i].sum += group_sums[i * VALUE_GROUPS + g];
      if (CAPTURE) { states[i].weighted += group_sums[(QUERIES + i) * VALUE_GROUPS + g]; }
    }
  } // read by other lanes after a barrier of add_values
}

// Adds the weighted values of the split and stores them.
fn add_values(
  run: SequenceRows, split: u32, keys: SplitKeys, lane: u32, values: ptr<function, ValueLoads>,
) {
  var sums = array<array<Numbers, ADDED_QUERIES>, ADDED_ROUNDS>();
  for (var some = 0u; some < group_keys(); some += LOADED_KEYS) {
    let at = key_places(run, keys, some, lane);
    if (some > 0u && keys.seen < keys.end) {
      for (var j = 0u; j < LOADED_KEYS; j++) { (*values)[j] = load_value(at[j]); } // unroll
    }
    for (var quad = 0u; quad < QUADS; quad++) { // unroll
      let weights_at = (lane / CHUNKS * group_keys() + some) / 4u + quad;
      var x = array<Numbers, 4>();
      for (var j = 0u; j < 4u; j++) { // unroll
        x[j] = value_of((*values)[4u * quad + j], at[4u * quad + j]);
      }
      for (var round = 0u; round < ADDED_ROUNDS; round++) { // unroll
        for (var i = 0u; i < ADDED_QUERIES; i++) { // unroll
          let w = weights[(round * ADDED_QUERIES + i) * (SPLIT / 4u) + weights_at];
          for (var v = 0u; v < CACHED_VEC4S; v++) { // unroll
            let sum = fma(vec4f(w.y), x[1][v], fma(vec4f(w.x), x[0][v], sums[round][i][v]));
            sums[round][i][v] = fma(vec4f(w.w), x[3][v], fma(vec4f(w.z), x[2][v], sum));
          }
        }
      }
    }
  }
  for (var round = 0u; round < ADDED_ROUNDS; round++) { // unroll
    for (var i = 0u; i < ADDED_QUERIES; i++) { // unroll
      for (var v = 0u; v < CACHED_VEC4S; v++) { // unroll
        partial[(i * CACHED_VEC4S + v) * LANES + lane] = sums[round][i][v];
      }
    }
    workgroupBarrier();
    add_groups(run, split, round * ADDED_QUERIES, lane);
    workgroupBarrier();
  }
}

// Adds the values that groups of lanes shared, of ADDED_QUERIES queries from `first` on.
fn add_groups(run: SequenceRows, split: u32, first: u32, lane: u32) {
  for (var n = lane; n < ADDED_QUERIES * HEAD_VEC4S; n += LANES) {
    let i = first + n / HEAD_VEC4S;
    let chunk = n % CHUNKS;
    let row = n / CHUNKS; // of `partial`
    var total = vec4f();
    for (var g = 0u; g < VALUE_GROUPS; g++) { total += partial[row * LANES + g * CHUNKS + chunk]; }
    if (has_keys(run, i, split)) {
      store_values(run, split, i, chunk * CACHED_VEC4S + row % CACHED_VEC4S, total);
    }
  }
}
