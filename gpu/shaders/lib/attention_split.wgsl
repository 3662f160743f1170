// One split of attention.wgsl for software devices, whose lanes should use every load often: a lane
// scores whole keys. Walks the split in tiles of KV_TILE keys (lib/attention_kv_tile.wgsl); SPLIT
// is a multiple of that.
// use: attention_kv_tile
const QUERY_QUADS = (QUERIES + 3u) / 4u;
const KV_TILE = 4u * LANES; // keys
alias QueryOffsets = array<u32, QUERY_QUADS * QUAD_OFFSETS>; // offsets of queries in q

struct SeenKeys { // of each query: positions of the first key it sees, and of that after the last
  first: array<array<u32, 4>, QUERY_QUADS>,
  end: array<array<u32, 4>, QUERY_QUADS>,
}

// [query][quad of keys]: 2^(score − maximum), and their terms of State.weighted
var<workgroup> probs: array<Load16, 4u * QUERY_QUADS * LANES>;
var<workgroup> terms: array<f32, 4u * QUERY_QUADS * LANES>;
var<workgroup> lane_values: array<f32, 4u * QUERY_QUADS * LANES>; // [query][lane]: maxima, sums
var<workgroup> maxima: array<f32, 4u * QUERY_QUADS>;

// Attention over one split of the context of consecutive rows. Tiles before every window are
// skipped, which changes no bit: keys that a query does not see have weight 0.
fn attend(run: SequenceRows, split: u32, lane: u32) {
  var at = QueryOffsets();
  for (var i = 0u; i < QUERY_QUADS * QUAD_OFFSETS; i++) {
    at[i] = query_at(run, query_of(i, lane));
  }
  var seen = SeenKeys();
  var sums = Sums();
  for (var f = 0u; f < QUERY_QUADS; f++) {
    for (var j = 0u; j < QUAD_SIZE; j++) {
      let i = f * 4u + j;
      seen.first[f][j] = first_seen(row_of(run, i));
      seen.end[f][j] = select(0u, last_seen(row_of(run, i)) + 1u, i / HEADS < run.n);
      sums.maxima[f][j] = LOWEST;
      sums.sums[f][j] = 0.0;
      sums.weighted[f][j] = 0.0;
      for (var v = 0u; v < CACHED_VEC4S; v++) { sums.values[f][j][v] = vec4f(); }
    }
  }
  let end = min(run.last + 1u, (split + 1u) * SPLIT);
  let begin = max(split * SPLIT, run.least / KV_TILE * KV_TILE);
  for (var first = begin; first < end; first += KV_TILE) {
    score_kv_tile(run, first, lane, &at, &seen, &sums);
    add_kv_tile(run, first, lane, &sums);
  }
  workgroupBarrier();
  if (VALUE_GROUPS == 1u && !PARTIAL && run.last < SPLIT) {
    store_single_split(run, lane, &seen, &sums);
  } else {
    store_split(run, split, lane, &sums);
  }
}

// Stores the result of a context of one split; each lane holds all sums of its chunk.
fn store_single_split(
  run: SequenceRows, lane: u32, seen: ptr<function, SeenKeys>, sums: ptr<function, Sums>,
) {
  for (var f = 0u; f < QUERY_QUADS; f++) {
    for (var j = 0u; j < QUAD_SIZE; j++) {
      let i = f * 4u + j;
      let row = run.first + i / HEADS;
      let head = run.head + i % HEADS;
      let is_query = (*seen).end[f][j] > 0u && i % HEADS < run.n_heads;
      if (is_query && lane < CHUNKS) {
        let at = row * (Q_STRIDE / 4u) + head * HEAD_VEC4S + lane * CACHED_VEC4S;
        for (var v = 0u; v < CACHED_VEC4S; v++) {
          out[at + v] = load16_of((*sums).values[f][j][v] / (*sums).sums[f][j]);
        }
      }
      if (CAPTURE && is_query && lane == 0u) {
        let state = State((*sums).maxima[f][j], (*sums).sums[f][j], (*sums).weighted[f][j]);
        heads_out[row * N_HEADS + head] = entropy_bits(state);
      }
    }
  }
}

// Adds the value groups of a split, then merges it with the previous splits or stores it (PARTIAL).
fn store_split(run: SequenceRows, split: u32, lane: u32, sums: ptr<function, Sums>) {
  for (var f = 0u; f < QUERY_QUADS; f++) {
    for (var j = 0u; j < QUAD_SIZE; j++) {
      let i = f * 4u + j;
      if (lane == 0u) { maxima[i] = (*sums).maxima[f][j]; }
      lane_values[i * LANES + lane] = (*sums).sums[f][j];
      if (CAPTURE) { terms[i * LANES + lane] = (*sums).weighted[f][j]; }
    }
  }
  for (var v = 0u; v < CACHED_VEC4S; v++) {
    for (var f = 0u; f < QUERY_QUADS; f++) {
      for (var j = 0u; j < QUAD_SIZE; j++) {
        probs[(f * 4u + j) * LANES + lane] = load16_of(value_vec4((*sums).values[f][j], v));
      }
    }
    workgroupBarrier();
    for (var n = lane; n < QUERIES * CHUNKS; n += LANES) {
      let i = n / CHUNKS;
      let chunk = n % CHUNKS;
      if (has_keys(run, i, split)) {
        var total = vec4f();
        for (var part = 0u; part < VALUE_GROUPS; part++) {
          total += floats_of(probs[i * LANES + part * CHUNKS + chunk]);
        }
        store_values(run, split, i, chunk * CACHED_VEC4S + v, total);
      }
    }
    workgroupBarrier();
  }
  for (var i = lane; i < QUERIES; i += LANES) {
    if (has_keys(run, i, split)) { store_state(run, split, i); }
  }
  workgroupBarrier();
}

// Uses constant indices only: a variable index would keep all sums in memory for every tile.
fn value_vec4(numbers: Numbers, v: u32) -> vec4f {
  if (v == 0u) { return numbers[0]; }
  return numbers[CACHED_VEC4S - 1u];
}

fn state_of(i: u32) -> State {
  var state = State(maxima[i], 0.0, 0.0);
  for (var part = 0u; part < VALUE_GROUPS; part++) {
    state.sum += lane_values[i * LANES + part * CHUNKS];
    if (CAPTURE) { state.weighted += terms[i * LANES + part * CHUNKS]; }
  }
  return state;
}
