// x ·= the factor of each row's slot and head, in place.
//
// Used by interventions on attention heads. A factor of 1 changes no bit.
//
// factors  [n_slots][N_HEADS]
// x        [n_rows][STRIDE / 4] vec4, one head after the other
// use: step
override N_HEADS: u32;
override HEAD_VEC4S: u32; // head_dim / 4
override STRIDE: u32;
override WORKGROUP: u32 = 64u;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> factors: array<f32>;
@group(0) @binding(2) var<storage, read_write> x: array<vec4f>;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u) {
  let column = id.x;
  let row = id.y;
  if (column >= N_HEADS * HEAD_VEC4S || row >= step.n_rows) { return; }
  let factor = factors[step.rows[row].slot * N_HEADS + column / HEAD_VEC4S];
  if (factor == 1.0) { return; }
  let at = row * (STRIDE / 4u) + column;
  x[at] = select(x[at] * factor, vec4f(), factor == 0.0); // 0 even for NaN and infinity
}
