// y = [norm](x) as int8, 16 numbers to a scale.
//
//   norm  x[k] · gain[k] / sqrt(mean(x²) + EPS)      RMSNorm (Zhang & Sennrich 2019)
//   y     scale = absmax of the 16 / 127, byte = round(x / scale), ties to even
//
// Used before lib/matmul_tile_int8.wgsl. WORKGROUPS workgroups per row, lanes over the blocks of a
// part of it. A scale depends on its numbers alone; each workgroup finds the norm of the whole row,
// in one order of sums, so the bits are the same for any number of workgroups. The sum of a block
// (as in llama.cpp's q8_1) is that of the rounded numbers. If x holds NaN or infinity the scale is
// not finite either, so the fault stays visible.
//
// x     [rows][8 · BLOCKS] vec4; columns past K are zero
// gain  [8 · BLOCKS] vec4 (not bound without NORM)
// y     [rows], see lib/quantized_rows.wgsl
// use: step
// use: quantized_rows
// use: workgroup_sum
// use: fma4
// use: round_quotient
override K: u32;
override BLOCKS: u32;
override EPS: f32 = 0.0;
override NORM: bool = false;
override EVEN_ODD: bool;
override EACH: u32 = 1u; // rows of x per row of the step
override WORKGROUPS: u32; // of a row

const LARGEST = 3.4028234e38;

struct Half {
  bytes: vec4u,
  scale: f32,
  sum: f32,
}

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> x: array<vec4f>;
@group(0) @binding(2) var<storage, read> gain: array<vec4f>; // optional
@group(0) @binding(3) var<storage, read_write> y: array<vec4u>;

fn pack_int8x4(x: vec4f, absmax: f32, quotient: f32) -> u32 {
  return pack4xI8(vec4i(round_quotient(x, 127.0, absmax, quotient)));
}

fn half_of(a: vec4f, b: vec4f, c: vec4f, d: vec4f) -> Half {
  let maxima = max(max(abs(a), abs(b)), max(abs(c), abs(d)));
  let sizes = abs(a) + abs(b) + abs(c) + abs(d);
  let absmax = max(max(maxima.x, maxima.y), max(maxima.z, maxima.w));
  let size = sizes.x + sizes.y + sizes.z + sizes.w;
  let quotient = over(127.0, absmax);
  let q = vec4u(
    pack_int8x4(a, absmax, quotient), pack_int8x4(b, absmax, quotient),
    pack_int8x4(c, absmax, quotient), pack_int8x4(d, absmax, quotient));
  let ones = 0x01010101u;
  let sum = dot4I8Packed(q.x, ones) + dot4I8Packed(q.y, ones)
          + dot4I8Packed(q.z, ones) + dot4I8Packed(q.w, ones);
  let scale = select(size, absmax / 127.0, size <= LARGEST); // false for NaN
  return Half(q, scale, scale * f32(sum));
}

// Numbers of a block times their gains.
fn block_of(row_at: u32, block: u32) -> array<vec4f, 8> {
  var found = array<vec4f, 8>();
  for (var i = 0u; i < 8u; i++) {
    found[i] = x[row_at + 8u * block + i];
    if (NORM) { found[i] *= gain[8u * block + i]; }
  }
  return found;
}

fn halves_of(b: array<vec4f, 8>) -> array<Half, 2> {
  if (EVEN_ODD) {
    return array<Half, 2>(
      half_of(vec4f(b[0].xz, b[1].xz), vec4f(b[2].xz, b[3].xz),
              vec4f(b[4].xz, b[5].xz), vec4f(b[6].xz, b[7].xz)),
      half_of(vec4f(b[0].yw, b[1].yw), vec4f(b[2].yw, b[3].yw),
              vec4f(b[4].yw, b[5].yw), vec4f(b[6].yw, b[7].yw)));
  }
  return array<Half, 2>(half_of(b[0], b[1], b[2], b[3]), half_of(b[4], b[5], b[6], b[7]));
}

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let row = group.y;
  if (row >= step.n_rows * EACH) { return; }
  let row_at = row * 8u * BLOCKS;
  var norm = 1.0;
  if (NORM) {
    var squares = 0.0;
    for (var i = lane; i < 8u * BLOCKS; i += LANES) {
      squares = dot_add(x[row_at + i], x[row_at + i], squares);
    }
    norm = 1.0 / sqrt(workgroup_sum(squares, lane) / f32(K) + EPS);
  }
  let n_blocks = (BLOCKS + WORKGROUPS - 1u) / WORKGROUPS;
  let first = group.x * n_blocks;
  for (var block = first + lane; block < min(first + n_blocks, BLOCKS); block += LANES) {
    let halves = halves_of(block_of(row_at, block));
    let at = (row * BLOCKS + block) * Q8_BLOCK_LOADS;
    y[at] = halves[0].bytes;
    y[at + 1u] = halves[1].bytes;
    let scale_min = vec4f(halves[0].scale, halves[1].scale, halves[0].sum + halves[1].sum, 0.0);
    y[at + 2u] = bitcast<vec4u>(scale_min * norm);
  }
}
