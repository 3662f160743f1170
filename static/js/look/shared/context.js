// Context passed to instruments: the focused token and its run.

import { NOT_MEASURED } from "../../turns/answer.js";
import { state } from "../../state.js";
import { plural } from "../../ui/format.js";
import { focused, focusedRow, focusedToken, view } from "../../view.js";

/**
 * Thrown by an instrument's `show` if there is nothing to show; `message` is the sentence shown.
 */
export class Missing extends Error {}

/**
 * Throw Missing if the tokens of a run are not here.
 *
 * @param {Segment | null | undefined} segment
 * @returns {asserts segment is Segment}
 */
export function requireTokens(segment) {
  if (segment?.edited) throw new Missing(NOT_MEASURED);
  if (!segment?.accepted) throw new Missing("The tokens of this answer are no longer available.");
}

/**
 * Why the loaded model cannot be asked about a run, or "": its tokens are those of the model that wrote it.
 *
 * @param {Segment | null | undefined} segment
 */
export function whyOtherModel(segment) {
  const loaded = state.hello?.model.name;
  if (!segment?.model || !loaded || segment.model === loaded) return "";
  return `Written by ${segment.model}; ${loaded} is loaded.`;
}

/**
 * Why a token cannot be computed again, or "": a sequence that has lost its oldest tokens is not kept.
 *
 * @param {PromptToken | Token | null | undefined} token
 */
export const whySlid = (token) =>
  token && "slid" in token && token.slid ? `The oldest ${plural(token.slid, "token")} had left the context when this was written.` : "";

/**
 * Begin the key of what was computed of a run: the same model has other numbers with its weights, or keys
 * and values, stored otherwise.
 *
 * @param {Segment} segment
 */
export function runKey({ id }) {
  const model = state.hello?.model;
  return `${model?.name} ${model?.dtype} ${model?.kv_dtype} ${id}`;
}

/**
 * Return the current focus:
 *   answer  the answer in the core sample (turns/answer.js), or null
 *   token   its focused token: a `token` event, or a prompt token (`prompt`: its number from 1)
 *   index   its number: 0 … for generated tokens, −1 and less for prompt tokens; null without one
 *   row     the core sample's focused row {layer, part}, or null
 *   hello   model, device, limits and memory, or null before the first `hello`
 *   signal  aborted when the panel closes or shows another instrument
 *
 * @param {AbortSignal} signal
 */
export function contextNow(signal) {
  return {
    answer: view.answer,
    token: focusedToken(),
    index: focused(),
    row: focusedRow(),
    hello: state.hello,
    signal,
  };
}

/**
 * Return the sequence of the focused token's run, for an inspection:
 *   ids       prompt and generated tokens, up to the newest that was written before any left the context
 *   texts     their texts
 *   position  of the focused token in the sequence
 * A continued answer has several runs, each with the text before it as its prompt.
 *
 * @param {Place} place
 * @returns {Sequence}
 */
export function sequenceOf({ answer, token, index }) {
  const segment = token?.segment ?? answer?.promptSegment;
  requireTokens(segment);
  const why = whyOtherModel(segment);
  if (why) throw new Missing(why);
  const slid = whySlid(token);
  if (slid) throw new Missing(`${slid} Select an earlier token.`);
  if (!answer || index === null) throw new Missing("No token yet.");
  const all = [...segment.prompt, ...wholeContext(answer.tokens.slice(segment.base, segment.base + segment.nTokens))];
  return {
    segment,
    ids: all.map(({ id }) => id),
    texts: all.map(({ text }) => text),
    position: positionOf(segment, index),
  };
}

/** The tokens before the first that no longer saw all before it. @param {Token[]} tokens */
function wholeContext(tokens) {
  const first = tokens.findIndex(({ slid }) => slid);
  return first < 0 ? tokens : tokens.slice(0, first);
}

/** Position of a token of an answer in the sequence of its run. @param {Segment} segment @param {number} index */
export const positionOf = ({ prompt, base }, index) => prompt.length + index - (index < 0 ? 0 : base);

/**
 * Number of the token at `position` of a run's sequence; null if it cannot be focused.
 *
 * @param {{answer: Answer, segment: Segment}} run
 * @param {number} position
 */
export function indexAt({ answer, segment }, position) {
  const { length } = segment.prompt;
  if (position >= length) return segment.base + position - length;
  return segment === answer.promptSegment ? position - length : null;
}
