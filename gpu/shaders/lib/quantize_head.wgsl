// Quantises a head in workgroup memory: scales and words of the formats in gpu/kv/formats.py. The
// shader defines `numbers` (HEAD_DIM of them) and `scale_mins` (one of each block).
// use: fma4
// use: quotient
const HALF_NORMAL_EXPONENT = 113u; // of 2⁻¹⁴, the least normal float16, in a float32
const HALF_STEP_EXPONENT = 126u;   // significand >> (126 − exponent) counts steps of 2⁻²⁴
const HALF_STEP = 5.9604644775390625e-8; // 2⁻²⁴
const LARGEST = 3.4028234e38;

fn packing(storage_kind: u32) -> Packing {
  if (storage_kind == 0u) { return Q8; }
  if (storage_kind == 1u) { return Q4; }
  return NL4;
}

fn four_at(d: u32) -> vec4f {
  return vec4f(numbers[d], numbers[d + 1u], numbers[d + 2u], numbers[d + 3u]);
}

// (minimum, range) of a block for Q4; (absmax, 0) otherwise.
fn scale_min_of(storage_kind: u32, block: u32) -> vec2f {
  let first = block * PACK_BLOCK;
  var least = numbers[first];
  var most = least;
  for (var d = 0u; d < PACK_BLOCK; d++) {
    least = min(least, numbers[first + d]);
    most = max(most, numbers[first + d]);
  }
  if (storage_kind == 1u) {
    let low = as_half(least);
    return vec2f(low, as_half(most - low));
  }
  let absmax = max(-least, most);
  if (storage_kind == 0u) { return vec2f(as_half(absmax), 0.0); }
  return vec2f(as_half(fitted_absmax(first, absmax)), 0.0);
}

// Least-squares absmax: minimises the squared error of the nearest levels.
fn fitted_absmax(first: u32, absmax: f32) -> f32 {
  var products = 0.0;
  var squares = 0.0;
  for (var d = 0u; d < PACK_BLOCK; d += 4u) {
    let size = abs(four_at(first + d));
    let found = level(nearest_level(size, absmax));
    products = dot_add(size, found, products);
    squares = dot_add(found, found, squares);
  }
  return quotient(min(255.0 * products, LARGEST), squares);
}

// Rounded to the nearest float16, ties to even, clamped to its largest number. In integers, because
// a compiler may take unpack2x16float(pack2x16float(x)) for x, as NVIDIA's does: codes would then
// be made with a scale that is not the stored one.
fn as_half(x: f32) -> f32 {
  let bits = bitcast<u32>(clamp(x, -65504.0, 65504.0));
  let exponent = (bits >> 23u) & 0xffu;
  if (exponent >= HALF_NORMAL_EXPONENT) {
    return bitcast<f32>((bits + 0xfffu + ((bits >> 13u) & 1u)) & 0xffffe000u);
  }
  // Below the normal float16 these lie 2⁻²⁴ apart: round to a whole number of steps.
  let shift = min(HALF_STEP_EXPONENT - exponent, 25u); // 25 gives 0
  let significand = (bits & 0x7fffffu) | 0x800000u;
  let below_half = (1u << (shift - 1u)) - 1u;
  let steps = (significand + below_half + ((significand >> shift) & 1u)) >> shift;
  return bitcast<f32>((bits & 0x80000000u) | bitcast<u32>(f32(steps) * HALF_STEP));
}

// Word `i` of the scales (and minima).
fn scale_word(storage_kind: u32, i: u32) -> u32 {
  if (storage_kind == 1u) { return pack2x16float(scale_mins[i]); }
  let second = 2u * i + 1u;
  let last = scale_mins[min(second, HEAD_BLOCKS - 1u)].x;
  return pack2x16float(vec2f(scale_mins[2u * i].x, select(0.0, last, second < HEAD_BLOCKS)));
}

// Word `i` of the quantised numbers.
fn data_word(storage_kind: u32, i: u32) -> u32 {
  if (storage_kind == 0u) { return q8_of(four_at(4u * i), scale_mins[4u * i / PACK_BLOCK].x); }
  let d = CHUNK * i;
  let scale_min = scale_mins[d / PACK_BLOCK];
  let low = four_at(d);
  let high = four_at(d + 4u);
  if (storage_kind == 1u) { return q4_of(low, scale_min) | (q4_of(high, scale_min) << 16u); }
  return nl4_of(low, scale_min.x) | (nl4_of(high, scale_min.x) << 16u);
}
