// x += the steering vector (control vector) of each row's slot, in place; with keeps = 0, x = the
// vector.
//
// Used by steering interventions. A zero vector changes no bit.
//
// vectors  [n_slots][STRIDE / 4] vec4
// keeps    [n_slots]  0: x is replaced
// x        [n_rows][STRIDE / 4] vec4
// use: step
override STRIDE: u32;
override WORKGROUP: u32 = 64u;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> vectors: array<vec4f>;
@group(0) @binding(2) var<storage, read> keeps: array<f32>;
@group(0) @binding(3) var<storage, read_write> x: array<vec4f>;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u) {
  let column = id.x;
  let row = id.y;
  if (column >= STRIDE / 4u || row >= step.n_rows) { return; }
  let slot = step.rows[row].slot;
  let v = vectors[slot * (STRIDE / 4u) + column];
  let at = row * (STRIDE / 4u) + column;
  let steered = select(x[at] + v, x[at], v == vec4f());
  x[at] = select(steered, v, keeps[slot] == 0.0);
}
