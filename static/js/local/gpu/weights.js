// Weights of an export: pieces in, rows of buffers out.

/** Bytes of a block of 32 weights, and of its scales. */
export const BLOCK_BYTES = { f32: 128, f16: 64, q8: 32, q4: 16 };
export const SCALE_BYTES = { f32: 0, f16: 0, q8: 2, q4: 4 };

/**
 * Upload all weights, one piece in memory at a time. `onProgress(done, total)` counts bytes.
 *
 * @param {import("./buffers.js").Buffers} buffers
 * @param {WeightPiece[]} pieces
 * @param {(done: number, total: number) => void} onProgress
 */
export async function uploadWeights(buffers, pieces, onProgress) {
  const reader = new PieceReader(pieces);
  const { plan } = buffers;
  const total = pieces.reduce((sum, piece) => sum + piece.bytes, 0);
  const wanted = plan.buffers
    .flatMap((entry, i) => {
      if (typeof entry.weight !== "number") return [];
      const weight = plan.weights[entry.weight];
      return [{ ...rowsOf(entry, weight), entry, buffer: buffers.buffers[i], weight }];
    })
    .sort((a, b) => a.at - b.at);
  for (const { entry, buffer, weight, at, bytes, rowBytes } of wanted) {
    const rows = await reader.read(at, bytes);
    const data = interleaved(rows, weight, rowBytes, entry.interleaved ?? 1);
    buffers.device.queue.writeBuffer(buffer, 0, data);
    onProgress(at + bytes, total);
  }
}

/**
 * Where the rows of a buffer are in the pieces put one after the other.
 *
 * @param {Exported.PlanBuffer} buffer
 * @param {Exported.PlanWeight} weight
 */
function rowsOf({ first = 0, rows = 0 }, { at, bytes, n }) {
  const rowBytes = bytes / n;
  return { at: at + first * rowBytes, bytes: rows * rowBytes, rowBytes };
}

/** Reads ranges of the pieces in rising order; keeps the last piece that it read. */
class PieceReader {
  /** @param {WeightPiece[]} pieces */
  constructor(pieces) {
    let at = 0;
    this.pieces = pieces.map((piece) => ({ piece, at: (at += piece.bytes) - piece.bytes }));
    this.end = at;
    /** @type {{piece: WeightPiece, data: ArrayBuffer} | null} */
    this.last = null;
  }

  /** @param {number} at @param {number} bytes */
  async read(at, bytes) {
    if (at + bytes > this.end) throw new Error("the export has fewer weights than its plan needs");
    const data = new Uint8Array(bytes);
    for (const { piece, at: begin } of this.pieces) {
      const from = Math.max(at, begin);
      const to = Math.min(at + bytes, begin + piece.bytes);
      if (from >= to) continue;
      const last = this.last?.piece === piece ? this.last : { piece, data: await piece.read() };
      this.last = last;
      data.set(new Uint8Array(last.data, from - begin, to - from), from - at);
    }
    return data;
  }
}

/**
 * Return rows in groups of `n`: the first block of each row of a group, the second of each, …, then
 * in the same way their scales. Vectors and groups of 1 stay as they are.
 *
 * @param {Uint8Array<ArrayBuffer>} rows
 * @param {Pick<Exported.PlanWeight, "dtype" | "k">} weight
 * @param {number} rowBytes
 * @param {number} n
 */
export function interleaved(rows, { dtype, k }, rowBytes, n) {
  if (n === 1 || !k) return padded(rows);
  const block = BLOCK_BYTES[dtype];
  const scale = SCALE_BYTES[dtype];
  const nBlocks = Math.ceil(k / 32);
  const nScales = scale ? (rowBytes - nBlocks * block) / scale : 0;
  const out = new Uint8Array(rows.length);
  for (let group = 0; group < rows.length; group += n * rowBytes) {
    const nRows = Math.min(n, (rows.length - group) / rowBytes);
    let to = group;
    /** @type {(from: number, count: number, size: number) => void} */
    const move = (from, count, size) => {
      for (let i = 0; i < count; i++)
        for (let row = 0; row < nRows; row++, to += size) {
          const at = group + row * rowBytes + from + i * size;
          out.set(rows.subarray(at, at + size), to);
        }
    };
    move(0, nBlocks, block);
    move(nBlocks * block, nScales, scale);
  }
  return padded(out);
}

/** Writes to a buffer are of whole words. @param {Uint8Array<ArrayBuffer>} data */
function padded(data) {
  if (data.length % 4 === 0) return data;
  const whole = new Uint8Array(Math.ceil(data.length / 4) * 4);
  whole.set(data);
  return whole;
}
