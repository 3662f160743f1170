// What the sampler knows of the text of each slot: tokens that occur, how often the run wrote each,
// and biases. Layout: `seen`, `counts` and `biases` of docs/plan-format.md.

/** The device counts how often a run wrote a token in 16 bits. */
export const MAX_TIMES_WRITTEN = 0xffff;

/**
 * Tell the device the text of a run that starts in `slot`. `nCounted` of the last ids are its own.
 *
 * @param {Pick<import("./buffers.js").Buffers, "plan" | "writeRow">} buffers
 * @param {number} slot
 * @param {number[]} ids
 * @param {number} nCounted
 * @param {FromPage.TokenBias[]} logitBias
 */
export function writeText(buffers, slot, ids, nCounted, logitBias) {
  /** @param {string} name */
  const width = (name) => buffers.plan.tensors[name].shape[1];
  const seen = new Uint32Array(width("seen"));
  for (const id of ids) seen[id >>> 5] |= 1 << (id & 31);
  buffers.writeRow("seen", slot, seen);
  const counts = new Uint16Array(width("counts") * 2);
  for (const id of ids.slice(ids.length - nCounted))
    counts[id] = Math.min(counts[id] + 1, MAX_TIMES_WRITTEN);
  buffers.writeRow("counts", slot, counts);
  if (logitBias.length) buffers.writeRow("biases", slot, biasWords(logitBias));
}

/**
 * Pairs of id and bias by rising id; the bias as the bits of a float32.
 *
 * @param {FromPage.TokenBias[]} logitBias
 */
function biasWords(logitBias) {
  const words = new Uint32Array(2 * logitBias.length);
  const floats = new Float32Array(words.buffer);
  [...logitBias]
    .sort((a, b) => a.id - b.id)
    .forEach(({ id, bias }, i) => {
      words[2 * i] = id;
      floats[2 * i + 1] = bias;
    });
  return words;
}
