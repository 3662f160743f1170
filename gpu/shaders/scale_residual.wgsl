// resid_post = resid_pre + factor · update, by the factor of each row's slot and this sublayer.
//
// Used by interventions on sublayers. A factor of 1 gives the bits of resid_pre + update.
//
// resid_pre, update  [n_rows][STRIDE / 4] vec4
// factors            [n_slots][N_SUBLAYERS]
// resid_post         [n_rows][STRIDE / 4] vec4
// use: step
override N_SUBLAYERS: u32;
override SUBLAYER: u32;
override STRIDE: u32;
override WORKGROUP: u32 = 64u;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> resid_pre: array<vec4f>;
@group(0) @binding(2) var<storage, read> update: array<vec4f>;
@group(0) @binding(3) var<storage, read> factors: array<f32>;
@group(0) @binding(4) var<storage, read_write> resid_post: array<vec4f>;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u) {
  let column = id.x;
  let row = id.y;
  if (column >= STRIDE / 4u || row >= step.n_rows) { return; }
  let factor = factors[step.rows[row].slot * N_SUBLAYERS + SUBLAYER];
  let at = row * (STRIDE / 4u) + column;
  let x = resid_pre[at];
  resid_post[at] = select(fma(vec4f(factor), update[at], x), x, factor == 0.0); // also for NaN
}
