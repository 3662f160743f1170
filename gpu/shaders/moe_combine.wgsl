// y = [residual +] Σ gate[k] · expert_out[k] [+ sigmoid(logit) · shared_out] per row, k rising
//
// expert_out  [rows · EXPERTS_PER_TOKEN][STRIDE / 4] vec4
// gates       [rows][EXPERTS_PER_TOKEN]
// logits      [rows][LOGITS_STRIDE]; column GATE is read       (not bound without SHARED)
// shared_out  [rows][STRIDE / 4] vec4                          (not bound without SHARED)
// residual    [rows][STRIDE / 4] vec4                          (not bound without RESIDUAL)
// y           [rows][STRIDE / 4] vec4
// use: step
override EXPERTS_PER_TOKEN: u32;
override STRIDE: u32;
override LOGITS_STRIDE: u32 = 0u;
override GATE: u32 = 0u;
override SHARED: bool;
override RESIDUAL: bool;
override WORKGROUP: u32 = 64u;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> expert_out: array<vec4f>;
@group(0) @binding(2) var<storage, read> gates: array<f32>;
@group(0) @binding(3) var<storage, read> logits: array<f32>; // optional
@group(0) @binding(4) var<storage, read> shared_out: array<vec4f>; // optional
@group(0) @binding(5) var<storage, read> residual: array<vec4f>; // optional
@group(0) @binding(6) var<storage, read_write> y: array<vec4f>;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u) {
  let column = id.x;
  let row = id.y;
  let width = STRIDE / 4u;
  if (column >= width || row >= step.n_rows) { return; }
  var sum = vec4f();
  for (var k = 0u; k < EXPERTS_PER_TOKEN; k++) {
    let assignment = row * EXPERTS_PER_TOKEN + k;
    sum = fma(vec4f(gates[assignment]), expert_out[assignment * width + column], sum);
  }
  let at = row * width + column;
  if (SHARED) {
    let open = 1.0 / (1.0 + exp(-logits[row * LOGITS_STRIDE + GATE]));
    sum = fma(vec4f(open), shared_out[at], sum);
  }
  if (RESIDUAL) {
    // Mesa's compiler would reassociate a plain sum, with two experts to
    // g₁ · o₁ + (g₀ · o₀ + residual), which differs from the sum that scale_residual adds. It
    // cannot know that this is 1.
    let one = f32(min(step.n_rows, 1u));
    sum = fma(vec4f(one), sum, residual[at]);
  }
  y[at] = sum;
}
