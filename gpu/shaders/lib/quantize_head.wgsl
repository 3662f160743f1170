// Quantises a head in workgroup memory: scales and words of the formats in gpu/kv/formats.py. The
// shader defines `numbers` (HEAD_DIM of them) and `scale_mins` (one of each block).
// use: as_half
// use: fma4
// use: quotient
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
