// Attention queries of the instrument and their cached answers.

import { spansUpTo } from "../../interventions/interventions.js";
import { changed } from "../../state.js";
import { measure } from "./measure.js";
import { entropies, placesOf, scoresOf } from "./scores.js";
import { runKey, sequenceOf } from "../shared/context.js";
import { askLatest, askNewest, askOnce, AnswerCache } from "../shared/answer-cache.js";

const MAX_BYTES = 96e6;
/**
 * Up to this many later tokens are recomputed automatically, and more if that takes up to `AUTO_MS`: a question
 * cannot be cancelled, so the next instrument waits for it.
 */
const AUTO_TOKENS = 32;
const AUTO_MS = 1000;
/** Time the focus must rest before the attention to it is queried. */
const REST_MS = 200;

/**
 * What was computed of answers, by answer.
 *
 * @type {WeakMap<FrameAnswer, Pick<AttentionNow, "places" | "scores" | "bits">>}
 */
const read = new WeakMap();
const fromCache = new AnswerCache(MAX_BYTES);
const toCache = new AnswerCache(MAX_BYTES / 4);
let restTimer = 0;
/** Time per token of the last `attention_to` query (ms). */
let tokenMs = Infinity;
/** Key of the token whose `attention_to` query is pending. */
let asking = "";
/** The failed `attention_to` query: {key, message}, or null. @type {{key: string, message: string} | null} */
let trouble = null;
/**
 * Scores averaged over several tokens, by segment: {scores, from, to}, {done, total} or {message}; `key`: the
 * `runKey` that they were measured with.
 *
 * @type {WeakMap<Segment, {key: string, scores: WideScores}>}
 */
const wides = new WeakMap();

/**
 * Return the attention of the focused token, or a promise of it:
 *   answer, segment, ids, texts, position, n    see `sequenceOf`; n tokens
 *   nLayers, nHeads, nKvHeads
 *   from, places, scores, bits   attention from the token, see look/attention/scores.js
 *   to                           attention to the token, or null
 *   info                         of the engine's answer
 *   run                          entropies the run itself measured at this token, by head, or null
 *   unread                       the run has not read this token, so that it measured nothing there
 *
 * @param {TokenFocus} context
 * @returns {AttentionNow | Promise<AttentionNow>}
 */
export function ask(context) {
  const { answer } = context;
  const own = sequenceOf(context);
  const { ids, position } = own;
  const texts = wordsOf(answer, own);
  const sequence = { ...own, ...shapeOf(context), answer, texts, n: ids.length };
  const key = keyOf(sequence);
  const kept = fromCache.get(key);
  if (kept) return withNumbers(sequence, kept);
  const { segment, n } = sequence;
  const question = questionFrom(segment, ids, position);
  const asked =
    position === n - 1
      ? askNewest("attention", question, segment, context.signal)
      : askLatest("attention", question);
  return asked.then((given) => withNumbers(sequence, fromCache.set(key, given)));
}

/**
 * @param {Segment} segment
 * @param {number[]} ids
 * @param {number} position
 * @returns {FromPage.AttentionFrom}
 */
const questionFrom = (segment, ids, position) => ({
  kind: "attention_from",
  ids: ids.slice(0, position + 1),
  position,
  ...spansUpTo(segment, position + 1),
});

/** @param {Pick<Sequence, "segment" | "position">} pick */
const keyOf = ({ segment, position }) => `${runKey(segment)} ${position}`;

/** @param {Focus} focus @returns {HeadCounts} */
const shapeOf = ({ hello: { model } }) => ({
  nLayers: model.n_layers,
  nHeads: model.n_heads,
  nKvHeads: model.n_kv_heads,
});

/**
 * Label of each token; one without text is named after its kind.
 *
 * @param {Answer} answer
 * @param {Sequence} sequence
 */
function wordsOf({ tokens }, { segment, texts }) {
  const { length } = segment.prompt;
  return texts.map((text, at) => {
    if (text !== "" || at < length) return text || "·";
    const { id, eos, candidates } = tokens[answerIndex(segment, at)];
    const own = candidates?.find((candidate) => candidate.id === id)?.text;
    return own || (eos ? "<end>" : "·");
  });
}

/** @param {AttentionSequence} sequence @param {FrameAnswer} answer @returns {AttentionNow} */
function withNumbers(sequence, answer) {
  const { ids, position } = sequence;
  const from = answer.arrays.weights;
  let numbers = read.get(answer);
  if (!numbers) {
    const places = placesOf(ids, position);
    numbers = { places, scores: scoresOf(from, places), bits: entropies(from) };
    read.set(answer, numbers);
  }
  const to = toCache.get(keyOf(sequence))?.arrays.weights ?? null;
  const run = ofRun(sequence);
  return { ...sequence, ...numbers, from, to, info: answer.info, run, unread: isUnread(sequence) };
}

/**
 * Whether the token was drawn last: only the step that draws another one reads it.
 *
 * @param {AttentionSequence} attentionSequence
 */
const isUnread = ({ segment, position, answer }) =>
  position >= segment.prompt.length && !answer.tokens[answerIndex(segment, position) + 1];

/** @param {Segment} segment @param {number} position */
const answerIndex = (segment, position) => segment.base + position - segment.prompt.length;

/**
 * Entropies the run measured at this token, in the step that sampled the next one.
 *
 * @param {AttentionSequence} attentionSequence
 */
function ofRun({ segment, position, answer }) {
  const { length } = segment.prompt;
  const stats =
    position < length
      ? segment.promptStats[position]
      : answer.tokens[answerIndex(segment, position) + 1]?.stats;
  const own = stats?.position === position && !stats.summary;
  return own ? stats.layers.map(({ entropy }) => entropy) : null;
}

// ---- attention to the token --------------------------------------------------------------------

/**
 * State of the attention to the focused token: `left`, number of later tokens not queried yet;
 * `message`, why the query failed; `soon`, whether they are or will be queried automatically.
 *
 * @param {AttentionNow} sequence
 */
export function backOf(sequence) {
  const { segment, position, n, to } = sequence;
  const left = n - position - Math.max(1, to?.shape[0] ?? 0);
  const message = trouble?.key === keyOf(sequence) ? trouble.message : "";
  const isShort = left <= Math.max(AUTO_TOKENS, AUTO_MS / tokenMs);
  const soon = asking === keyOf(sequence) || (!message && !segment.running && isShort);
  return { left, message, soon };
}

/**
 * Query it once the focus rests, if few tokens are recomputed and no run is slowed.
 *
 * @param {AttentionNow} sequence
 */
export function askBackSoon(sequence) {
  clearTimeout(restTimer);
  const { left, soon } = backOf(sequence);
  if (left && soon && asking !== keyOf(sequence))
    restTimer = setTimeout(() => askBack(sequence), REST_MS);
}

/** Query the attention to the token now. @param {AttentionNow} sequence */
export async function askBack(sequence) {
  const { ids, position, segment } = sequence;
  /** @type {FromPage.AttentionTo} */
  const question = { kind: "attention_to", ids, position, ...spansUpTo(segment, ids.length) };
  const key = keyOf(sequence);
  asking = key;
  trouble = null;
  changed("look");
  try {
    const found = toCache.set(key, await askLatest("attention to", question));
    tokenMs = (found.info.ms ?? Infinity) / (ids.length - position);
  } catch (error) {
    trouble = { key, message: /** @type {Problem} */ (error).message };
  }
  if (asking === key) asking = "";
  changed("look");
}

// ---- mean over several tokens ------------------------------------------------------------------

/** @type {object | null} */
let measuring = null;

/** Scores averaged over several tokens of this run; see `wides`. @param {Pick<Sequence, "segment">} pick */
export function wide({ segment }) {
  const known = wides.get(segment);
  return known?.key === runKey(segment) ? known.scores : null;
}

/** Allow another attempt after a failure. @param {Pick<Sequence, "segment">} pick */
export function retryWide({ segment }) {
  if (wide({ segment })?.message) wides.delete(segment);
}

/** Measure the mean scores, once per run. @param {Sequence} sequence */
export async function measureWide({ segment, ids }) {
  if (wide({ segment })) return;
  const mine = (measuring = {});
  const run = runKey(segment);
  /** @type {{key: string, scores: WideScores} | undefined} */
  let own;
  /** @param {WideScores} scores */
  const put = (scores) => {
    wides.set(segment, (own = { key: run, scores }));
    changed("look");
  };
  const drop = () => {
    if (wides.get(segment) !== own) return;
    wides.delete(segment);
    changed("look"); // the view may be open again, and waits for it
  };
  /** @param {number} position */
  const one = async (position) => {
    const key = keyOf({ segment, position });
    const asked = () => askOnce(questionFrom(segment, ids, position));
    return fromCache.get(key) ?? fromCache.set(key, await asked());
  };
  /** @param {number} done @param {number} total */
  const onProgress = (done, total) => {
    const goesOn = measuring === mine && runKey(segment) === run;
    if (goesOn) put({ done, total });
    return goesOn;
  };
  try {
    const found = await measure(ids, one, onProgress);
    if (found) put(found);
    else drop();
  } catch (error) {
    if (measuring === mine) put({ message: /** @type {Problem} */ (error).message });
    else drop();
  }
}

/** Stop all queries when the panel closes. */
export function stopAsking() {
  clearTimeout(restTimer);
  measuring = null;
}
