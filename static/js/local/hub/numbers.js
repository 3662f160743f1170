// Numbers of a checkpoint as float32, and float16 as the loader rounds (NumPy's astype). No GPU.

const bits32 = new Uint32Array(1);
const float32 = new Float32Array(bits32.buffer);

/** Bytes of a number of a safetensors file; other types cannot be read. */
export const NUMBER_BYTES = { F32: 4, F16: 2, BF16: 2 };

/** The float32 of every float16, made when it is first needed. @type {Float32Array | null} */
let halves = null;

function tableOfHalves() {
  halves ??= Float32Array.from({ length: 1 << 16 }, (_, half) => fromHalf(half));
  return halves;
}

/** Return the number of float16 bits. @param {number} half */
export function fromHalf(half) {
  const sign = half & 0x8000 ? -1 : 1;
  const exponent = (half >> 10) & 31;
  const digits = half & 1023;
  if (exponent === 31) return digits ? NaN : sign * Infinity;
  return sign * (exponent ? (1024 + digits) * 2 ** (exponent - 25) : digits * 2 ** -24);
}

/** Return the bits of the float16 nearest to a float32; of two, the even one. @param {number} value */
export function toHalf(value) {
  float32[0] = value;
  const bits = bits32[0];
  const sign = (bits >>> 16) & 0x8000;
  const magnitude = bits & 0x7fffffff;
  if (magnitude >= 0x7f800000) return sign | (magnitude > 0x7f800000 ? 0x7e00 : 0x7c00);
  if (magnitude >= 0x477ff000) return sign | 0x7c00; // 65520 and more
  if (magnitude < 0x38800000) {
    // Below 2^-14 float16 counts in steps of 2^-24.
    return sign | roundEven(Math.abs(value) * 2 ** 24);
  }
  const shifted = magnitude - 0x38000000; // another exponent bias
  return sign | ((shifted + 0xfff + ((shifted >>> 13) & 1)) >>> 13);
}

/** Adding and subtracting this rounds to a whole number; of two, to the even one. */
const ROUNDER = 1.5 * 2 ** 52;

/** Round to the nearest integer, of two to the even one. @param {number} value */
export const roundEven = (value) => value + ROUNDER - ROUNDER;

/**
 * Return the numbers of a tensor's bytes as float32. `dtype`: a key of NUMBER_BYTES. Throws for a
 * number that is not finite.
 *
 * @param {Uint8Array} data
 * @param {FloatType} dtype
 * @param {string} name
 */
export function floatsOf(data, dtype, name) {
  const whole = data.byteOffset % NUMBER_BYTES[dtype] ? data.slice() : data;
  const n = whole.byteLength / NUMBER_BYTES[dtype];
  let found;
  if (dtype === "F32") found = new Float32Array(whole.buffer, whole.byteOffset, n);
  else {
    const short = new Uint16Array(whole.buffer, whole.byteOffset, n);
    if (dtype === "F16") {
      const table = tableOfHalves();
      found = new Float32Array(n);
      for (let i = 0; i < n; i++) found[i] = table[short[i]];
    } else {
      const bits = new Uint32Array(n);
      for (let i = 0; i < n; i++) bits[i] = short[i] << 16;
      found = new Float32Array(bits.buffer);
    }
  }
  for (let i = 0; i < n; i++)
    if (!Number.isFinite(found[i]))
      throw new Error(`${name} has a weight that is no finite number; get the model's original weights`);
  return found;
}
