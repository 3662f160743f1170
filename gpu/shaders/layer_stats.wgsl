// Norms of the residual stream and of what each layer added to it, and how far each update points
// along the stream it is added to, for every row of a captured step. The stream's states lie in two
// arenas, because a dispatch may not read and write the same buffer: states[l] before layer l
// (N_LAYERS + 1 of them, the last after the final layer), middles[l] after its attention. One
// workgroup for each (layer, row), lanes over the state. Everything is read once.
//
//   attention = middle − before     cos = before · attention / (‖before‖ ‖attention‖)
//   mlp       = after − middle      cos = middle · mlp / (‖middle‖ ‖mlp‖)
//
// states   [N_LAYERS + 1][STATE_STRIDE]   each [rows][X_STRIDE], zeros past the width
// middles  [N_LAYERS][STATE_STRIDE]
// stats    [rows][1 + 5 · N_LAYERS]  ‖embedding‖, then for each layer ‖residual after it‖,
//          ‖attention update‖, ‖MLP update‖, cosines of the two; a cosine is 0 where either has no
//          length
// use: step
override X_STRIDE: u32;
override STATE_STRIDE: u32;
override N_LAYERS: u32;
override LANES: u32;

const PER_LAYER = 5u;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> states: array<vec4f>;
@group(0) @binding(2) var<storage, read> middles: array<vec4f>;
@group(0) @binding(3) var<storage, read_write> stats: array<f32>;

var<workgroup> squares: array<vec4f, LANES>; // before, after, attention, MLP
var<workgroup> products: array<vec4f, LANES>; // before · attention, middle · MLP, middle · middle

// The quotient of a dot product and the squares of both lengths. Lengths, not squares, are
// multiplied: the product of two squares leaves float32 sooner.
fn cosine(product: f32, a: f32, b: f32) -> f32 {
  let lengths = sqrt(a) * sqrt(b);
  if (lengths == 0.0) { return 0.0; }
  return clamp(product / lengths, -1.0, 1.0);
}

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let layer = group.x;
  let row = group.y;
  if (row >= step.n_rows) { return; }
  let first = (layer * STATE_STRIDE + row * X_STRIDE) / 4u;
  var mine = vec4f();
  var across = vec4f();
  for (var k = lane; k < X_STRIDE / 4u; k += LANES) {
    let before = states[first + k];
    let middle = middles[first + k];
    let after = states[first + STATE_STRIDE / 4u + k];
    let attention = middle - before;
    let mlp = after - middle;
    mine += vec4f(dot(before, before), dot(after, after), dot(attention, attention), dot(mlp, mlp));
    across += vec4f(dot(before, attention), dot(middle, mlp), dot(middle, middle), 0.0);
  }
  squares[lane] = mine;
  products[lane] = across;
  workgroupBarrier();
  if (lane > 0u) { return; }
  var sums = vec4f();
  var dots = vec4f();
  for (var l = 0u; l < LANES; l++) {
    sums += squares[l];
    dots += products[l];
  }
  let at = row * (1u + PER_LAYER * N_LAYERS);
  if (layer == 0u) { stats[at] = sqrt(sums.x); }
  let of_layer = at + 1u + PER_LAYER * layer;
  stats[of_layer] = sqrt(sums.y);
  stats[of_layer + 1u] = sqrt(sums.z);
  stats[of_layer + 2u] = sqrt(sums.w);
  stats[of_layer + 3u] = cosine(dots.x, sums.x, sums.z);
  stats[of_layer + 4u] = cosine(dots.y, dots.z, sums.w);
}
