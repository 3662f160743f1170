// What an instrument may ask about what is being looked at.

import { state } from "../state.js";
import { focused, focusedRow, focusedToken, view } from "../view.js";

/** Thrown by an instrument's `show`: there is nothing to see, and `message` says why, in a sentence. */
export class Missing extends Error {}

/**
 * What is looked at now:
 *   answer  the answer in the core (answer.js), or null
 *   token   its focused token: a `token` event, or one of the prompt (`prompt`: its number from 1)
 *   index   its number: 0 … for written tokens, −1 and less for the prompt's; null without one
 *   row     the core's focused row {layer, part}, or null
 *   hello   model, device, limits and memory, or null before the first `hello`
 *   signal  aborted when the panel closes or shows another instrument
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
 * The tokens that the model saw at the focused token, as a question to the engine wants them:
 *   ids       the prompt's and the written ones of this generation, up to its newest
 *   texts     their pieces
 *   position  of the focused token among them
 * A continued answer is several generations: each reads the text before it as its own prompt.
 */
export function sequenceOf({ answer, token, index }) {
  const segment = token?.segment ?? answer?.segments[0];
  if (!segment?.accepted) throw new Missing("The tokens of this answer are not here any more.");
  const written = answer.tokens.slice(segment.base, segment.base + segment.nTokens);
  const all = [...segment.prompt, ...written];
  const { length } = segment.prompt;
  return {
    segment,
    ids: all.map(({ id }) => id),
    texts: all.map(({ text }) => text),
    position: index < 0 ? length + index : length + index - segment.base,
  };
}

/** Number of the token at `position` of a generation's sequence; null where it cannot be looked at. */
export function indexAt({ answer, segment }, position) {
  const { length } = segment.prompt;
  if (position >= length) return segment.base + position - length;
  return segment === answer.segments[0] ? position - length : null;
}
