// A sentence read by the loaded decoder and by the encoder beside it: who may attend to whom, and how much each
// does.

import { ask } from "../../net/ask.js";
import { tokenize } from "../../net/inspect.js";
import { askOnce } from "../shared/answer-cache.js";

/**
 * Attention of a model from each token of a text to each. `weights`: [layer][from · n + to], mean over the
 * heads; `ms`: time of the engine for all of it.
 *
 * @typedef {{kind: "decoder" | "encoder", model: string, tokens: string[], weights: Float32Array[], nHeads: number,
 *   ms: number}} Reading
 */

/** Most tokens of the decoder; the server takes as many of the encoder. */
export const MAX_TOKENS = 64;

/**
 * May token `from` attend to token `to`? A weight is 0 where the mask hides a token, and nowhere else.
 *
 * @param {Reading} reading
 * @param {number} from
 * @param {number} to
 */
export const mayAttend = ({ weights, tokens }, from, to) => weights.some((layer) => layer[from * tokens.length + to] > 0);

/** Number of pairs of which one may attend to the other. @param {Reading} reading */
export function nPairs(reading) {
  const all = reading.tokens.map((_, from) => reading.tokens.filter((_, to) => mayAttend(reading, from, to)).length);
  return all.reduce((sum, n) => sum + n, 0);
}

/** Weights of one layer; null: mean of all. @param {Reading} reading @param {number | null} layer */
export function weightsOf({ weights }, layer) {
  if (layer !== null) return weights[layer];
  return weights[0].map((_, i) => weights.reduce((sum, each) => sum + each[i], 0) / weights.length);
}

/**
 * Read a text in the loaded model: token by token, as it would write it.
 *
 * @param {string} text
 * @param {ToPage.Hello} hello
 * @param {AbortSignal} signal
 * @returns {Promise<Reading>}
 */
export async function readDecoder(text, { model }, signal) {
  const { plain } = await tokenize({ text });
  const pieces = plain.tokens.slice(0, MAX_TOKENS);
  const ids = pieces.map(({ id }) => id);
  const n = ids.length;
  const weights = Array.from({ length: model.n_layers }, () => new Float32Array(n * n));
  let ms = 0;
  for (let position = 0; position < n; position += 1) {
    signal.throwIfAborted();
    const { arrays, info } = await askOnce({ kind: "attention_from", ids: ids.slice(0, position + 1), position });
    ms += info.ms ?? 0;
    addMeans(weights, arrays.weights, position, n);
  }
  return { kind: "decoder", model: model.name, tokens: pieces.map((piece) => piece.text), weights, nHeads: model.n_heads, ms };
}

/** Add the mean over the heads of the attention from one token. @param {Float32Array[]} weights @param {FrameArray} from @param {number} position @param {number} n */
function addMeans(weights, { shape: [, nHeads, nKeys], values }, position, n) {
  weights.forEach((layer, i) => {
    for (let head = 0; head < nHeads; head += 1)
      for (let key = 0; key < nKeys; key += 1)
        layer[position * n + key] += values[(i * nHeads + head) * nKeys + key] / nHeads;
  });
}

/** Read a text in the embedding model. @param {string} text @returns {Promise<Reading>} */
export async function readEncoder(text) {
  /** @type {Answers.EncoderAttentionAnswer} */
  const found = await ask("api/encoder-attention", { method: "POST", body: { text } });
  return {
    kind: "encoder",
    model: found.model,
    tokens: found.tokens.map(({ piece }) => piece),
    weights: found.weights.map((layer) => Float32Array.from(layer.flat())),
    nHeads: found.n_heads,
    ms: found.ms,
  };
}
