// out = softmax(cap(q · kᵀ · scale)) · v over the positions up to the row's own, or the last WINDOW
// of them. Groups of heads share keys and values (Ainslie et al. 2023); scores stay on chip (Dao et
// al. 2022). cap: see lib/soft_cap.wgsl.
//
// A workgroup serves QUERIES queries, HEADS heads of a group in ROWS consecutive rows, and reads
// each key and value once for all of them. It walks the context in tiles of KV_TILE keys
// (lib/attention_kv_tile.wgsl). A context is cut into splits of SPLIT keys. PARTIAL: a workgroup
// takes one split and leaves its state and values for attention_merge. Otherwise it takes all
// splits in turn and merges them with the same operations in the same order. The order of every sum
// depends on LANES, VALUE_GROUPS and SPLIT alone, not on the other rows of the step.
//
// q             [n_rows][Q_STRIDE / 4] vec4
// k_pool, v_pool, block_tables  see lib/paging.wgsl
// out           [n_rows][Q_STRIDE / 4] vec4; PARTIAL: [n_splits][FEW_ROWS][Q_STRIDE / 4]
// heads_out     [n_rows][N_HEADS] entropy in bits (not written without CAPTURE);
//               PARTIAL: [n_splits][FEW_ROWS][N_HEADS] State
// use: step
// use: words
// use: kv
// use: cached_keys
// use: cached_values
// use: paging
// use: fma4
// use: softmax_state
// use: soft_cap
// use: attention_kv_tile
// prelude: const HEAD_VEC4S (head_dim / 4), GROUP (heads that share keys), HEADS, ROWS, LANES,
// VALUE_GROUPS (groups of lanes, each adding the values of every VALUE_GROUPS-th quad of keys),
// FEW_ROWS (most rows of a step whose attention is split)
override N_HEADS: u32;
override Q_STRIDE: u32;
override SCALE: f32; // of q · k, times log2(e)
override WINDOW: u32 = 0u; // most keys a row sees, 0: all
override SPLIT: u32; // keys, a multiple of KV_TILE
override PARTIAL: bool;
override CAPTURE: bool = false;

const QUERIES = ROWS * HEADS;
const HEAD_TILES = (GROUP + HEADS - 1u) / HEADS; // workgroups that share a group's heads
const QUERY_QUADS = (QUERIES + 3u) / 4u;
const CHUNKS = HEAD_VEC4S / CACHED_VEC4S; // loads of a key
const KV_TILE = 4u * LANES; // keys
alias QueryOffsets = array<u32, QUERY_QUADS * QUAD_OFFSETS>; // offsets of queries in q
alias KeyCounts = array<array<u32, 4>, QUERY_QUADS>;  // keys each query sees

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> q: array<Load16>;
@group(0) @binding(2) var<storage, read> k_pool: array<Cached>;
@group(0) @binding(3) var<storage, read> v_pool: array<Cached>;
@group(0) @binding(4) var<storage, read> block_tables: array<u32>;
@group(0) @binding(5) var<storage, read_write> out: array<Load16>;
@group(0) @binding(6) var<storage, read_write> heads_out: array<f32>;

// [query][quad of keys]: 2^(score − maximum), and their terms of State.weighted
var<workgroup> probs: array<Load16, 4u * QUERY_QUADS * LANES>;
var<workgroup> terms: array<f32, 4u * QUERY_QUADS * LANES>;
var<workgroup> lane_values: array<f32, 4u * QUERY_QUADS * LANES>; // [query][lane]: maxima, sums
var<workgroup> maxima: array<f32, 4u * QUERY_QUADS>;
var<workgroup> finished: array<State, QUERIES>; // merged previous splits

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let part = group.x % HEAD_TILES;
  var run = SequenceRows();
  run.kv_head = group.x / HEAD_TILES;
  run.head = run.kv_head * GROUP + part * HEADS;
  run.n_heads = min(HEADS, GROUP - part * HEADS);
  let end = min((group.y + 1u) * ROWS, step.n_rows);
  for (var row = group.y * ROWS; row < end; row += run.n) {
    run.first = row;
    run.n = 1u;
    run.last = step.rows[row].position;
    run.least = run.last;
    let slot = step.rows[row].slot;
    run.table = slot * MAX_BLOCKS;
    while (row + run.n < end && step.rows[row + run.n].slot == slot) {
      run.last = max(run.last, step.rows[row + run.n].position);
      run.least = min(run.least, step.rows[row + run.n].position);
      run.n++;
    }
    if (PARTIAL) {
      if (group.z * SPLIT <= run.last) { attend(run, group.z, lane); }
    } else {
      for (var split = 0u; split * SPLIT <= run.last; split++) { attend(run, split, lane); }
    }
  }
}

// Position of the first key that a row at `position` sees.
fn first_seen(position: u32) -> u32 {
  return select(0u, position + 1u - WINDOW, WINDOW > 0u && position >= WINDOW);
}

// Attention over one split of the context of consecutive rows. Tiles before every window are
// skipped, which changes no bit: keys that a query does not see have weight 0.
fn attend(run: SequenceRows, split: u32, lane: u32) {
  var at = QueryOffsets();
  for (var i = 0u; i < QUERY_QUADS * QUAD_OFFSETS; i++) {
    at[i] = query_at(run, query_of(i, lane));
  }
  var n_keys = KeyCounts();
  var sums = Sums();
  for (var f = 0u; f < QUERY_QUADS; f++) {
    for (var j = 0u; j < 4u; j++) {
      let row = (f * 4u + j) / HEADS;
      let position = step.rows[run.first + min(row, run.n - 1u)].position;
      n_keys[f][j] = select(0u, position + 1u, row < run.n);
      sums.maxima[f][j] = LOWEST;
      sums.sums[f][j] = 0.0;
      sums.weighted[f][j] = 0.0;
      for (var v = 0u; v < CACHED_VEC4S; v++) { sums.values[f][j][v] = vec4f(); }
    }
  }
  let end = min(run.last + 1u, (split + 1u) * SPLIT);
  let begin = max(split * SPLIT, first_seen(run.least) / KV_TILE * KV_TILE);
  for (var first = begin; first < end; first += KV_TILE) {
    score_kv_tile(run, first, lane, &at, &n_keys, &sums);
    add_kv_tile(run, first, lane, &sums);
  }
  workgroupBarrier();
  if (VALUE_GROUPS == 1u && !PARTIAL && run.last < SPLIT) {
    store_single_split(run, lane, &n_keys, &sums);
  } else {
    store_split(run, split, lane, &sums);
  }
}

// Offset of query i in q; past the edge, that of the last query.
fn query_at(run: SequenceRows, i: u32) -> u32 {
  let row = run.first + min(i / HEADS, run.n - 1u);
  let head = run.head + min(i % HEADS, run.n_heads - 1u);
  return row * (Q_STRIDE / 4u) + head * HEAD_VEC4S;
}

// Stores the result of a context of one split; each lane holds all sums of its chunk.
fn store_single_split(
  run: SequenceRows, lane: u32, n_keys: ptr<function, KeyCounts>, sums: ptr<function, Sums>,
) {
  for (var f = 0u; f < QUERY_QUADS; f++) {
    for (var j = 0u; j < 4u; j++) {
      let i = f * 4u + j;
      let row = run.first + i / HEADS;
      let head = run.head + i % HEADS;
      let is_query = (*n_keys)[f][j] > 0u && i % HEADS < run.n_heads;
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
    for (var j = 0u; j < 4u; j++) {
      let i = f * 4u + j;
      if (lane == 0u) { maxima[i] = (*sums).maxima[f][j]; }
      lane_values[i * LANES + lane] = (*sums).sums[f][j];
      if (CAPTURE) { terms[i * LANES + lane] = (*sums).weighted[f][j]; }
    }
  }
  for (var v = 0u; v < CACHED_VEC4S; v++) {
    for (var f = 0u; f < QUERY_QUADS; f++) {
      for (var j = 0u; j < 4u; j++) {
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

// True if query i exists and sees keys of this split.
fn has_keys(run: SequenceRows, i: u32, split: u32) -> bool {
  let row = i / HEADS;
  return row < run.n && i % HEADS < run.n_heads
    && step.rows[run.first + row].position >= split * SPLIT;
}

fn state_of(i: u32) -> State {
  var state = State(maxima[i], 0.0, 0.0);
  for (var part = 0u; part < VALUE_GROUPS; part++) {
    state.sum += lane_values[i * LANES + part * CHUNKS];
    if (CAPTURE) { state.weighted += terms[i * LANES + part * CHUNKS]; }
  }
  return state;
}

fn store_values(run: SequenceRows, split: u32, i: u32, d: u32, total: vec4f) {
  let row = run.first + i / HEADS;
  let at = (run.head + i % HEADS) * HEAD_VEC4S + d;
  if (PARTIAL) {
    out[(split * FEW_ROWS + row) * (Q_STRIDE / 4u) + at] = load16_of(total);
    return;
  }
  let place = row * (Q_STRIDE / 4u) + at;
  var state = state_of(i);
  var v = total;
  if (split > 0u) {
    v = merged_values(finished[i], floats_of(out[place]), state, total);
    state = merged(finished[i], state);
  }
  if (step.rows[row].position / SPLIT == split) { v /= state.sum; }
  out[place] = load16_of(v);
}

fn store_state(run: SequenceRows, split: u32, i: u32) {
  let row = run.first + i / HEADS;
  let head = run.head + i % HEADS;
  var state = state_of(i);
  if (PARTIAL) {
    let at = ((split * FEW_ROWS + row) * N_HEADS + head) * 3u;
    heads_out[at] = state.maximum;
    heads_out[at + 1u] = state.sum;
    heads_out[at + 2u] = state.weighted;
    return;
  }
  if (split > 0u) { state = merged(finished[i], state); }
  finished[i] = state;
  if (CAPTURE && step.rows[row].position / SPLIT == split) {
    heads_out[row * N_HEADS + head] = entropy_bits(state);
  }
}
