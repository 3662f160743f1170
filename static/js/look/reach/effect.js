// Effect of interventions on one token: two logit-lens queries over the same tokens, with and
// without them.

import { duration, ordinal, percent, tokenLabel } from "../../ui/format.js";
import {
  activeAt,
  isEmpty,
  sameInterventions,
  spansFromStart,
  withSpanFrom,
} from "../../interventions/interventions.js";
import { toWire } from "../../interventions/intervention-wire.js";
import { changed, ready, state } from "../../state.js";
import { view } from "../../view.js";
import { runKey, sequenceOf, whyOtherModel } from "../shared/context.js";
import { askLatest, AnswerCache } from "../shared/answer-cache.js";
import { ofStage } from "../lens/reading.js";

/** Number of candidates requested; fewer are shown. */
const TOP = 40;
const MAX_BYTES = 4e6;
const cache = new AnswerCache(MAX_BYTES);
/** The failed query: {key, message}, or null. @type {{key: string, message: string} | null} */
let trouble = null;

/**
 * Return the queries for the focused token, or {why} there are none:
 *   key      of both answers
 *   did      true: effect of interventions active in the run; false: of the current setting
 *   without  {key, question}; `with` likewise
 *   name     label of the token at that place; `label`, of the one before
 *
 * @param {Focus} context
 * @returns {Effect}
 */
export function effectOf(context) {
  const why = whyNot(context);
  if (why) return { why };
  const { answer, token, index } = context;
  if (!answer || !token || index === null) return { why: NO_ANSWER };
  const { segment, ids, texts, position } = sequenceOf({ answer, token, index });
  const at = token.prompt !== undefined ? position : position - 1;
  const chosen = ids[at + 1];
  if (chosen === undefined) return { why: "No token follows this one." };
  const passes = beforeAndAfter(segment, at);
  if (!passes) return { why: noInterventions(context.hello.model) };
  const top = Math.min(TOP, context.hello.model.vocab_size);
  /** @type {FromPage.LogitLens} */
  const question = { kind: "logit_lens", ids: ids.slice(0, at + 1), position: at, chosen, top };
  /** @param {EffectAsked} reached */
  const ask = (/** @type {FromPage.InterventionSpan[]} */ reached) => ({
    key: `${runKey(segment)} ${at} ${JSON.stringify(reached)}`,
    question: reached.length ? { ...question, reached } : question,
  });
  const { did } = passes;
  const [without, now] = [ask(passes.before), ask(passes.after)];
  const name = wordOf(answer.tokens[index], texts[at + 1]);
  const key = `${without.key} ${now.key}`;
  const label = tokenLabel(texts[at], "·");
  return { key, did, without, with: now, chosen, name, label };
}

/** @param {ToPage.PageModelInfo} model */
const noInterventions = ({ n_experts: n }) =>
  `No interventions. Switch off a head ${n ? "or an expert " : ""}to see the effect on this token.`;
const NO_ANSWER = "No answer yet. Interventions will act on the next one, including its prompt.";
const WRITING = "Generating. Select a token to see the effect on it.";

/** @param {Focus} focus */
function whyNot({ answer, token }) {
  if (!answer?.segment?.accepted) return NO_ANSWER;
  if (state.replay) return "This needs the engine, and a replay has none.";
  if (!ready()) return "The engine is not ready. Continues automatically once it is.";
  if (!token) return "No token yet. Prefill is running.";
  const why = whyOtherModel(token.segment ?? answer.promptSegment);
  if (why) return why;
  return answer.running && view.pinned === null && view.hover === null ? WRITING : "";
}

/**
 * Return `reached` of both queries; `before` is null if there is nothing to compare.
 *
 * @param {Segment} segment
 * @param {number} at
 */
function beforeAndAfter({ interventionSpans, prompt }, at) {
  const ran = activeAt(interventionSpans, at);
  const set = toWire(state.interventions.setting);
  const asRan = upTo(interventionSpans, at);
  if (sameInterventions(ran, set))
    return isEmpty(ran) ? null : { did: true, before: [], after: asRan };
  // A patch acts when its token is computed, so the text is recomputed with it from the start.
  const patched = !sameInterventions({ patch: ran.patch }, { patch: set.patch });
  const now = patched
    ? spansFromStart(set, prompt.length)
    : withSpanFrom(interventionSpans, at, set);
  return { did: false, before: asRan, after: upTo(now, at) };
}

/** @param {FromPage.InterventionSpan[]} reached @param {number} at */
const upTo = (reached, at) => reached.filter(({ first }) => first <= at);

/** @param {Token | undefined} token @param {string} text */
function wordOf(token, text) {
  const own = token?.candidates?.find(({ id }) => id === token.id)?.text;
  return token?.eos ? "end of text" : tokenLabel(text || own || "", "part of a character");
}

/**
 * Return the answers {without, with}; null while pending.
 *
 * @param {EffectAsked} effect
 * @returns {Both<FrameAnswer> | {trouble: string} | null}
 */
export function measured(effect) {
  const [without, now] = [cache.get(effect.without.key), cache.get(effect.with.key)];
  if (without && now) return { without, with: now };
  if (trouble?.key === effect.key) return { trouble: trouble.message };
  ask(effect);
  return null;
}

let asking = "";

/** @param {EffectAsked} effect */
async function ask(effect) {
  if (asking === effect.key) return;
  asking = effect.key;
  try {
    for (const side of [effect.without, effect.with])
      if (!cache.get(side.key)) cache.set(side.key, await askLatest("reach", side.question));
    trouble = null;
  } catch (error) {
    const { code, message } = /** @type {Problem} */ (error);
    trouble = code === "lost" ? null : { key: effect.key, message };
  }
  if (asking === effect.key) asking = "";
  changed("look");
}

// ---- results -----------------------------------------------------------------------------------

/**
 * Return the results of both answers:
 *   byLayer  {without, with}: probability of the chosen token after each stage, embedding first
 *   tokens   the most likely of both: {id, text, without, with}; null where not listed
 *   entropy  {without, with} in bits; rank {without, with} of the chosen token
 *
 * @param {EffectAsked} effect
 * @param {Both<FrameAnswer>} both
 * @returns {EffectFound}
 */
export function readEffect({ chosen }, both) {
  /**
   * @template T
   * @param {(answer: FrameAnswer) => T} pick
   */
  const side = (pick) => ({ without: pick(both.without), with: pick(both.with) });
  const last = (/** @type {FrameArray} */ { values }) => values.at(-1) ?? NaN;
  const shares = side(sharesOf);
  const ids = new Set([...shares.without.keys(), ...shares.with.keys(), chosen]);
  const pieces = { ...both.without.info.pieces, ...both.with.info.pieces };
  const probability = side(({ arrays }) => last(arrays.probability));
  /** @param {number} id @param {"without" | "with"} way */
  const shareOf = (id, way) => shares[way].get(id) ?? (id === chosen ? probability[way] : null);
  const tokens = [...ids].map((id) => ({
    id,
    text: pieces[id] ?? "",
    without: shareOf(id, "without"),
    with: shareOf(id, "with"),
  }));
  /** @param {EffectFound["tokens"][number]} token */
  const size = (token) => Math.max(token.without ?? 0, token.with ?? 0);
  return {
    byLayer: side(({ arrays }) => arrays.probability.values),
    tokens: tokens.sort((a, b) => size(b) - size(a)),
    entropy: side(({ arrays }) => last(arrays.entropy)),
    rank: side(({ arrays }) => last(arrays.rank)),
  };
}

/** @param {FrameAnswer} answer */
function sharesOf({ arrays }) {
  const stage = arrays.rank.shape[0] - 1;
  const shares = ofStage(arrays.probabilities, stage);
  return new Map([...ofStage(arrays.ids, stage)].map((id, i) => [id, shares[i]]));
}

/** Describe where the numbers come from. @param {EffectAsked} effect @param {Both<FrameAnswer>} answers */
export function sourceOf({ did }, { without, with: now }) {
  const ms = (without.info.ms ?? 0) + (now.info.ms ?? 0);
  const time = ms ? ` in ${duration(ms)}` : "";
  const other = did ? "without interventions" : "with the current ones from this token on";
  const source = `Two passes over the same tokens${time}: as run, and ${other}`;
  return `${source}; before temperature and filters.`;
}

/** @param {EffectAsked} effect */
export const wayNames = ({ did }) =>
  did ? ["without", "as run"] : ["as run", "with current ones"];

/** "“sad” 2.1 → 37.0 %, 9th → 1st choice". @param {EffectAsked} effect @param {EffectFound} found */
export function inWords({ name, chosen }, { tokens, rank }) {
  const own = tokens.find(({ id }) => id === chosen);
  const [before, now] = [ordinal(rank.without), ordinal(rank.with)];
  const choice = before === now ? `${now} choice both ways` : `${before} → ${now} choice`;
  return `“${name}” ${percent(own?.without ?? NaN)} → ${percent(own?.with ?? NaN)} %, ${choice}`;
}
