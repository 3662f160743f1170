// Half of a block of int8 weights times that of a row: 16 numbers with one scale each. Two
// neighbouring lanes take one block, and each loads the 16 bytes that it needs.
// use: weights
// use: weight_int8
const INT8_HALF_MASK = vec4u(0x0f0f0f0fu);

// Half `half` of the block at `place` + `offset`, in the order of `int8_of`.
fn int8_half(place: WeightAddress, offset: u32, half: u32) -> vec4u {
  if (BLOCK_LOADS == 2u) { return load_at(place, offset + half); }
  return (load_at(place, offset) >> vec4u(4u * half)) & INT8_HALF_MASK;
}

// sum + (weight scale · Σ p q) · scale of x. The integer sum is exact.
fn add_int8_half(p: vec4u, q: vec4u, weight_scale: f32, x_scale: f32, sum: f32) -> f32 {
  let products = dot4I8Packed(p.x, q.x) + dot4I8Packed(p.y, q.y)
               + dot4I8Packed(p.z, q.z) + dot4I8Packed(p.w, q.w);
  return fma(weight_scale * f32(products), x_scale, sum);
}
