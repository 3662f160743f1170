// x += the row of table at each row's position, in place (learned positions, as in GPT-2).
//
// table  [context][STRIDE / 4] vec4
// x      [n_rows][STRIDE / 4] vec4
// use: step
override STRIDE: u32;
override WORKGROUP: u32 = 64u;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> table: array<vec4f>;
@group(0) @binding(2) var<storage, read_write> x: array<vec4f>;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u) {
  let column = id.x;
  let row = id.y;
  if (column >= STRIDE / 4u || row >= step.n_rows) { return; }
  x[row * (STRIDE / 4u) + column] += table[step.rows[row].position * (STRIDE / 4u) + column];
}
