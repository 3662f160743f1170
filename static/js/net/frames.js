// Decoder of the server's binary frames, which carry arrays of numbers.
//
//   u32 little-endian   bytes of the header
//   header              JSON, padded with spaces: {type, request, kind, info, arrays}
//   arrays              little-endian, each at its `offset` in the frame, a multiple of 8

const LENGTH_BYTES = 4;
const KINDS = { f32: Float32Array, u32: Uint32Array };
const text = new TextDecoder();

/**
 * Return the message in a frame: its header with `arrays` {name: {shape, values}}. `values` are
 * views on `buffer`: nothing is copied, and keeping one keeps the whole frame in memory.
 *
 * @param {ArrayBuffer} buffer
 * @returns {FrameAnswer}
 */
export function decodeFrame(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(text.decode(new Uint8Array(buffer, LENGTH_BYTES, length)));
  /** @type {FrameAnswer["arrays"]} */
  const arrays = {};
  for (const { name, dtype, shape, offset } of header.arrays) {
    const size = shape.reduce((/** @type {number} */ product, /** @type {number} */ n) => product * n, 1);
    const Kind = KINDS[/** @type {keyof typeof KINDS} */ (dtype)];
    arrays[name] = { shape, values: new Kind(buffer, offset, size) };
  }
  return { ...header, arrays };
}
