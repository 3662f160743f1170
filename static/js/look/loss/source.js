// Texts of the loss instrument, and the inspection that scores them.

import { count } from "../../ui/format.js";
import { latest, tokenize } from "../../net/inspect.js";
import { spansUpTo } from "../../interventions/interventions.js";
import { runKey, sequenceOf, whyOtherModel, whySlid } from "../shared/context.js";
import { askLatest, AnswerCache } from "../shared/answer-cache.js";
import { withLosses } from "./reading.js";

/** @typedef {Pick<Reading, "from" | "segment" | "cut">} Base */

/** Number of candidates requested: one more than shown, as the token itself may be among them. */
const TOP = 6;
const MAX_CACHE_BYTES = 1 << 20;
/** Tokens of one question: about two seconds without a GPU, after which it may be stopped. */
const PIECE = 64;
const cache = new AnswerCache(MAX_CACHE_BYTES);
/**
 * Reading of each answer, so that an unchanged answer gives the same object.
 *
 * @type {WeakMap<FrameAnswer, Reading>}
 */
const readings = new WeakMap();

/** Why a text cannot be read; shown beside the text field. */
export class Unreadable extends Error {}

/** The reading is no longer waited for; another one follows. */
export class Unwanted extends Error {}

/** The reading of this text was stopped. */
export class Stopped extends Unreadable {}

/**
 * `onProgress(done, total)` is called before each question about a text that takes several; `isWanted`: is the
 * reading still waited for?
 *
 * @typedef {{onProgress: (done: number, total: number) => void, isWanted: () => boolean}} Task
 */

/** Keys of the text that was read last, and of the one whose reading was stopped. */
let current = "";
let stopped = "";

/** End the reading with `Stopped` after the question that is pending. */
export const stopReading = () => (stopped = current);
export const continueReading = () => (stopped = "");

/**
 * Read the prompt and the answer in the core sample, up to its newest token.
 *
 * @param {Focus} context
 * @param {Task} task
 * @returns {Promise<Reading>}
 */
export async function readAnswer(context, task) {
  const { answer, hello, token } = context;
  const why = whyOtherModel(token?.segment ?? answer?.promptSegment) || whySlid(answer?.tokens.at(-1));
  if (why) throw new Unreadable(why); // beside the choice of another text
  const { segment, ids, texts } = sequenceOf(context);
  const from = segment.prompt.length;
  const written = answer?.tokens.slice(segment.base, segment.base + segment.nTokens) ?? [];
  const plain = texts.map((text, i) => ({
    id: ids[i],
    text,
    ...(i < from ? UNSIZED : sizeOf(text)),
    eos: written[i - from]?.eos ?? false,
  }));
  const base = { from, segment, cut: null };
  if (segment.running) {
    const tokens = asWritten(plain, written, from);
    return { ...base, tokens, texts: {}, info: null };
  }
  if (ids.length < 2) throw new Unreadable("A single token has no loss: it has no context.");
  const key = `${runKey(segment)} ${ids.length}`;
  const found = await ask(key, ids, { ...task, hello, spans: (n) => spansUpTo(segment, n) });
  return once(found, () => reading(plain, found, base));
}

/** @param {FrameAnswer} found @param {() => Reading} make */
function once(found, make) {
  const known = readings.get(found) ?? make();
  readings.set(found, known);
  return known;
}

/** @param {PlainToken[]} plain @param {FrameAnswer} found @param {Base} base @returns {Reading} */
const reading = (plain, found, base) => ({
  ...base,
  tokens: withLosses(plain, found),
  texts: found.info.pieces ?? {},
  info: found.info,
});

/**
 * An active run is not interrupted: its own log-probabilities give the losses.
 *
 * @param {PlainToken[]} plain
 * @param {Token[]} written
 * @param {number} from
 * @returns {ScoredToken[]}
 */
function asWritten(plain, written, from) {
  return plain.map((token, i) => {
    const loss = i < from ? null : -written[i - from].logprob;
    return { ...token, loss, rank: null, bits: null, top: null };
  });
}

/**
 * Read the user's text, tokenized as a prompt.
 *
 * @param {string} text
 * @param {Focus} focus
 * @param {Task} task
 * @returns {Promise<Reading>}
 */
export async function readText(text, { hello }, task) {
  const { limits, model } = hello;
  const prompt = text.replace(/\r\n?/g, "\n");
  const size = new TextEncoder().encode(JSON.stringify(prompt)).length;
  if (size > limits.message_bytes - 200)
    throw new Unreadable(
      `This text has ${count(size)} bytes, more than the ${count(limits.message_bytes)} of a ` +
        "request. Shorten it.",
    );
  const { tokens: all } = await latest("loss-text", { prompt }, tokenize);
  const tokens = all.slice(0, limits.context);
  if (tokens.length < 2)
    throw new Unreadable("A single token has no loss: it has no context. Type more.");
  const plain = tokens.map((token) => ({ ...token, ...sizeOfBytes(token.bytes) }));
  const ids = plain.map(({ id }) => id);
  const found = await ask(`${model.name} ${model.dtype} ${ids}`, ids, { ...task, hello, spans: () => ({}) });
  const cut = all.length > tokens.length ? all.length : null;
  return once(found, () => reading(plain, found, { from: 0, segment: null, cut }));
}

/**
 * Ask about a text piece by piece: the engine keeps the keys and values of those before. `spans(n)`: interventions
 * on the first n tokens.
 *
 * @param {string} key
 * @param {number[]} ids
 * @param {Task & {hello: ToPage.Hello, spans: (n: number) => Pick<FromPage.Losses, "reached">}} task
 */
async function ask(key, ids, { hello, spans, onProgress, isWanted }) {
  const total = ids.length - 1;
  const top = Math.min(TOP, hello.model.vocab_size);
  current = key;
  const read = cache.get(key);
  if (read) return read;
  /** @type {FrameAnswer[]} */
  const pieces = [];
  for (let first = 0; first < total; first += PIECE) {
    const part = `${key} ${first}`;
    const known = cache.get(part);
    if (known) {
      pieces.push(known);
      continue;
    }
    if (stopped === key) throw new Stopped(`Stopped after ${count(first)} of ${count(total)} tokens.`);
    if (!isWanted()) throw new Unwanted();
    if (total > PIECE) onProgress(first, total);
    const n = Math.min(first + PIECE, total) + 1;
    /** @type {FromPage.Losses} */
    const question = { kind: "losses", ids: ids.slice(0, n), first, top, ...spans(n) };
    pieces.push(cache.set(part, await askLatest("loss", question)));
  }
  return cache.set(key, join(pieces));
}

/** @param {FrameAnswer[]} pieces @returns {FrameAnswer} */
function join(pieces) {
  const [one] = pieces;
  if (pieces.length === 1) return one;
  const arrays = Object.keys(one.arrays).map((name) => {
    const all = pieces.map((piece) => piece.arrays[name]);
    const numbers = all.flatMap(({ values }) => [...values]);
    const values = all[0].values instanceof Uint32Array ? new Uint32Array(numbers) : new Float32Array(numbers);
    return [name, { shape: [all.reduce((n, { shape }) => n + shape[0], 0), ...all[0].shape.slice(1)], values }];
  });
  const ms = pieces.reduce((sum, { info }) => sum + (info.ms ?? 0), 0) || undefined;
  const texts = Object.assign({}, ...pieces.map(({ info }) => info.pieces));
  return { ...one, info: { ...one.info, ms, pieces: texts }, arrays: Object.fromEntries(arrays) };
}

/** Sizes of prompt tokens are unknown: special ones have a name but add no text. */
const UNSIZED = { nBytes: null, nCharacters: null };

/** Size of a text in UTF-8 bytes and characters. @param {string} text */
const sizeOf = (text) => ({
  nBytes: new TextEncoder().encode(text).length,
  nCharacters: [...text].length,
});

/**
 * Size of a token given as hexadecimal bytes; a split character counts where it starts.
 *
 * @param {string} bytes
 */
function sizeOfBytes(bytes) {
  const all = bytes.match(/../g) ?? [];
  const begun = all.filter((byte) => (parseInt(byte, 16) & 0xc0) !== 0x80);
  return { nBytes: all.length, nCharacters: begun.length };
}
