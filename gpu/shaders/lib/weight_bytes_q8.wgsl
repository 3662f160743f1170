// What lib/product_bytes.wgsl needs of lib/weight_q8.wgsl.
const MINIMA = false; // grids have a minimum

// The bytes of a block whose loads begin with `at`, in the order of its weights.
fn bytes_of(at: u32) -> array<vec4u, 2> {
  return array<vec4u, 2>(words_of(weight[at]), words_of(weight[at + 1u]));
}
