// Start of the tour: on the run on the page, or on one it requests itself.

import { lackOf } from "../ui/lacks.js";
import { plural } from "../ui/format.js";
import { isPaused } from "../chat/pace.js";
import { NOT_MEASURED } from "../turns/answer.js";
import { submitPrompt } from "../chat/session.js";
import { ready, state } from "../state.js";
import { view } from "../view.js";
import { chooseToken } from "./choose.js";
import { Walk } from "./walk.js";

/**
 * How the tour can start: now, later, after its own prompt was sent, or not at all.
 *
 * @typedef {{walk: Walk, wait?: undefined, stop?: undefined}} Start
 * @typedef {{walk?: undefined, wait: string, stop?: undefined, ask?: undefined}} Wait
 * @typedef {{walk?: undefined, wait?: undefined, stop?: undefined, ask: true}} Ask
 * @typedef {{walk?: undefined, wait?: undefined, stop: string, ask?: undefined}} Stop
 */

/** Number of tokens that suffice for the tour; quick to generate on any device. */
const ENOUGH = 64;
const MIN_TOKENS = 2;
/** Prompts that any model can answer or continue. */
const PROMPTS = {
  chat: "Tell me a story about a fox who finds a lantern",
  completion: "Once upon a time, a fox found a lantern in the wood.",
};

/**
 * Return how the tour can start. `asked`: it has already sent its own prompt.
 * {walk}: start now; {wait: text}: not yet; {ask}: a prompt can be sent; {stop: text}: not
 * possible.
 *
 * @param {boolean} asked
 * @returns {Start | Wait | Ask | Stop}
 */
export function tourStart(asked) {
  if (state.replay)
    return { stop: "A replay is open. The tour needs the live model: leave the replay first." };
  if (lackOf("layers")) return { stop: lackOf("layers") };
  if (state.engine.state === "failed")
    return { stop: "The engine has failed, so there is no model to show." };
  if (!state.turns.length) {
    if (asked) return { stop: state.problem?.message ?? "The tour’s run is gone." };
    if (state.hello && ready()) return { ask: true };
    return { wait: "The tour starts as soon as the model is ready." };
  }
  return ofAnswer(view.answer);
}

/** @param {Answer | null} answer @returns {Start | Wait | Stop} */
function ofAnswer(answer) {
  const segment = answer?.segment;
  if (!segment) return { stop: "There is no answer to show." };
  if (segment.textOnly !== null && !segment.running) {
    const why = segment.edited ? NOT_MEASURED : "The measurements of this answer are gone.";
    return { stop: `${why} Send a new prompt and start the tour again.` };
  }
  const { nDrawn: n, first } = segment;
  if (segment.running && n < (isPaused(segment) ? MIN_TOKENS : ENOUGH))
    return {
      wait:
        `Generating: ${plural(n, "token")} so far. ` +
        "The tour starts when the answer is complete or long enough.",
    };
  if (n < MIN_TOKENS)
    return { stop: "The answer is too short. Ask for a longer one and start the tour again." };
  const drawn = answer.tokens.slice(first, first + Math.min(n, ENOUGH));
  return { walk: new Walk(answer, first + (chooseToken(drawn) ?? 0)) };
}

/** Send the tour's own prompt, for a short run with capture; false when it cannot be sent. */
export const askForRun = () => submitPrompt(PROMPTS[state.mode], { max_tokens: ENOUGH }, true);
