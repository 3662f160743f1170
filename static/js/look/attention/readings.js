// Texts read by the loaded decoder, by an encoder and by an encoder-decoder: who may attend to whom, and how much
// each does.

import { ask } from "../../net/ask.js";
import { tokenize } from "../../net/inspect.js";
import { askOnce } from "../shared/answer-cache.js";

/**
 * Attention of a model from each of `tokens` to each of `keys`, which are the same but in cross-attention.
 * `weights`: [layer][from · keys.length + to], of one head or (`head` null) mean over the heads; `ms`: time of the
 * engine for all of it.
 *
 * @typedef {{kind: "decoder" | "encoder" | "cross", model: string, tokens: string[], keys: string[],
 *   weights: Float32Array[], nHeads: number, head: number | null, ms: number}} Reading
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
export const mayAttend = ({ weights, keys }, from, to) => weights.some((layer) => layer[from * keys.length + to] > 0);

/** Number of pairs of which one may attend to the other. @param {Reading} reading */
export function nPairs(reading) {
  const all = reading.tokens.map((_, from) => reading.keys.filter((_, to) => mayAttend(reading, from, to)).length);
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
  const tokens = pieces.map((piece) => piece.text);
  return { kind: "decoder", model: model.name, tokens, keys: tokens, weights, nHeads: model.n_heads, head: null, ms };
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
  const tokens = found.tokens.map(({ piece }) => piece);
  const weights = found.weights.map((layer) => Float32Array.from(layer.flat()));
  return { kind: "encoder", model: found.model, tokens, keys: tokens, weights, nHeads: found.n_heads, head: null, ms: found.ms };
}

/**
 * Ask the encoder-decoder for what it writes; `maxTokens`: no more, null: as many as there is room for.
 *
 * @param {string} text
 * @param {number | null} maxTokens
 * @returns {Promise<Answers.Seq2SeqAnswer>}
 */
export const writeText = (text, maxTokens) =>
  ask("api/seq2seq", { method: "POST", body: { text, ...(maxTokens && { max_tokens: maxTokens }) } });

/**
 * The attention of an encoder-decoder: of the encoder, of the decoder to the tokens it reads, and of these to the
 * text. The rows of the last are named after what each wrote. `head`: of cross-attention, null for the mean.
 *
 * @param {Answers.Seq2SeqAnswer} answer
 * @param {number} nHeads
 * @param {number | null} head
 * @returns {{encoder: Reading, decoder: Reading, cross: Reading}}
 */
export function readingsOf(answer, nHeads, head) {
  const source = answer.tokens.map(({ piece }) => piece);
  const written = answer.written.map(({ piece }) => piece);
  const read = [answer.start.piece, ...written.slice(0, -1)];
  const stepMs = answer.written.reduce((sum, { ms }) => sum + ms, 0);
  const common = { model: answer.model, nHeads };
  const layers = (/** @type {number[][][]} */ all) => all.map((layer) => Float32Array.from(layer.flat()));
  const cross = answer.cross.map((heads) =>
    head === null ? meanOf(heads.map((each) => each.flat())) : Float32Array.from(heads[head].flat()),
  );
  return {
    encoder: { ...common, kind: "encoder", tokens: source, keys: source, weights: layers(answer.encoder), head: null, ms: answer.encode_ms },
    decoder: { ...common, kind: "decoder", tokens: read, keys: read, weights: layers(answer.decoder), head: null, ms: stepMs },
    cross: { ...common, kind: "cross", tokens: written, keys: source, weights: cross, head, ms: stepMs },
  };
}

/** Mean of lists of numbers. @param {number[][]} lists */
const meanOf = (lists) =>
  Float32Array.from(lists[0], (_, i) => lists.reduce((sum, each) => sum + each[i], 0) / lists.length);
