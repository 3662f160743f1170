// @ts-nocheck
// Tensors of safetensors files of which ranges can be read: headers first, then rows as the recipes
// want them. The checks are those of gpu/checkpoint/safetensors_files.py.

import { NUMBER_BYTES, floatsOf } from "./numbers.js";

const MAX_HEADER_BYTES = 16 * 2 ** 20;
const MAX_TENSORS = 65536;
/** Tensors up to this size are fetched whole, and the last ones are kept for other rows of theirs. */
const WHOLE_BYTES = 48 * 2 ** 20;
const CACHED_BYTES = 160 * 2 ** 20;

/**
 * Return the tensors of one file by name: {dtype, shape, at, bytes}, `at` in the file.
 *
 * `read(at, bytes)` resolves to a range of the file as a Uint8Array; `size` is that of the file.
 */
export async function readHeader(read, size, file) {
  const fail = (what) => {
    throw new Error(`${file} is no safetensors file that can be used: ${what}`);
  };
  if (size < 8) fail(`it has ${size} bytes`);
  const head = await read(0, 8);
  const length = Number(new DataView(head.buffer, head.byteOffset).getBigUint64(0, true));
  if (length > MAX_HEADER_BYTES || 8 + length > size) fail(`its header would have ${length} bytes`);
  const header = parse(await read(8, length), fail);
  const names = Object.keys(header).filter((name) => name !== "__metadata__");
  if (names.length > MAX_TENSORS) fail(`it has ${names.length} tensors, more than ${MAX_TENSORS}`);
  const found = new Map();
  for (const name of names) {
    const { dtype, shape, data_offsets: offsets } = header[name] ?? {};
    const lists = Array.isArray(shape) && Array.isArray(offsets) && offsets.length === 2;
    if (typeof dtype !== "string" || !lists || ![...shape, ...offsets].every(isCount))
      fail(`the entry of ${name} is not one`);
    const [from, to] = offsets;
    if (from > to || 8 + length + to > size) fail(`${name} is outside of the file`);
    const each = NUMBER_BYTES[dtype];
    if (each && shape.reduce((n, size) => n * size, each) !== to - from)
      fail(`${name} has another size than its shape`);
    found.set(name, { dtype, shape, at: 8 + length + from, bytes: to - from });
  }
  return found;
}

function parse(data, fail) {
  try {
    const header = JSON.parse(new TextDecoder().decode(data));
    if (header && typeof header === "object" && !Array.isArray(header)) return header;
  } catch {
    // said below
  }
  return fail("its header is no JSON object");
}

const isCount = (value) => Number.isSafeInteger(value) && value >= 0;

/** Reads rows of tensors as float32. */
export class TensorRows {
  /** `tensors`: name → {dtype, shape, at, bytes, read(at, bytes)}. */
  constructor(tensors) {
    this.tensors = tensors;
    this.cached = new Map();
  }

  /** Resolves to the float32 numbers of rows of a part's tensor (see recipe.js). */
  async rowsOf({ tensor: name, transposed = false }, rows) {
    const tensor = this.tensors.get(name);
    if (!tensor) throw new Error(`the plan takes ${name}, which the model's files do not have`);
    if (!(tensor.dtype in NUMBER_BYTES))
      throw new Error(`${name} is stored as ${tensor.dtype}; expected F32, F16 or BF16`);
    const width = tensor.shape.length > 1 ? tensor.shape.at(-1) : 1;
    if (transposed) return this.columns(name, tensor, width, rows);
    const each = width * NUMBER_BYTES[tensor.dtype];
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
      found.set(floatsOf(data.subarray(at, at + n * each), tensor.dtype, name), i * width);
      i += n;
    }
    return found;
  }

  async columns(name, tensor, width, rows) {
    if (tensor.shape.length !== 2) throw new Error(`${name} should have two dimensions`);
    const { data } = await this.span(name, tensor, 0, tensor.bytes);
    const numbers = floatsOf(data, tensor.dtype, name);
    const height = tensor.shape[0];
    const found = new Float32Array(rows.length * height);
    rows.forEach((column, i) => {
      for (let k = 0; k < height; k++) found[i * height + k] = numbers[k * width + column];
    });
    return found;
  }

  /** Resolves to {data, from}: bytes of a tensor from its byte `from` on, at least those wanted. */
  async span(name, tensor, from, to) {
    if (tensor.bytes > WHOLE_BYTES)
      return { data: await tensor.read(tensor.at + from, to - from), from };
    if (!this.cached.has(name)) {
      const data = await tensor.read(tensor.at, tensor.bytes);
      this.makeRoom(tensor.bytes);
      this.cached.set(name, data);
    }
    return { data: this.cached.get(name), from: 0 };
  }

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
