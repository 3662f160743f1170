// Most likely continuations from a token, by the engine's beam search.

import { duration, plural } from "../../ui/format.js";
import { spansUpTo } from "../../interventions/interventions.js";
import { ready, state } from "../../state.js";
import { view } from "../../view.js";
import { Missing, sequenceOf } from "../shared/context.js";
import { askLatest, AnswerCache } from "../shared/answer-cache.js";

const MAX_BYTES = 1 << 20;
const cache = new AnswerCache(MAX_BYTES);

/**
 * Return the beams in place of the focused token:
 *   index   its number in the answer
 *   texts   the continuations, best first: lists of tokens {id, text, eos, logprob}
 *   ended   per continuation: does it end the text?
 *   own     the generated tokens at that place; null if one of the continuations equals them
 *   twin    number of the continuation that equals the generated tokens, or −1
 *   source  where the numbers come from
 *
 * @param {RunFocus} context
 * @param {BeamSettings} settings
 */
export async function beamAt(context, { width, depth, perToken }) {
  const { answer, index, token, hello } = context;
  checkPlace(context);
  if (!token || index === null) throw new Missing("No token yet.");
  const { segment, ids, position } = sequenceOf(context);
  const before = ids.slice(0, position);
  const deep = Math.min(depth, hello.limits.context - before.length);
  const penalty = perToken ? 1 : 0;
  const ran = spansUpTo(segment, before.length);
  const { name, dtype } = hello.model;
  const key = `${name} ${dtype} ${width} ${deep} ${penalty} ${before} ${JSON.stringify(ran)}`;
  const settings = { width, depth: deep, length_penalty: penalty };
  /** @type {FromPage.Beam} */
  const question = { kind: "beam", ids: before, ...settings, ...ran };
  const found = cache.get(key) ?? cache.set(key, await askLatest("beam", question));
  const texts = textsOf(found);
  const written = answer.tokens.slice(index, index + deep);
  const twin = texts.findIndex((text) => same(text, written.slice(0, text.length)));
  return {
    index,
    texts,
    ended: [...found.arrays.ended.values].map(Boolean),
    own: twin < 0 && written.length ? written : null,
    twin,
    word: token.text,
    source: sourceOf(found.info, texts, width),
  };
}

/** @param {RunFocus} focus */
function checkPlace({ answer, token }) {
  if (!token || token.prompt)
    throw new Missing("Select a generated token to search continuations in its place.");
  if (state.replay) throw new Missing("Beam search needs the engine, and a replay has none.");
  if (!ready())
    throw new Missing("The engine is not ready. Continues automatically once it is.");
  if (answer.running && view.pinned === null && view.hover === null)
    throw new Missing("Generating. Select a token or wait for the end of the run.");
}

/** @param {FrameAnswer} answer @returns {BranchToken[][]} */
function textsOf({ arrays, info }) {
  const { ids, logprobs, lengths, ended } = arrays;
  const [n, depth] = ids.shape;
  return Array.from({ length: n }, (_, i) =>
    Array.from({ length: lengths.values[i] }, (_unused, k) => {
      const id = ids.values[i * depth + k];
      const eos = ended.values[i] === 1 && k === lengths.values[i] - 1;
      return { id, text: info.pieces[id], eos, logprob: logprobs.values[i * depth + k] };
    }),
  );
}

/** @param {BranchToken[]} a @param {BranchToken[]} b */
const same = (a, b) => a.length === b.length && a.every(({ id }, i) => b[i].id === id);

/** @param {FrameAnswer["info"]} info @param {BranchToken[][]} texts @param {number} width */
function sourceOf({ ms }, texts, width) {
  const time = ms === undefined ? "" : ` in ${duration(ms)}`;
  const depth = Math.max(...texts.map(({ length }) => length));
  return (
    `Computed by the engine${time}: ${plural(width, "beam")} over ${plural(depth, "token")}. ` +
    "Probabilities are the model’s own, before temperature and filters."
  );
}
