// Attention of prefill and decode alike, over the paged KV cache:
//
//   out = softmax(score(q, k)) · v
//
// over the positions up to the row's own, or the last WINDOW of them; in an encoder those after it,
// too (`last_seen`). The variants of `key_scores` say what a
// score is. Groups of heads share keys and values (GQA, Ainslie et al. 2023); scores stay on chip
// (FlashAttention, Dao et al. 2022).
//
// A workgroup serves QUERIES queries, HEADS heads of a group in ROWS consecutive rows, and reads
// each key and value once for all of them. A context is cut into splits of SPLIT keys; the variant
// of `attention_split` computes one. PARTIAL: a workgroup takes one split and leaves its state and
// values; the variant of `partial_results` says who merges them. Otherwise it takes all splits that
// its rows see in turn and merges them with the same operations in the same order. The order of
// every sum depends on VALUE_GROUPS, SPLIT and the kind of device alone, not on the other rows of
// the step.
//
// q             [n_rows][Q_STRIDE / 4] vec4
// k_pool, v_pool, block_tables  see lib/paging.wgsl
// masked        [n_slots][N_HEADS] positions x … y − 1, to which a head does not attend in a slot's
//               rows (attention knockout, Geva et al. 2023; not bound without MASKED)
// out           [n_rows][Q_STRIDE / 4] vec4; for a merge: [n_splits][SPLIT_ROWS][Q_STRIDE / 4]
// heads_out     [n_rows][N_HEADS] entropy in bits (not bound without CAPTURE);
//               for a merge: [n_splits][SPLIT_ROWS][N_HEADS] State
// use: step
// use: words
// use: kv
// use: cached_keys
// use: cached_values
// use: paging
// use: fma4
// use: softmax_state
// use: last_seen
// use: key_scores
// use: attention_split
// use: partial_results
// prelude: const HEAD_VEC4S (head_dim / 4), GROUP (heads that share keys), HEADS, ROWS, LANES,
// VALUE_GROUPS (groups of lanes, each adding the values of some of the keys), QUAD_SIZE (see
// lib/attention_kv_tile.wgsl), SPLIT_ROWS (most rows of a step whose attention is split)
override N_HEADS: u32;
override Q_STRIDE: u32;
override SCALE: f32; // of q · k, times log2(e)
override WINDOW: u32 = 0u; // keys that a row sees, its own and those before it; 0: all
override SPLIT: u32; // keys of a split
override PARTIAL: bool;
override CAPTURE: bool = false;
override MASKED: bool = false;

const QUERIES = ROWS * HEADS;
const HEAD_TILES = (GROUP + HEADS - 1u) / HEADS; // workgroups that share a group's heads
const CHUNKS = HEAD_VEC4S / CACHED_VEC4S; // loads of a key

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> q: array<Load16>;
@group(0) @binding(2) var<storage, read> k_pool: array<Cached>;
@group(0) @binding(3) var<storage, read> v_pool: array<Cached>;
@group(0) @binding(4) var<storage, read> block_tables: array<u32>;
@group(0) @binding(5) var<storage, read> masked: array<vec2f>; // optional
@group(0) @binding(6) var<storage, read_write> out: array<Load16>;
@group(0) @binding(7) var<storage, read_write> heads_out: array<f32>; // optional

var<workgroup> finished: array<State, QUERIES>; // merged previous splits

struct SequenceRows { // consecutive rows of one sequence
  first: u32, // row
  n: u32,
  last: u32,  // position of the last key that any row sees
  least: u32, // position of the first
  table: u32, // offset of the sequence in block_tables
  head: u32,  // first head
  n_heads: u32,
  kv_head: u32,
}

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
    run.last = last_seen(row);
    run.least = first_seen(row);
    let slot = step.rows[row].slot;
    run.table = slot * MAX_BLOCKS;
    while (row + run.n < end && step.rows[row + run.n].slot == slot) {
      run.last = max(run.last, last_seen(row + run.n));
      run.least = min(run.least, first_seen(row + run.n));
      run.n++;
    }
    if (PARTIAL) {
      if (group.z * SPLIT <= run.last) {
        attend(run, group.z, lane);
        merge_splits(run, group.x, lane);
      }
    } else {
      for (var split = first_split(run); split * SPLIT <= run.last; split++) {
        attend(run, split, lane);
      }
    }
  }
}

// Position of the first key that a row sees.
fn first_seen(row: u32) -> u32 {
  let own = step.rows[row].position;
  return select(0u, own + 1u - WINDOW, WINDOW > 0u && own >= WINDOW);
}

// Which of four keys query i may attend to. `masked` is read here and not in SequenceRows: where it
// is not bound, Tint would take the whole struct for non-uniform and refuse the barriers.
fn are_unmasked(run: SequenceRows, i: u32, keys: vec4u) -> vec4<bool> {
  if (!MASKED) { return vec4<bool>(true); }
  let ends = vec2u(masked[run.table / MAX_BLOCKS * N_HEADS + head_of(run, i)]);
  return (keys < vec4u(ends.x)) | (keys >= vec4u(ends.y));
}

// First split with a key that a row of the run sees. Merging those before it would change no bit.
fn first_split(run: SequenceRows) -> u32 { return run.least / SPLIT; }

// Offset of a position's key (and value) in the pools.
fn key_at(run: SequenceRows, position: u32) -> u32 {
  let block = block_tables[run.table + position / BLOCK_TOKENS];
  return cached_at(block, position, run.kv_head, CHUNKS);
}

// Row and head of query i; past the edge, those of the last query.
fn row_of(run: SequenceRows, i: u32) -> u32 { return run.first + min(i / HEADS, run.n - 1u); }

fn head_of(run: SequenceRows, i: u32) -> u32 {
  return run.head + min(i % HEADS, run.n_heads - 1u);
}

// Offset of query i in q.
fn query_at(run: SequenceRows, i: u32) -> u32 {
  return row_of(run, i) * (Q_STRIDE / 4u) + head_of(run, i) * HEAD_VEC4S;
}

// What is added to the scores of four keys for query i.
fn key_biases(run: SequenceRows, i: u32, keys: vec4u) -> vec4f {
  let row = row_of(run, i);
  let head = head_of(run, i);
  return vec4f(position_bias(row, head, keys.x), position_bias(row, head, keys.y),
               position_bias(row, head, keys.z), position_bias(row, head, keys.w));
}

// True if query i exists and sees keys of this split.
fn has_keys(run: SequenceRows, i: u32, split: u32) -> bool {
  let row = i / HEADS;
  return row < run.n && i % HEADS < run.n_heads
    && last_seen(run.first + row) >= split * SPLIT;
}

fn store_values(run: SequenceRows, split: u32, i: u32, d: u32, total: vec4f) {
  let row = run.first + i / HEADS;
  let at = (run.head + i % HEADS) * HEAD_VEC4S + d;
  if (PARTIAL) {
    leave_values((split * SPLIT_ROWS + row) * (Q_STRIDE / 4u) + at, total);
    return;
  }
  let place = row * (Q_STRIDE / 4u) + at;
  var state = state_of(i);
  var v = total;
  if (split > first_split(run)) {
    v = merged_values(finished[i], floats_of(out[place]), state, total);
    state = merged(finished[i], state);
  }
  if (last_seen(row) / SPLIT == split) { v /= state.sum; }
  out[place] = load16_of(v);
}

fn store_state(run: SequenceRows, split: u32, i: u32) {
  let row = run.first + i / HEADS;
  let head = run.head + i % HEADS;
  var state = state_of(i);
  if (PARTIAL) {
    leave_state((split * SPLIT_ROWS + row) * N_HEADS + head, state);
    return;
  }
  if (split > first_split(run)) { state = merged(finished[i], state); }
  finished[i] = state;
  if (CAPTURE && last_seen(row) / SPLIT == split) {
    heads_out[row * N_HEADS + head] = entropy_bits(state);
  }
}
