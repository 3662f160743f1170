// Norms of the residual stream and of what each layer added to it, for every row of a captured
// step. The stream's states lie in two arenas, because a dispatch may not read and write the same
// buffer: states[l] before layer l (N_LAYERS + 1 of them, the last after the final layer),
// middles[l] after its attention.
//
// states   [N_LAYERS + 1][STATE_STRIDE]   each [rows][X_STRIDE]
// middles  [N_LAYERS][STATE_STRIDE]
// stats    [rows][1 + 3 · N_LAYERS]  ‖embedding‖, then for each layer ‖residual after it‖,
//          ‖attention update‖, ‖MLP update‖
// use: step
override K: u32; // hidden size
override X_STRIDE: u32;
override STATE_STRIDE: u32;
override N_LAYERS: u32;
override WORKGROUP: u32 = 32u;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> states: array<f32>;
@group(0) @binding(2) var<storage, read> middles: array<f32>;
@group(0) @binding(3) var<storage, read_write> stats: array<f32>;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u) {
  let which = id.x; // 0: embedding; 1 + 3 · layer + (0 residual, 1 attention, 2 MLP)
  let row = id.y;
  let n_stats = 1u + 3u * N_LAYERS;
  if (which >= n_stats || row >= step.n_rows) { return; }
  let at = row * X_STRIDE;
  let layer = (max(which, 1u) - 1u) / 3u;
  let part = (max(which, 1u) - 1u) % 3u;
  let before = layer * STATE_STRIDE + at;
  let after = (layer + 1u) * STATE_STRIDE + at;

  var squares = 0.0;
  for (var k = 0u; k < K; k++) {
    var v = 0.0;
    if (which == 0u) {
      v = states[at + k];
    } else if (part == 0u) {
      v = states[after + k];
    } else if (part == 1u) {
      v = middles[before + k] - states[before + k];
    } else {
      v = states[after + k] - middles[before + k];
    }
    squares = fma(v, v, squares);
  }
  stats[row * n_stats + which] = sqrt(squares);
}
