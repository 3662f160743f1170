// Norms of the residual stream and of each layer's updates, and the cosine of each update to the
// stream it is added to, for every row of a step whose plan has statistics.
//
//   attention = resid_mid − resid_pre    cos = resid_pre · attention / (‖resid_pre‖ ‖attention‖)
//   mlp       = after − resid_mid        cos = resid_mid · mlp / (‖resid_mid‖ ‖mlp‖)
//
// One workgroup per (layer, row), lanes over the width; everything is read once. resid_pre and
// resid_mid are two buffers because a dispatch may not read and write the same one.
//
// resid_pre  [N_LAYERS + 1][STATE_STRIDE] before each layer and after the last; each
//            [rows][X_STRIDE], zeros past the width
// resid_mid  [N_LAYERS][STATE_STRIDE] between attention and MLP
// stats      [rows][1 + 5 · N_LAYERS]  ‖embedding‖, then for each layer ‖residual after it‖,
//            ‖attention update‖, ‖MLP update‖, cosines of the two; a cosine is 0 if a length is 0
// use: step
override X_STRIDE: u32;
override STATE_STRIDE: u32;
override N_LAYERS: u32;
override LANES: u32;

const PER_LAYER = 5u;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> resid_pre: array<vec4f>;
@group(0) @binding(2) var<storage, read> resid_mid: array<vec4f>;
@group(0) @binding(3) var<storage, read_write> stats: array<f32>;

var<workgroup> squares: array<vec4f, LANES>; // before, after, attention, MLP
var<workgroup> products: array<vec4f, LANES>; // before · attention, middle · MLP, middle · middle

// Cosine from a dot product and two squared lengths. Multiplies lengths, not squares: a product of
// squares overflows float32 sooner.
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
    let before = resid_pre[first + k];
    let middle = resid_mid[first + k];
    let after = resid_pre[first + STATE_STRIDE / 4u + k];
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
