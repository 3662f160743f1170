// y = [bias +] the outputs of LoRA adapters (Hu et al. 2021) for a matrix, by the strength of each
// adapter in the row's slot:
//
//   y[n] = bias[n] + Σ strength of an adapter · Σ b[r][n] · lora_a_out[first[n] + r]   r: its ranks
//
// An adapter of strength 0 is not read and changes no bit.
//
// With experts a row has EXPERTS_PER_TOKEN assignments (assignment = row · EXPERTS_PER_TOKEN + k),
// each with its own row of lora_a_out and y and the b of its expert. Without experts
// EXPERTS_PER_TOKEN is 0.
//
// lora_a_out  [n_rows][LORA_A_STRIDE]: A · x of every module that the matrix is made of
// b           [ranks][STRIDE / 4] vec4, one expert after the other
// first       [STRIDE / 4] vec4: column of lora_a_out at which the module of an output begins
// ends        [N_LORAS]: end of each adapter's ranks
// strengths   [n_slots][N_LORAS]
// bias        [≥ STRIDE / 4] vec4 (not bound without BIAS)
// expert_ids  [assignments] (not bound without experts)
// y           [n_rows][STRIDE / 4] vec4
// use: step
override N_LORAS: u32;
override LORA_A_STRIDE: u32;
override STRIDE: u32;
override BIAS: bool = false;
override EXPERTS_PER_TOKEN: u32 = 0u;
override WORKGROUP: u32 = 64u;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> lora_a_out: array<f32>;
@group(0) @binding(2) var<storage, read> b: array<vec4f>;
@group(0) @binding(3) var<storage, read> first: array<vec4u>;
@group(0) @binding(4) var<storage, read> ends: array<u32>;
@group(0) @binding(5) var<storage, read> strengths: array<f32>;
@group(0) @binding(6) var<storage, read> bias: array<vec4f>; // optional
@group(0) @binding(7) var<storage, read> expert_ids: array<u32>; // optional
@group(0) @binding(8) var<storage, read_write> y: array<vec4f>;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u) {
  let column = id.x;
  let row = id.y; // or assignment
  let each = max(EXPERTS_PER_TOKEN, 1u);
  if (column >= STRIDE / 4u || row >= step.n_rows * each) { return; }
  let slot = step.rows[row / each].slot;
  let at = first[column] + row * LORA_A_STRIDE;
  var b_at = column;
  if (EXPERTS_PER_TOKEN > 0u) { b_at += expert_ids[row] * ends[N_LORAS - 1u] * (STRIDE / 4u); }
  var total = vec4f();
  if (BIAS) { total = bias[column]; }
  var r = 0u;
  for (var i = 0u; i < N_LORAS; i++) {
    let end = ends[i];
    let strength = strengths[slot * N_LORAS + i];
    if (strength != 0.0) {
      var sum = vec4f();
      for (; r < end; r++) {
        let x = vec4f(
          lora_a_out[at.x + r], lora_a_out[at.y + r], lora_a_out[at.z + r], lora_a_out[at.w + r],
        );
        sum = fma(b[b_at + r * (STRIDE / 4u)], x, sum);
      }
      total = fma(vec4f(strength), sum, total);
    }
    r = end;
  }
  y[row * (STRIDE / 4u) + column] = total;
}
