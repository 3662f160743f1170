// Tensors of safetensors files of which ranges can be read: headers first, then rows as the recipes
// want them. The checks are those of gpu/checkpoint/safetensors_files.py.

import { NUMBER_BYTES, floatsOf } from "./numbers.js";

const MAX_HEADER_BYTES = 16 * 2 ** 20;
const MAX_TENSORS = 65536;
/** Tensors up to this size are fetched whole, and the last ones are kept for other rows of theirs. */
const WHOLE_BYTES = 48 * 2 ** 20;
const CACHED_BYTES = 160 * 2 ** 20;

/**
 * A range of a file, and a tensor that begins at its byte `at`.
 *
 * @typedef {(at: number, bytes: number) => Promise<Uint8Array>} ReadRange
 * @typedef {{dtype: string, shape: number[], at: number, bytes: number}} TensorPlace
 * @typedef {TensorPlace & {read: ReadRange}} StoredTensor
 */

/**
 * Return the tensors of one file by name.
 *
 * `read(at, bytes)` resolves to a range of the file as a Uint8Array; `size` is that of the file.
 *
 * @param {ReadRange} read
 * @param {number} size
 * @param {string} file
 */
export async function readHeader(read, size, file) {
  /** @type {(what: string) => never} */
  const fail = (what) => {
    throw new Error(`${file} is not a safetensors file that can be used: ${what}`);
  };
  if (size < 8) fail(`it has ${size} bytes`);
  const head = await read(0, 8);
  const length = Number(new DataView(head.buffer, head.byteOffset).getBigUint64(0, true));
  if (length > MAX_HEADER_BYTES || 8 + length > size) fail(`its header would have ${length} bytes`);
  const header = parse(await read(8, length), fail);
  const names = Object.keys(header).filter((name) => name !== "__metadata__");
  if (names.length > MAX_TENSORS) fail(`it has ${names.length} tensors, more than ${MAX_TENSORS}`);
  /** @type {Map<string, TensorPlace>} */
  const found = new Map();
  for (const name of names) {
    const { dtype, shape, data_offsets: offsets } = header[name] ?? {};
    const lists = Array.isArray(shape) && Array.isArray(offsets) && offsets.length === 2;
    if (typeof dtype !== "string" || !lists || ![...shape, ...offsets].every(isCount))
      fail(`the entry of ${name} is not one`);
    const [from, to] = offsets;
    if (from > to || 8 + length + to > size) fail(`${name} is outside of the file`);
    const each = isFloat(dtype) ? NUMBER_BYTES[dtype] : 0;
    if (each && shape.reduce((/** @type {number} */ n, /** @type {number} */ of) => n * of, each) !== to - from)
      fail(`${name} has another size than its shape`);
    found.set(name, { dtype, shape, at: 8 + length + from, bytes: to - from });
  }
  return found;
}

/** @param {Uint8Array} data @param {(what: string) => never} fail */
function parse(data, fail) {
  try {
    const header = JSON.parse(new TextDecoder().decode(data));
    if (header && typeof header === "object" && !Array.isArray(header)) return header;
  } catch {
    // said below
  }
  return fail("its header is no JSON object");
}

/** @param {string} dtype @returns {dtype is FloatType} */
const isFloat = (dtype) => dtype in NUMBER_BYTES;

/** @param {unknown} value */
const isCount = (value) => Number.isSafeInteger(value) && Number(value) >= 0;

/** Reads rows of tensors as float32. */
export class TensorRows {
  /** @param {Map<string, StoredTensor>} tensors */
  constructor(tensors) {
    this.tensors = tensors;
    /** Bytes of whole tensors by name, those read last at the end. @type {Map<string, Uint8Array>} */
    this.cached = new Map();
  }

  /**
   * Resolves to the float32 numbers of rows of a part's tensor (see recipe.js).
   *
   * @param {{tensor: string, transposed?: boolean}} part
   * @param {number[]} rows
   */
  async rowsOf({ tensor: name, transposed = false }, rows) {
    const tensor = this.tensors.get(name);
    if (!tensor) throw new Error(`the plan takes ${name}, which the model's files do not have`);
    const { dtype, shape } = tensor;
    if (!isFloat(dtype)) throw new Error(`${name} is stored as ${dtype}; expected F32, F16 or BF16`);
    const width = shape.length > 1 ? shape[shape.length - 1] : 1;
    if (transposed) return this.columns(name, tensor, dtype, rows);
    const each = width * NUMBER_BYTES[dtype];
    const low = rows.reduce((least, row) => Math.min(least, row), Infinity);
    const high = rows.reduce((most, row) => Math.max(most, row), 0) + 1;
    if (high * each > tensor.bytes) throw new Error(`${name} has fewer rows than the plan takes`);
    const { data, from } = await this.span(name, tensor, low * each, high * each);
    const found = new Float32Array(rows.length * width);
    // Neighbours are converted together: a call for each row would cost more than the numbers.
    for (let i = 0; i < rows.length; ) {
      let n = 1;
      while (i + n < rows.length && rows[i + n] === rows[i] + n) n += 1;
      const at = rows[i] * each - from;
      found.set(floatsOf(data.subarray(at, at + n * each), dtype, name), i * width);
      i += n;
    }
    return found;
  }

  /** @param {string} name @param {StoredTensor} tensor @param {FloatType} dtype @param {number[]} rows */
  async columns(name, tensor, dtype, rows) {
    if (tensor.shape.length !== 2) throw new Error(`${name} should have two dimensions`);
    const { data } = await this.span(name, tensor, 0, tensor.bytes);
    const numbers = floatsOf(data, dtype, name);
    const [height, width] = tensor.shape;
    const found = new Float32Array(rows.length * height);
    rows.forEach((column, i) => {
      for (let k = 0; k < height; k++) found[i * height + k] = numbers[k * width + column];
    });
    return found;
  }

  /**
   * Resolves to {data, from}: bytes of a tensor from its byte `from` on, at least those wanted.
   *
   * @param {string} name
   * @param {StoredTensor} tensor
   * @param {number} from
   * @param {number} to
   */
  async span(name, tensor, from, to) {
    if (tensor.bytes > WHOLE_BYTES)
      return { data: await tensor.read(tensor.at + from, to - from), from };
    const known = this.cached.get(name);
    if (known) return { data: known, from: 0 };
    const data = await tensor.read(tensor.at, tensor.bytes);
    this.makeRoom(tensor.bytes);
    this.cached.set(name, data);
    return { data, from: 0 };
  }

  /** @param {number} bytes */
  makeRoom(bytes) {
    let held = bytes;
    for (const data of this.cached.values()) held += data.length;
    for (const [name, data] of this.cached) {
      if (held <= CACHED_BYTES) return;
      this.cached.delete(name);
      held -= data.length;
    }
  }
}
