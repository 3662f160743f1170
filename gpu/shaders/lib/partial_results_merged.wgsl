// Leaves the partial results of a split of attention.wgsl; the workgroup that is the last of its
// row and heads to do so merges them like attention_merge.wgsl, in the same order.
//
// No workgroup waits for another: each counts itself when its results are stored, and the one that
// counts the last split reads all of them. Results go through atomics, which are coherent between
// workgroups, and storageBarrier orders them with the count. WGSL promises that within a workgroup
// only; naga gives Vulkan a barrier of the whole device. Not for Metal and D3D12.
// prelude: const SPLIT_ROWS, MERGE_AHEAD (see attention_merge.wgsl)
override COUNTS_AT: u32;

// [n_splits][SPLIT_ROWS][Q_STRIDE] numbers; from COUNTS_AT on a count for each row and key head, or
// part of its group, which is 0 between steps
@group(0) @binding(8) var<storage, read_write> partial_values: array<atomic<u32>>;
@group(0) @binding(9) var<storage, read_write> partial_states: array<atomic<u32>>;

var<workgroup> n_before: u32; // splits of this row and heads that were left before this one

fn leave_values(at: u32, total: vec4f) {
  let words = bitcast<vec4u>(total);
  for (var i = 0u; i < 4u; i++) { atomicStore(&partial_values[4u * at + i], words[i]); }
}

fn leave_state(at: u32, state: State) {
  atomicStore(&partial_states[3u * at], bitcast<u32>(state.maximum));
  atomicStore(&partial_states[3u * at + 1u], bitcast<u32>(state.sum));
  atomicStore(&partial_states[3u * at + 2u], bitcast<u32>(state.weighted));
}

fn left_values(at: u32) -> vec4f {
  var words = vec4u();
  for (var i = 0u; i < 4u; i++) { words[i] = atomicLoad(&partial_values[4u * at + i]); }
  return bitcast<vec4f>(words);
}

fn left_state(at: u32) -> State {
  return State(bitcast<f32>(atomicLoad(&partial_states[3u * at])),
               bitcast<f32>(atomicLoad(&partial_states[3u * at + 1u])),
               bitcast<f32>(atomicLoad(&partial_states[3u * at + 2u])));
}

// `part`: number of the workgroup of a row and split.
fn merge_splits(run: SequenceRows, part: u32, lane: u32) {
  let n_parts = N_HEADS / GROUP * HEAD_TILES;
  let count = COUNTS_AT + run.first * n_parts + part;
  let n_splits = run.last / SPLIT + 1u;
  storageBarrier();
  if (lane == 0u) { n_before = atomicAdd(&partial_values[count], 1u); }
  if (workgroupUniformLoad(&n_before) + 1u != n_splits) { return; }
  storageBarrier();
  if (lane == 0u) { atomicStore(&partial_values[count], 0u); }
  for (var n = lane; n < run.n_heads * HEAD_VEC4S; n += LANES) {
    merge_vec4(run, n_splits, run.head + n / HEAD_VEC4S, n % HEAD_VEC4S);
  }
}

// Merges vec4 `d` of a head.
fn merge_vec4(run: SequenceRows, n_splits: u32, head: u32, d: u32) {
  let place = run.first * (Q_STRIDE / 4u) + head * HEAD_VEC4S + d;
  let state_place = run.first * N_HEADS + head;
  var state = left_state(state_place);
  var v = left_values(place);
  for (var first = 1u; first < n_splits; first += MERGE_AHEAD) {
    var next = array<State, MERGE_AHEAD>();
    var next_values = array<vec4f, MERGE_AHEAD>();
    for (var i = 0u; i < MERGE_AHEAD; i++) {
      let split = min(first + i, n_splits - 1u);
      next[i] = left_state(split * SPLIT_ROWS * N_HEADS + state_place);
      next_values[i] = left_values(split * SPLIT_ROWS * (Q_STRIDE / 4u) + place);
    }
    for (var i = 0u; i < MERGE_AHEAD; i++) {
      if (first + i < n_splits) {
        v = merged_values(state, v, next[i], next_values[i]);
        state = merged(state, next[i]);
      }
    }
  }
  out[place] = load16_of(v / state.sum);
  if (CAPTURE && d == 0u) { heads_out[state_place] = entropy_bits(state); }
}
