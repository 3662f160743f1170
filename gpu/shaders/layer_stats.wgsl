// Norms of the residual stream and of what each layer added to it, for every row of a captured
// step. The stream's states lie in two arenas, because a dispatch may not read and write the same
// buffer: states[l] before layer l (N_LAYERS + 1 of them, the last after the final layer),
// middles[l] after its attention. One workgroup for each (layer, row), lanes over the state.
//
// states   [N_LAYERS + 1][STATE_STRIDE]   each [rows][X_STRIDE], zeros past the width
// middles  [N_LAYERS][STATE_STRIDE]
// stats    [rows][1 + 3 · N_LAYERS]  ‖embedding‖, then for each layer ‖residual after it‖,
//          ‖attention update‖, ‖MLP update‖
// use: step
override X_STRIDE: u32;
override STATE_STRIDE: u32;
override N_LAYERS: u32;
override LANES: u32;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> states: array<vec4f>;
@group(0) @binding(2) var<storage, read> middles: array<vec4f>;
@group(0) @binding(3) var<storage, read_write> stats: array<f32>;

var<workgroup> squares: array<vec4f, LANES>; // before, after, attention, MLP

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let layer = group.x;
  let row = group.y;
  if (row >= step.n_rows) { return; }
  let first = (layer * STATE_STRIDE + row * X_STRIDE) / 4u;
  var mine = vec4f();
  for (var k = lane; k < X_STRIDE / 4u; k += LANES) {
    let before = states[first + k];
    let middle = middles[first + k];
    let after = states[first + STATE_STRIDE / 4u + k];
    let attention = middle - before;
    let mlp = after - middle;
    mine += vec4f(dot(before, before), dot(after, after), dot(attention, attention), dot(mlp, mlp));
  }
  squares[lane] = mine;
  workgroupBarrier();
  if (lane > 0u) { return; }
  var norms = vec4f();
  for (var l = 0u; l < LANES; l++) { norms += squares[l]; }
  norms = sqrt(norms);
  let at = row * (1u + 3u * N_LAYERS);
  if (layer == 0u) { stats[at] = norms.x; }
  let of_layer = at + 1u + 3u * layer;
  stats[of_layer] = norms.y;
  stats[of_layer + 1u] = norms.z;
  stats[of_layer + 2u] = norms.w;
}
