// Quantises blocks of 32 weights to integers q from 0 to 15: w ≈ q · scale + minimum.
//
// An invocation has a block. Sums have the order of gpu/checkpoint/quantize.py.
// use: quantized_block

const N = 32.0;
const OVER_N = 0.03125;
const RANGES = array(1.0, 0.88);
const FIRST_SCALES = array(0.13333334, 0.11733333); // RANGES / 7.5
const ROUNDS = 3u;

struct Fit {
  scale: f32,
  minimum: f32,
}

fn integers(four: vec4f, inverse_scale: f32, minimum: f32) -> vec4f {
  return clamp(round((four - minimum) * inverse_scale), vec4f(), vec4f(15.0));
}

fn best_fit(middle: f32, half_range: f32) -> Fit {
  var w_sum = 0.0;
  for (var i = 0u; i < 8u; i++) { // unroll
    w_sum = (((w_sum + w[i].x) + w[i].y) + w[i].z) + w[i].w;
  }
  var least = 3.4028234e38;
  var best = Fit(0.0, 0.0);
  for (var part = 0u; part < 2u; part++) { // unroll
    var scale = not_too_small(half_range * FIRST_SCALES[part]);
    var minimum = -rounded(half_range * RANGES[part]);
    for (var times = 0u; times < ROUNDS; times++) {
      let inverse_scale = inverse(scale);
      var q_sums = vec4f();
      var q_squares = vec4f();
      var q_w = 0.0;
      for (var i = 0u; i < 8u; i++) { // unroll
        let q = integers(w[i], inverse_scale, minimum);
        q_sums += q;
        q_squares += q * q;
        let p = q * w[i];
        q_w = (((q_w + rounded(p.x)) + rounded(p.y)) + rounded(p.z)) + rounded(p.w);
      }
      let q_sum = (q_sums.x + q_sums.y) + (q_sums.z + q_sums.w); // of integers: exact
      let q_square = (q_squares.x + q_squares.y) + (q_squares.z + q_squares.w);
      let slope = (N * q_w - rounded(q_sum * w_sum)) * inverse(N * q_square - q_sum * q_sum);
      let start = (w_sum - rounded(slope * q_sum)) * OVER_N;
      scale = as_half(not_too_small(slope));
      minimum = as_half(start + middle) - middle;
      let error_of_scale = scale * (scale * q_square + 2.0 * (rounded(minimum * q_sum) - q_w));
      let error_of_minimum = minimum * (N * minimum - 2.0 * w_sum);
      let error = rounded(error_of_scale) + rounded(error_of_minimum);
      if (error < least) {
        least = error;
        best = Fit(scale, minimum);
      }
    }
  }
  return best;
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3u) {
  let block = id.x;
  if (block >= chunk.n_blocks) { return; }
  let can_quantise = read_block(block);
  let middle = (low + high) * 0.5;
  let half_range = (high - low) * 0.5;
  if (!can_quantise || (half_range > 0.0 && half_range < LEAST)) {
    atomicAdd(&left, 1u);
    return;
  }
  for (var i = 0u; i < 8u; i++) { w[i] -= middle; } // unroll
  let fit = best_fit(middle, half_range);
  let inverse_scale = inverse(fit.scale);
  let row_blocks: u32 = chunk.row_blocks;
  let row_at = block / row_blocks * chunk.row_words;
  let in_row = block % row_blocks;
  for (var i = 0u; i < 4u; i++) { // unroll
    let a = vec4u(integers(w[2u * i], inverse_scale, fit.minimum));
    let b = vec4u(integers(w[2u * i + 1u], inverse_scale, fit.minimum));
    let eight = (a << vec4u(0u, 4u, 8u, 12u)) | (b << vec4u(16u, 20u, 24u, 28u));
    words[row_at + 4u * in_row + i] = (eight.x | eight.y) | (eight.z | eight.w);
  }
  let minimum = as_half(fit.minimum + middle);
  let scale_at = 4u * row_blocks + in_row;
  words[row_at + scale_at] = half_bits(fit.scale) | (half_bits(minimum) << 16u);
  if (in_row == row_blocks - 1u) { clear_padding(row_at, scale_at + 1u); }
}
