// Quantises blocks of 32 weights to integers q from -127 to 127: w ≈ q · scale, as
// gpu/checkpoint/quantize.py does.
//
// An invocation has two blocks, whose scales share a word.
// use: quantized_block

// The float32 nearest to x / 127, for x above 0. The 24 bits of x are shifted so that the quotient
// has 24 before the point.
fn over_127(x: f32) -> f32 {
  let bits = bitcast<u32>(x);
  let m = (bits & 0x7fffffu) | 0x800000u;
  let shift = select(6u, 7u, m < 127u << 17u);
  let r = (2u * (m << shift) + 127u) / 254u;
  return f32(r) * power_of_two(i32((bits >> 23u) & 0xffu) - 150 - i32(shift));
}

// Writes the words of a block and returns its scale.
fn quantize(block: u32, at: u32) -> f32 {
  if (!read_block(block)) {
    atomicAdd(&left, 1u);
    return 0.0;
  }
  let largest = max(high, -low);
  var scale = 0.0;
  if (largest > 0.0) { scale = as_half(not_too_small(over_127(largest))); }
  let inverse_scale = inverse(scale);
  for (var i = 0u; i < 8u; i++) { // unroll
    words[at + i] = pack4xI8(vec4i(round(w[i] * inverse_scale)));
  }
  return scale;
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u) {
  let pairs = (chunk.row_blocks + 1u) / 2u;
  let row = id.x / pairs;
  let first = id.x % pairs * 2u; // block of the row
  let block = row * chunk.row_blocks + first;
  if (block >= chunk.n_blocks) { return; }
  let row_at = row * chunk.row_words;
  let a = quantize(block, row_at + 8u * first);
  var b = 0.0;
  if (first + 1u < chunk.row_blocks) { b = quantize(block + 1u, row_at + 8u * (first + 1u)); }
  let scale_at = 8u * chunk.row_blocks + first / 2u;
  words[row_at + scale_at] = half_bits(a) | (half_bits(b) << 16u);
  if (first + 2u >= chunk.row_blocks) { clear_padding(row_at, scale_at + 1u); }
}
