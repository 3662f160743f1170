// The questions behind the attention instrument, and their answers while they are kept.

import { asTheyRan } from "../reach.js";
import { changed } from "../state.js";
import { measure } from "./attentionmeasure.js";
import { entropies, placesOf, scoresOf } from "./attentionscores.js";
import { sequenceOf } from "./context.js";
import { askLatest, askNewest, askOnce, Kept } from "./kept.js";

const MOST_BYTES = 96e6;
/** Up to so many tokens behind the focused one are computed again without being asked to. */
const AUTO_TOKENS = 256;
/** The focus rests so long before it is asked what looked at it. */
const REST_MS = 200;

const froms = new Kept(MOST_BYTES);
const tos = new Kept(MOST_BYTES / 4);
let restTimer = 0;
/** Under way: what looked at the token of this key. */
let asking = "";
/** What looked at the token: {key, message} when that could not be asked. */
let trouble = null;
/** Scores over several tokens, by segment: {scores, from, to}, {done, total} or {message}. */
const wides = new WeakMap();

/**
 * What the focused token looked at, or a promise of it:
 *   answer, segment, ids, texts, position, n    see `sequenceOf`; n tokens
 *   nLayers, nHeads, nKvHeads
 *   from, places, scores, bits          see attentionscores.js
 *   to                                  what looked at it, or null
 *   info                                of the engine's answer
 *   run                                 the run's own entropies at this token, by head, or null
 */
export function ask(context) {
  const { answer } = context;
  const sequence = { ...sequenceOf(context), ...shapeOf(context), answer };
  sequence.texts = wordsOf(answer, sequence);
  sequence.n = sequence.ids.length;
  const { ids, position } = sequence;
  const key = keyOf(sequence);
  const kept = froms.get(key);
  if (kept) return withNumbers(sequence, kept);
  const { segment, n } = sequence;
  const question = questionFrom(segment, ids, position);
  const asked =
    position === n - 1
      ? askNewest("attention", question, segment, context.signal)
      : askLatest("attention", question);
  return asked.then((given) => withNumbers(sequence, froms.set(key, given)));
}

const questionFrom = (segment, ids, position) => ({
  kind: "attention_from",
  ids: ids.slice(0, position + 1),
  position,
  ...asTheyRan(segment, position + 1),
});

const keyOf = ({ segment, position }) => `${segment.id} ${position}`;

const shapeOf = ({ hello: { model } }) => ({
  nLayers: model.n_layers,
  nHeads: model.n_heads,
  nKvHeads: model.n_kv_heads,
});

/** What stands for each token: one that adds no text is named after what it is. */
function wordsOf({ tokens }, { segment, texts }) {
  const { length } = segment.prompt;
  return texts.map((text, at) => {
    if (text !== "" || at < length) return text || "·";
    const { id, eos, candidates } = tokens[segment.base + at - length];
    const own = candidates?.find((candidate) => candidate.id === id)?.text;
    return own || (eos ? "<end>" : "·");
  });
}

function withNumbers(sequence, answer) {
  const { ids, position } = sequence;
  const from = answer.arrays.weights;
  answer.read ??= (() => {
    const places = placesOf(ids, position);
    return { places, scores: scoresOf(from, places), bits: entropies(from) };
  })();
  const to = tos.get(keyOf(sequence))?.arrays.weights ?? null;
  return { ...sequence, ...answer.read, from, to, info: answer.info, run: ofRun(sequence) };
}

/** The entropies that the run measured at this token, in the step that chose the next one. */
function ofRun({ segment, position, answer }) {
  const { length } = segment.prompt;
  const stats =
    position < length
      ? segment.promptStats[position]
      : answer.tokens[segment.base + position - length + 1]?.stats;
  return stats?.position === position && !stats.summary ? stats.layers.map(({ entropy }) => entropy) : null;
}

// ---- what looked at it -----------------------------------------------------------------------

/**
 * How many tokens behind the focused one are not asked yet; `message`: why not, when that failed;
 * `soon`: they are or will be without being asked to.
 */
export function backOf(sequence) {
  const { segment, position, n, to } = sequence;
  const left = n - position - Math.max(1, to?.shape[0] ?? 0);
  const message = trouble?.key === keyOf(sequence) ? trouble.message : "";
  const soon = asking === keyOf(sequence) || (!message && !segment.running && left <= AUTO_TOKENS);
  return { left, message, soon };
}

/** Ask it once the focus rests, if few tokens are computed again and no run is slowed by it. */
export function lookedAtBy(sequence) {
  clearTimeout(restTimer);
  const { left, soon } = backOf(sequence);
  if (left && soon && asking !== keyOf(sequence))
    restTimer = setTimeout(() => askBack(sequence), REST_MS);
}

/** Ask it now. */
export async function askBack(sequence) {
  const { ids, position, segment } = sequence;
  const question = { kind: "attention_to", ids, position, ...asTheyRan(segment, ids.length) };
  const key = keyOf(sequence);
  asking = key;
  trouble = null;
  changed("look");
  try {
    tos.set(key, await askLatest("attention to", question));
  } catch ({ message }) {
    trouble = { key, message };
  }
  if (asking === key) asking = "";
  changed("look");
}

// ---- over several tokens ---------------------------------------------------------------------

let measuring = null;

/** What is known of the heads over several tokens of this run; see `wides`. */
export const wide = ({ segment }) => wides.get(segment) ?? null;

/** What went wrong may be tried again. */
export function retryWide({ segment }) {
  if (wide({ segment })?.message) wides.delete(segment);
}

/** Measure it, once for a run. */
export async function measureWide({ segment, ids }) {
  if (wides.has(segment)) return;
  const mine = (measuring = {});
  const put = (known) => {
    wides.set(segment, known);
    changed("look");
  };
  const one = async (position) => {
    const key = keyOf({ segment, position });
    const asked = () => askOnce(questionFrom(segment, ids, position));
    return froms.get(key) ?? froms.set(key, await asked());
  };
  const told = (done, total) => {
    if (measuring === mine) put({ done, total });
    return measuring === mine;
  };
  try {
    const found = await measure(ids, one, told);
    if (found) put(found);
    else wides.delete(segment);
  } catch ({ message }) {
    if (measuring === mine) put({ message });
    else wides.delete(segment);
  }
}

/** The panel is closed: ask no more. */
export function stopAsking() {
  clearTimeout(restTimer);
  measuring = null;
}
