// The likeliest ways to go on from a place of the text, by the engine's beam search.

import { duration, plural } from "../format.js";
import { asTheyRan } from "../reach.js";
import { ready, state } from "../state.js";
import { view } from "../view.js";
import { Missing, sequenceOf } from "./context.js";
import { askLatest, Kept } from "./kept.js";

const MOST_BYTES = 1 << 20;
const kept = new Kept(MOST_BYTES);

/**
 * What a beam found in the place of the focused token:
 *   index   its number in the answer
 *   texts   the continuations, the best first: lists of tokens {id, text, eos, logprob}
 *   ended   of each: does it end the text?
 *   own     what was written there, as far; null when it is one of them
 *   twin    number of the continuation that was written; −1 when none was
 *   source  where the numbers come from
 */
export async function beamAt(context, { width, depth, perToken }) {
  const { answer, index, token, hello } = context;
  checkPlace(context);
  const { segment, ids, position } = sequenceOf(context);
  const before = ids.slice(0, position);
  const deep = Math.min(depth, hello.limits.context - before.length);
  const penalty = perToken ? 1 : 0;
  const ran = asTheyRan(segment, before.length);
  const key = `${hello.model.name} ${hello.model.dtype} ${width} ${deep} ${penalty} ${before} ${JSON.stringify(ran)}`;
  const question = { kind: "beam", ids: before, width, depth: deep, length_penalty: penalty, ...ran };
  const found = kept.get(key) ?? kept.set(key, await askLatest("beam", question));
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

function checkPlace({ answer, token }) {
  if (!token || token.prompt)
    throw new Missing("A prompt is given. Look at a written token to see the likeliest ways to go on in its place.");
  if (state.replay) throw new Missing("The engine would have to compute this, and a replay is shown without one.");
  if (!ready()) throw new Missing("The engine is not ready. This goes on by itself when it is.");
  if (answer.running && view.pinned === null && view.hover === null)
    throw new Missing("The text is being written. Choose one of its tokens, or wait for its end.");
}

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

const same = (a, b) => a.length === b.length && a.every(({ id }, i) => b[i].id === id);

function sourceOf({ ms }, texts, width) {
  const time = ms === undefined ? "" : ` in ${duration(ms)}`;
  const depth = Math.max(...texts.map(({ length }) => length));
  return (
    `Computed by the engine${time}: a beam of ${width} over ${plural(depth, "token")}. ` +
    "Probabilities are the model’s own, before temperature and filters."
  );
}
