// The most likely tokens that a grammar masked in the place of the focused token. They are in no
// event, so the engine is asked (`forbidden_ids` of gpu/inspection/waterfall.py).

import { askLatest } from "../look/shared/answer-cache.js";
import { contextNow } from "../look/shared/context.js";
import { samplingOf, waterfallOf } from "../look/shared/waterfall.js";
import { changed, ready, state } from "../state.js";
import { view } from "../view.js";

const MOST = 4;
const KEPT = 200;
/** @typedef {ToPage.CandidateText & {masked: true}} MaskedCandidate */
/** By run and token; null: asked. @type {Map<string, MaskedCandidate[] | null>} */
const known = new Map();
/** The run and token that was asked about last. */
let asked = "";

/**
 * Return the masked candidates of a token, [] until they are known. While the text is written only a
 * token that a person chose is asked about.
 *
 * @param {Token} token
 * @returns {MaskedCandidate[]}
 */
export function maskedCandidates(token) {
  const { answer } = view;
  if (!token.allowed || !answer) return [];
  const key = `${token.segment.id} ${token.number} ${token.id}`;
  const found = known.get(key);
  if (found !== undefined) return found ?? [];
  const { segment } = token;
  const isOfModel = segment.model === state.hello?.model.name;
  const isPassing = answer.running && view.pinned === null && view.hover === null;
  if (!ready() || !isOfModel || isPassing || state.hello?.upstream) return [];
  // Its question is dropped if another comes before it was sent (`askLatest`), so it is asked again.
  if (known.get(asked) === null) known.delete(asked);
  asked = key;
  known.set(key, null);
  ask(token, answer).then(
    (masked) => keep(key, masked),
    () => known.delete(key),
  );
  return [];
}

/** @param {string} key @param {MaskedCandidate[]} masked */
function keep(key, masked) {
  known.set(key, masked);
  const [oldest] = known.keys();
  if (known.size > KEPT) known.delete(oldest);
  changed("focus");
}

/** @param {Token} token @param {Answer} answer @returns {Promise<MaskedCandidate[]>} */
async function ask(token, answer) {
  const context = { ...contextNow(new AbortController().signal), answer, token, index: answer.tokens.indexOf(token) };
  const question = waterfallOf(context, samplingOf(answer.settingsAt(token)), { top: 1 });
  const { info, arrays } = await askLatest("masked", question);
  const { forbidden_ids: ids, forbidden_raw: shares } = arrays;
  return [...(ids?.values ?? [])].slice(0, MOST).map((id, i) => ({
    id,
    text: info.pieces?.[id] ?? `id ${id}`,
    before: shares.values[i],
    after: 0,
    cut: "",
    masked: true,
  }));
}
