// What a change inside does to one token: the logit lens is asked twice about the same tokens, as
// they ran and the other way.

import { duration, ordinal, percent, tokenLabel } from "../format.js";
import { atStart, changedFrom, inForce, isNothing, same } from "../reach.js";
import { wireOf } from "../reachsetting.js";
import { changed, ready, state } from "../state.js";
import { view } from "../view.js";
import { sequenceOf } from "./context.js";
import { askLatest, Kept } from "./kept.js";
import { ofStage } from "./lensreading.js";

/** So many of the most likely tokens are asked for; fewer are shown. */
const TOP = 40;
const MOST_BYTES = 4e6;
const kept = new Kept(MOST_BYTES);
/** What went wrong with the question of this key. */
let trouble = null;

/**
 * What is to be asked about the focused token, or {why} nothing is:
 *   key      of both answers
 *   did      true: of what acted in the run; false: of what is set now and would act from it on
 *   without  {key, question}, `with` too
 *   name     of the token that was written there; `label` of the one before
 */
export function effectOf(context) {
  const why = whyNot(context);
  if (why) return { why };
  const { answer, token, index } = context;
  const { segment, ids, texts, position } = sequenceOf({ answer, token, index });
  const at = token.prompt ? position : position - 1;
  const chosen = ids[at + 1];
  if (chosen === undefined) return { why: "Nothing was written after this token." };
  const { did, before, after } = bothWays(segment, at);
  if (!before) return { why: NOTHING_SET };
  const top = Math.min(TOP, context.hello.model.vocab_size);
  const question = { kind: "logit_lens", ids: ids.slice(0, at + 1), position: at, chosen, top };
  const ask = (reached) => ({
    key: `${segment.id} ${at} ${JSON.stringify(reached)}`,
    question: reached.length ? { ...question, reached } : question,
  });
  const [without, now] = [ask(before), ask(after)];
  const name = wordOf(answer.tokens[index], texts[at + 1]);
  const key = `${without.key} ${now.key}`;
  const label = tokenLabel(texts[at], "·");
  return { key, did, without, with: now, chosen, name, label };
}

const NOTHING_SET =
  "Nothing is changed inside. Switch a head off, and what that does to this token is asked.";
const NOTHING_RUN =
  "Nothing is written yet. What is set acts on the next answer, from its prompt on.";
const WRITING =
  "The text is being written. Choose one of its tokens, and what the changes did to it is asked.";

function whyNot({ answer, token }) {
  if (!answer?.segment?.accepted) return NOTHING_RUN;
  if (state.replay)
    return "The engine would have to compute this, and a replay is shown without one.";
  if (!ready()) return "The engine is not ready. This goes on by itself when it is.";
  if (!token) return "No token yet. The prompt is being read.";
  return answer.running && view.pinned === null && view.hover === null ? WRITING : "";
}

/** `reached` of both questions; `before` null when there is nothing to compare. */
function bothWays({ reached, prompt }, at) {
  const ran = inForce(reached, at);
  const set = wireOf(state.reach.setting);
  const asRan = upTo(reached, at);
  if (same(ran, set))
    return isNothing(ran) ? { before: null } : { did: true, before: [], after: asRan };
  // A patch acts where its token is computed, so the text is read with it from the start.
  const patched = !same({ patch: ran.patch }, { patch: set.patch });
  const now = patched ? atStart(set, prompt.length) : changedFrom(reached, at, set);
  return { did: false, before: asRan, after: upTo(now, at) };
}

const upTo = (reached, at) => reached.filter(({ first }) => first <= at);

function wordOf(token, text) {
  const own = token?.candidates?.find(({ id }) => id === token.id)?.text;
  return token?.eos ? "end of text" : tokenLabel(text || own || "", "part of a character");
}

/** The answers to an effect's questions: {without, with}; null while they are asked. */
export function measured(effect) {
  const both = [kept.get(effect.without.key), kept.get(effect.with.key)];
  if (both.every(Boolean)) return { without: both[0], with: both[1] };
  if (trouble?.key === effect.key) return { trouble: trouble.message };
  ask(effect);
  return null;
}

let asking = "";

async function ask(effect) {
  if (asking === effect.key) return;
  asking = effect.key;
  try {
    for (const side of [effect.without, effect.with])
      if (!kept.get(side.key)) kept.set(side.key, await askLatest("reach", side.question));
    trouble = null;
  } catch ({ code, message }) {
    trouble = code === "lost" ? null : { key: effect.key, message };
  }
  if (asking === effect.key) asking = "";
  changed("look");
}

// ---- reading -----------------------------------------------------------------------------------

/**
 * What the answers say:
 *   byLayer  {without, with}: the share of the written token after each stage, the embedding first
 *   tokens   the likeliest of both: {id, text, without, with}; null where a list does not have it
 *   entropy  {without, with} in bits; rank {without, with} of the written token
 */
export function readEffect({ chosen }, both) {
  const side = (pick) => ({ without: pick(both.without), with: pick(both.with) });
  const last = ({ values }) => values.at(-1);
  const shares = side(sharesOf);
  const ids = new Set([...shares.without.keys(), ...shares.with.keys(), chosen]);
  const pieces = { ...both.without.info.pieces, ...both.with.info.pieces };
  const probability = side(({ arrays }) => last(arrays.probability));
  const shareOf = (id, way) => shares[way].get(id) ?? (id === chosen ? probability[way] : null);
  const tokens = [...ids].map((id) => ({
    id,
    text: pieces[id] ?? "",
    without: shareOf(id, "without"),
    with: shareOf(id, "with"),
  }));
  const size = (token) => Math.max(token.without ?? 0, token.with ?? 0);
  return {
    byLayer: side(({ arrays }) => arrays.probability.values),
    tokens: tokens.sort((a, b) => size(b) - size(a)),
    entropy: side(({ arrays }) => last(arrays.entropy)),
    rank: side(({ arrays }) => last(arrays.rank)),
  };
}

function sharesOf({ arrays }) {
  const stage = arrays.rank.shape[0] - 1;
  const shares = ofStage(arrays.probabilities, stage);
  return new Map([...ofStage(arrays.ids, stage)].map((id, i) => [id, shares[i]]));
}

/** Where the numbers come from. */
export function sourceOf({ did }, { without, with: now }) {
  const ms = (without.info.ms ?? 0) + (now.info.ms ?? 0);
  const time = ms ? ` in ${duration(ms)}` : "";
  const other = did ? "with nothing changed inside" : "with what is set from this one on";
  const asked = `Asked twice about the same tokens${time}: as they ran, and ${other}`;
  return `${asked}; before temperature and filters.`;
}

export const wayNames = ({ did }) =>
  did ? ["left alone", "as it ran"] : ["as it ran", "with what is set"];

/** "“sad” 2.1 → 37.0 %, 9th → 1st choice". */
export function inWords({ name, chosen }, { tokens, rank }) {
  const own = tokens.find(({ id }) => id === chosen);
  const [before, now] = [ordinal(rank.without), ordinal(rank.with)];
  const choice = before === now ? `${now} choice both ways` : `${before} → ${now} choice`;
  return `“${name}” ${percent(own.without)} → ${percent(own.with)} %, ${choice}`;
}
