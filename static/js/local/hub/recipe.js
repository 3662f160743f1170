// Bytes of a plan's weights from the tensors of a checkpoint (docs/plan-format.md, Recipes): to the
// byte what the server's loader makes (gpu/checkpoint/row_layout.py, packing.py).

import { packRows, rowBytes } from "./pack.js";

/**
 * A weight of a plan: its rows are taken from parts, `each` of them by turns. Without `k` it is one
 * vector.
 *
 * @typedef {Exported.PlanPart} Part
 * @typedef {Omit<Exported.PlanWeight, "parts" | "at" | "n" | "bytes"> & {parts: Part[]}} Weight
 */

/** Rows of one weight, where each is taken from. */
class RowPlaces {
  /** @type {{members: PartRows[], first: number, end: number}[]} */
  groups = [];

  /** @param {Weight} weight */
  constructor({ parts, each = 1 }) {
    for (let i = 0, first = 0; i < parts.length; i += each) {
      const members = parts.slice(i, i + each).map((part) => new PartRows(part));
      const n = members.reduce((sum, member) => sum + member.n, 0);
      this.groups.push({ members, first, end: first + n });
      first += n;
    }
    this.n = this.groups.at(-1)?.end ?? 0;
  }

  /**
   * Return [part, row of its tensor] of a row of the weight.
   *
   * @param {number} row
   * @returns {[Part, number]}
   */
  place(row) {
    const group = this.groups.find(({ end }) => row < end);
    if (!group) throw new RangeError(`a weight of ${this.n} rows has no row ${row}`);
    const { members, first } = group;
    const member = members[(row - first) % members.length];
    return [member.part, member.row(Math.floor((row - first) / members.length))];
  }
}

class PartRows {
  /** @type {{from: number, end: number, first: number}[]} */
  runs = [];
  n = 0;

  /** @param {Part} part */
  constructor(part) {
    this.part = part;
    this.order = part.head_order ?? [];
    for (const [first, n] of part.runs) {
      this.runs.push({ from: this.n, end: this.n + n, first });
      this.n += n;
    }
    this.last = this.runs[0];
  }

  /** Return the row of the tensor that is row `i` of this part. @param {number} i */
  row(i) {
    const h = this.order.length;
    const at = h ? i - (i % h) + this.order[i % h] : i;
    if (at < this.last.from || at >= this.last.end)
      this.last = this.runs.find(({ end }) => at < end) ?? this.last;
    return this.last.first + at - this.last.from;
  }
}

/**
 * Return the bytes of rows `first` … `first + n − 1` of a weight.
 *
 * `rowsOf(part, rows)` resolves to the float32 numbers of those rows of the part’s
 * tensor (of its columns, if it is transposed), one after the other.
 *
 * @param {Weight} weight
 * @param {number} first
 * @param {number} n
 * @param {(part: Part, rows: number[]) => Promise<Float32Array>} rowsOf
 */
export async function weightBytes(weight, first, n, rowsOf) {
  const { dtype, k = 0, plus = 0, name } = weight;
  const width = k || 1;
  const places = new RowPlaces(weight);
  /** @type {Map<Part, {from: number[], to: number[]}>} */
  const wanted = new Map();
  for (let row = first; row < Math.min(first + n, places.n); row++) {
    const [part, from] = places.place(row);
    const moves = wanted.get(part) ?? { from: [], to: [] };
    wanted.set(part, moves);
    moves.from.push(from);
    moves.to.push(row - first);
  }
  const numbers = new Float32Array(n * width);
  for (const [part, { from, to }] of wanted) {
    const found = await rowsOf(part, from);
    if (found.length !== from.length * width)
      throw new Error(`${part.tensor} has rows of another length than ${width}, which the plan takes`);
    to.forEach((row, i) => numbers.set(found.subarray(i * width, (i + 1) * width), row * width));
    if (plus) for (const row of to) addTo(numbers, row * width, width, plus);
  }
  if (!k) return new Uint8Array(numbers.buffer);
  const out = new Uint8Array(n * rowBytes(dtype, k));
  packRows(dtype, numbers, k, out, name);
  return out;
}

/** @param {Float32Array} numbers @param {number} at @param {number} n @param {number} plus */
function addTo(numbers, at, n, plus) {
  for (let i = at; i < at + n; i++) numbers[i] += plus;
}
