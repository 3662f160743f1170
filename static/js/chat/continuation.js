// Continue: the last run of an answer goes on where it ended, by the ids of its tokens, with its seed
// and from its place in the random numbers on. Nothing here touches the page.
//
// So the rest is what the run would have written: a text that is read anew may be cut into other
// tokens, and a run of its own draws other numbers.

import { settingChanges } from "./marks.js";
import { asTheyRan } from "./reach.js";

/**
 * The request that goes on after `segment`, the last of `answer`: {request, own, counted, before};
 * null where its tokens are not here, or are another model's than `model`.
 *
 *   request  {ids, written}, `written` the segment's own tokens
 *   own      settings that are the run's, not the page's: {seed, first_index, max_tokens}
 *   counted  how many tokens of `limit` (the page's max_tokens) were written before
 *   before   see `goingOn` of reach.js
 */
export function continuation(answer, segment, model, limit) {
  if (!segment.accepted || segment.plain !== null || segment.model !== model) return null;
  const { prompt, params, request, nDrawn } = segment;
  const own = tokensOf(answer, segment);
  const ids = [...prompt, ...own].map(({ id }) => id);
  const counted = countedAfter(segment, limit);
  return {
    request: { ids, written: own.length },
    own: {
      seed: String(request?.params.seed ?? params.seed),
      first_index: (params.first_index ?? 0) + nDrawn,
      max_tokens: limit - counted,
    },
    counted,
    before: { ran: asTheyRan(segment, ids.length).reached ?? [], from: ids.length },
  };
}

/** Of a segment, without the token that ended the text: behind that nothing goes on. */
const tokensOf = ({ tokens }, { base, nTokens }) =>
  tokens.slice(base, base + nTokens).filter(({ eos }) => !eos);

/** A run that was broken off goes on with what is left of its count; any other begins a new one. */
function countedAfter({ reason, counted, nDrawn }, limit) {
  const broken = reason === "cancelled" || reason === "error";
  const all = counted + nDrawn;
  return broken && all < limit ? all : 0;
}

/** Let `segment` be one that goes on after `before`, where its request says so. */
export function goOnAfter(answer, segment, before) {
  if (!before || segment.branch || segment.request?.written === undefined) return;
  segment.before = before;
  segment.continuedFrom = askedAfter(before.asked, answer.segmentText(before));
}

/** What was asked for, with the text that was written since: {messages, prompt, continue_final}. */
function askedAfter(asked, text) {
  const { messages, prompt, continue_final: begun } = asked;
  if (text === "") return asked;
  if (!messages) return { prompt: prompt + text };
  const said = begun ? messages.at(-1).content : "";
  const own = { role: "assistant", content: said + text };
  return { messages: [...(begun ? messages.slice(0, -1) : messages), own], continue_final: true };
}

/**
 * The run is accepted: `texts` are those of the segment's tokens before it, now that more follows. A
 * stop string that ended it is text after all, and so is a character that was cut in its middle.
 */
export function takeBefore(answer, segment, { texts, params, capture }) {
  const { before } = segment;
  if (before.plain !== null) before.plain = texts.join("");
  else retell(answer, tokensOf(answer, before), texts);
  goOnAfter(answer, segment, before);
  markSettings(answer, segment, { ...params, capture, reach: segment.reach });
}

/** The events of a replay stay as they were told: a token with another text is a copy. */
function retell(answer, own, texts) {
  own.forEach((token, i) => {
    if (token.text === texts[i]) return;
    answer.tokens[token.segment.base + token.place] = { ...token, text: texts[i] };
    answer.edition += 1;
  });
}

/** The page's settings act from here on. */
function markSettings(answer, segment, params) {
  const { before, base: index } = segment;
  const last = answer.tokens[index - 1];
  let used = { ...before.params, capture: before.capture, reach: before.reach };
  if (last?.segment === before) {
    // Changes that came too late for the run before never acted: they are told once more, or not.
    for (const mark of answer.marks) if (mark.index >= index) mark.told = [];
    used = answer.settingsAt(last);
  }
  const changes = settingChanges(used, params).filter(({ name }) => name !== "max_tokens");
  if (changes.length) answer.marks.push({ segment, index, changes, told: changes });
}
