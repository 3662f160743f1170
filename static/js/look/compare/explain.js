// Why two answers of a comparison part: the engine is asked about the first token that differs, on
// both sides.

import { inspect } from "../../net/inspect.js";
import { changed } from "../../state.js";
import { samplingOf, seedOf, waterfallOf } from "../shared/waterfall.js";
import { explain } from "./words.js";

/** @typedef {{answers: Answer[], index: number, sides: Token[], names: string[]}} Pair */
/** What was found out about a first difference. */
/** @typedef {{index: number, found: Explanation | null, error: Problem | null}} Known */

/** Tokens asked about besides the two: as many as a moved logit is looked for in. */
const TOP = 8;
/** Logits closer than this are the same: they come as 32-bit numbers. */
const SAME = 1e-6;

/**
 * Answer → other answer → {index, found, error}: what was found out about their first difference.
 *
 * @type {WeakMap<Answer, WeakMap<Answer, Known>>}
 */
const known = new WeakMap();

/**
 * Return what is known of the first difference of two answers, and ask if nothing is: {found}, as
 * `findOut` returns it, or {error}; both null while the engine computes.
 *
 * @param {Pair} pair
 * @returns {Known}
 */
export function explanationOf(pair) {
  const [a, b] = pair.answers;
  const about = known.get(a) ?? new WeakMap();
  known.set(a, about);
  const before = about.get(b);
  if (before?.index === pair.index) return before;
  /** @type {Known} */
  const entry = { index: pair.index, found: null, error: null };
  about.set(b, entry);
  findOut(pair)
    .then((found) => (entry.found = found))
    .catch((error) => (entry.error = error))
    .finally(() => changed("look"));
  return entry;
}

/**
 * Return {text, rows}; a row for each of the two tokens: {token, logits, shares} on both
 * sides, shares after the filters.
 *
 * @param {Pair} pair
 * @returns {Promise<Explanation>}
 */
async function findOut({ answers, index, sides: tokens, names }) {
  const also = tokens.map(({ id }) => id);
  const asked = answers.map((answer, i) => {
    const place = { answer, token: tokens[i], index };
    const settings = answer.settingsAt(tokens[i]);
    const question = waterfallOf(place, samplingOf(settings), { top: TOP, also });
    return { question, settings: { ...settings, seed: seedOf(tokens[i].segment) } };
  });
  const found = await Promise.all(asked.map(({ question }) => inspect(question)));
  const sides = found.map(sideOf);
  const [a, b] = sides.map(({ logits }) => logits);
  const moved = [...a].some(([id, logit]) => Math.abs((b.get(id) ?? logit) - logit) > SAME);
  const settings = asked.map((each) => each.settings);
  const rows = tokens.map((token) => ({
    token,
    logits: sides.map(({ logits }) => logits.get(token.id) ?? NaN),
    shares: sides.map(({ after }) => after.get(token.id) ?? NaN),
  }));
  const prompts = promptIds(answers[0]) !== promptIds(answers[1]);
  return { text: explain({ names, settings, sides, tokens, moved, prompts }), rows };
}

/** @param {Answer} answer */
const promptIds = ({ promptSegment }) => promptSegment.prompt.map(({ id }) => id).join();

/** @param {FrameAnswer} answer @returns {ComparedSide} */
function sideOf({ arrays, info }) {
  const ids = [...arrays.ids.values];
  /** @param {string} name */
  const byId = (name) => new Map(ids.map((id, i) => [id, arrays[name].values[i]]));
  return { logits: byId("logit"), after: byId("after"), draw: info.draw, greedy: info.greedy };
}
