// What lib/product_bytes.wgsl needs of lib/weight_q8.wgsl.
const MINIMA = false; // grids have a minimum

// The bytes of a block that begins so many loads after `place`, in the order of its weights.
fn bytes_of(place: Place, after: u32) -> array<vec4u, 2> {
  return array<vec4u, 2>(load_at(place, after), load_at(place, after + 1u));
}
