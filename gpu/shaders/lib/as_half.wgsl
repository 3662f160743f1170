// The nearest float16 to a number, as a float32.
const HALF_NORMAL_EXPONENT = 113u; // of 2⁻¹⁴, the least normal float16, in a float32
const HALF_STEP_EXPONENT = 126u;   // significand >> (126 − exponent) counts steps of 2⁻²⁴
const HALF_STEP = 5.9604644775390625e-8; // 2⁻²⁴

// Ties go to even, and the result is clamped to the largest float16. In integers, because a
// compiler may take unpack2x16float(pack2x16float(x)) for x, as NVIDIA's does: codes would then be
// made with a scale that is not the stored one.
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
