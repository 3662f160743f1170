// after = before + factor · update, by the factor of each row's slot for what this part of a layer
// adds to the residual stream. A factor of 1 gives the bits of before + update.
//
// before, update  [n_rows][STRIDE / 4] vec4
// factors         [n_slots][N_PARTS]
// after           [n_rows][STRIDE / 4] vec4
// use: step
override N_PARTS: u32;
override PART: u32;
override STRIDE: u32;
override WORKGROUP: u32 = 64u;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> before: array<vec4f>;
@group(0) @binding(2) var<storage, read> update: array<vec4f>;
@group(0) @binding(3) var<storage, read> factors: array<f32>;
@group(0) @binding(4) var<storage, read_write> after: array<vec4f>;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u) {
  let column = id.x;
  let row = id.y;
  if (column >= STRIDE / 4u || row >= step.n_rows) { return; }
  let factor = factors[step.rows[row].slot * N_PARTS + PART];
  let at = row * (STRIDE / 4u) + column;
  let x = before[at];
  after[at] = select(fma(vec4f(factor), update[at], x), x, factor == 0.0); // off is off
}
