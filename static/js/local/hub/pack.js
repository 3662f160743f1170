// Rows of weights in the storage types f32, f16, q8 and q4: the bytes of gpu/checkpoint/packing.py.

import { BLOCK_BYTES, SCALE_BYTES } from "../gpu/weights.js";
import { toHalf } from "./numbers.js";
import { quantizeQ4, quantizeQ8 } from "./quantize.js";

/** @typedef {Exported.PlanWeight["dtype"]} StorageType */

const BLOCK = 32;
/** A row's scales fill whole groups of so many bytes. */
const SCALE_GROUP_BYTES = 16;

/** @param {number} k */
const nBlocks = (k) => Math.ceil(k / BLOCK);

/** Return the bytes of a row of `k` weights. @param {StorageType} dtype @param {number} k */
export function rowBytes(dtype, k) {
  const scales = Math.ceil((SCALE_BYTES[dtype] * nBlocks(k)) / SCALE_GROUP_BYTES);
  return BLOCK_BYTES[dtype] * nBlocks(k) + SCALE_GROUP_BYTES * scales;
}

/**
 * Pack float32 rows (n, k) to `out`, whose bytes are zeros. Throws for weights that the type cannot
 * hold. `name`: what errors call the weight.
 *
 * @param {StorageType} dtype
 * @param {Float32Array} rows
 * @param {number} k
 * @param {Uint8Array<ArrayBuffer>} out
 * @param {string} name
 */
export function packRows(dtype, rows, k, out, name) {
  const each = rowBytes(dtype, k);
  try {
    for (let at = 0, to = 0; at < rows.length; at += k, to += each)
      PACKERS[dtype](rows, at, k, out.buffer, out.byteOffset + to);
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    throw new Error(`${name} cannot be stored as ${dtype}: ${error.message}; use f32`);
  }
}

/**
 * Each packs `k` of `rows` from `at` on, to the byte `to` of a buffer.
 *
 * @type {Record<StorageType, (rows: Float32Array, at: number, k: number, buffer: ArrayBuffer, to: number) => void>}
 */
const PACKERS = {
  f32(rows, at, k, buffer, to) {
    new Float32Array(buffer, to, k).set(rows.subarray(at, at + k));
  },

  f16(rows, at, k, buffer, to) {
    const halves = new Uint16Array(buffer, to, k);
    for (let i = 0; i < k; i++) {
      halves[i] = toHalf(rows[at + i]);
      if ((halves[i] & 0x7fff) === 0x7c00)
        throw new RangeError(`it holds ${rows[at + i]}, but float16 ends at 65504`);
    }
  },

  q8(rows, at, k, buffer, to) {
    const weights = new Int8Array(buffer, to, BLOCK * nBlocks(k));
    const scales = new Uint16Array(buffer, to + weights.length, nBlocks(k));
    for (let i = 0, block = 0; i < k; i += BLOCK, block++)
      scales[block] = quantizeQ8(rows, at + i, Math.min(BLOCK, k - i), weights, i);
  },

  q4(rows, at, k, buffer, to) {
    const weights = new Uint8Array(BLOCK * nBlocks(k));
    const pairs = new Uint8Array(buffer, to, weights.length / 2);
    const scales = new Uint16Array(buffer, to + pairs.length, 2 * nBlocks(k));
    for (let i = 0, block = 0; i < k; i += BLOCK, block++)
      scales.set(quantizeQ4(rows, at + i, Math.min(BLOCK, k - i), weights, i), 2 * block);
    for (let i = 0; i < pairs.length; i++) pairs[i] = weights[2 * i] | (weights[2 * i + 1] << 4);
  },
};
