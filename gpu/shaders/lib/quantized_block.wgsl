// A block of 32 weights, to be quantised as gpu/checkpoint/quantize.py does it, bit for bit.
//
// WGSL lets a compiler fuse x · y + z, and leaves a division 2.5 ULP of error. So a rounded product
// that is added to something goes through `rounded`, and quotients are corrected in integers.
//
// chunk    blocks, blocks of a row, words of a row, and a zero that no compiler knows
// weights  [blocks][8] vec4
// words    rows of gpu/checkpoint/packing.py
// left     counts the blocks that are left to the host: their numbers are too large for float16, or
//          so small that a device may take them or the last digits of their squares for zero
// use: as_half
override WORKGROUP: u32;

@group(0) @binding(0) var<uniform> chunk: Chunk;
@group(0) @binding(1) var<storage, read> weights: array<vec4f>;
@group(0) @binding(2) var<storage, read_write> words: array<u32>;
@group(0) @binding(3) var<storage, read_write> left: atomic<u32>;

struct Chunk {
  n_blocks: u32,
  row_blocks: u32,
  row_words: u32,
  zero: u32,
}

const OVERFLOWS = 65520.0;           // and above: infinity in float16
const LEAST_NORMAL = 0x00800000u;    // bits of 2⁻¹²⁶
const LEAST = 9.094947017729282e-13; // 2⁻⁴⁰: the last digits of its square are normal numbers
const LEAST_HALF = 6.103515625e-5;   // 2⁻¹⁴

var<private> w: array<vec4f, 8>;
var<private> low: f32;
var<private> high: f32;

// Reads a block, and returns whether it can be quantised here. A block of zeros can.
fn read_block(block: u32) -> bool {
  var most = 0u;
  var is_small = false;
  for (var i = 0u; i < 8u; i++) { // unroll
    w[i] = weights[8u * block + i];
    let size = bitcast<vec4u>(w[i]) & vec4u(0x7fffffffu);
    most = max(most, max(max(size.x, size.y), max(size.z, size.w)));
    is_small = is_small || any((size < vec4u(LEAST_NORMAL)) & (size > vec4u()));
  }
  var least4 = w[0];
  var most4 = w[0];
  for (var i = 1u; i < 8u; i++) { // unroll
    least4 = min(least4, w[i]);
    most4 = max(most4, w[i]);
  }
  low = min(min(least4.x, least4.y), min(least4.z, least4.w));
  high = max(max(most4.x, most4.y), max(most4.z, most4.w));
  let is_tiny = most > 0u && most < bitcast<u32>(LEAST);
  return !is_small && !is_tiny && most < bitcast<u32>(OVERFLOWS);
}

// x, which is not fused with what it is added to.
fn rounded(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) ^ chunk.zero); }

// 2ⁿ for n from -126 to 127.
fn power_of_two(n: i32) -> f32 { return bitcast<f32>(u32(n + 127) << 23u); }

// The float32 nearest to 1 / x, and 0 for 0. With the 24 bits m of x, 2⁴⁷ / m has 24 bits before
// the point; r is near it, and the remainder 2⁴⁷ − r · m, which fits in 32 bits, tells how near.
fn inverse(x: f32) -> f32 {
  if (x == 0.0) { return 0.0; }
  let bits = bitcast<u32>(x);
  let m = (bits & 0x7fffffu) | 0x800000u;
  let significand = bitcast<f32>((bits & 0x7fffffu) | 0x3f800000u);
  var r = u32(16777216.0 / significand);
  var remainder = bitcast<i32>(0u - r * m); // 2³² divides 2⁴⁷
  for (var i = 0u; i < 4u; i++) { // unroll
    let step = select(0, 1, 2 * remainder > i32(m)) - select(0, 1, 2 * remainder < -i32(m));
    r += bitcast<u32>(step);
    remainder -= step * i32(m);
  }
  let size = f32(r) * HALF_STEP * power_of_two(127 - i32((bits >> 23u) & 0xffu));
  return bitcast<f32>(bitcast<u32>(size) | (bits & 0x80000000u));
}

// A scale rounded up if it is subnormal in float16, so that the levels still reach the largest
// weight.
fn not_too_small(scale: f32) -> f32 {
  return max(scale, ceil(min(scale, LEAST_HALF) * 16777216.0) * HALF_STEP);
}

// The bits of a number that is a float16. A device may pack a subnormal one as 0.
fn half_bits(x: f32) -> u32 {
  let bits = bitcast<u32>(x);
  let size = bits & 0x7fffffffu;
  let normal = (size - 0x38000000u) >> 13u; // the exponents' biases differ by 112
  let subnormal = u32(abs(x) * 16777216.0);
  return ((bits >> 16u) & 0x8000u) | select(normal, subnormal, abs(x) < LEAST_HALF);
}

// Clears the words of a row after its scales, `first` the first of them.
fn clear_padding(row_at: u32, first: u32) {
  for (var i = first; i < chunk.row_words; i++) { words[row_at + i] = 0u; }
}
