// What lib/product_bytes.wgsl needs of lib/weight_q4.wgsl.
const MINIMA = true; // grids have a minimum

// The numbers of a block so many loads after `place` as bytes: the even ones, then the odd ones.
fn bytes_of(place: Place, after: u32) -> array<vec4u, 2> {
  let pairs = load_at(place, after);
  return array<vec4u, 2>(pairs & vec4u(0x0f0f0f0fu), (pairs >> vec4u(4u)) & vec4u(0x0f0f0f0fu));
}
