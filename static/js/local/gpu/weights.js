// @ts-nocheck
// Weights of an export: pieces in, rows of buffers out.

/** Bytes of a block of 32 weights, and of its scales. */
const BLOCK_BYTES = { f32: 128, f16: 64, q8: 32, q4: 16 };
const SCALE_BYTES = { f32: 0, f16: 0, q8: 2, q4: 4 };

/**
 * Upload all weights, one piece in memory at a time.
 *
 * `pieces`: their entries in the manifest; `fetchPiece(entry)` resolves to the bytes of one.
 * `onProgress(done, total)` counts bytes.
 */
export async function uploadWeights(buffers, pieces, fetchPiece, onProgress) {
  const reader = new PieceReader(pieces, fetchPiece);
  const { plan } = buffers;
  const total = pieces.reduce((sum, piece) => sum + piece.bytes, 0);
  const wanted = plan.buffers
    .map((entry, i) => ({ entry, i, weight: plan.weights[entry.weight] }))
    .filter(({ weight }) => weight)
    .map(({ entry, i, weight }) => ({ ...rowsOf(entry, weight), entry, i, weight }))
    .sort((a, b) => a.at - b.at);
  for (const { entry, i, weight, at, bytes, rowBytes } of wanted) {
    const rows = await reader.read(at, bytes);
    const data = interleaved(rows, weight, rowBytes, entry.interleaved ?? 1);
    buffers.device.queue.writeBuffer(buffers.buffers[i], 0, data, 0, data.byteLength);
    onProgress(at + bytes, total);
  }
}

/** Where the rows of a buffer are in the pieces put one after the other. */
function rowsOf({ first = 0, rows }, { at, bytes, n }) {
  const rowBytes = bytes / n;
  return { at: at + first * rowBytes, bytes: rows * rowBytes, rowBytes };
}

/** Reads ranges of the pieces in rising order; keeps the last piece that it fetched. */
class PieceReader {
  constructor(pieces, fetchPiece) {
    let at = 0;
    this.pieces = pieces.map((entry) => ({ entry, at: (at += entry.bytes) - entry.bytes }));
    this.end = at;
    this.fetchPiece = fetchPiece;
    this.last = null;
  }

  async read(at, bytes) {
    if (at + bytes > this.end) throw new Error("the export has fewer weights than its plan needs");
    const data = new Uint8Array(bytes);
    for (const piece of this.pieces) {
      const from = Math.max(at, piece.at);
      const to = Math.min(at + bytes, piece.at + piece.entry.bytes);
      if (from >= to) continue;
      if (this.last?.piece !== piece)
        this.last = { piece, data: await this.fetchPiece(piece.entry) };
      data.set(new Uint8Array(this.last.data, from - piece.at, to - from), from - at);
    }
    return data;
  }
}

/**
 * Return rows in groups of `n`: the first block of each row of a group, the second of each, …, then
 * in the same way their scales. Vectors and groups of 1 stay as they are.
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

/** Writes to a buffer are of whole words. */
function padded(data) {
  if (data.length % 4 === 0) return data;
  const whole = new Uint8Array(Math.ceil(data.length / 4) * 4);
  whole.set(data);
  return whole;
}
