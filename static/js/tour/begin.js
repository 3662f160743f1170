// Start of the tour or of a lesson: on the run on the page, or on one it requests itself.

import { lackOf } from "../ui/lacks.js";
import { plural } from "../ui/format.js";
import { isPaused } from "../chat/pace.js";
import { NOT_MEASURED } from "../turns/answer.js";
import { setMode } from "../chat/composer.js";
import { submitPrompt } from "../chat/session.js";
import { startNew } from "../conversations/library.js";
import { ready, state } from "../state.js";
import { view } from "../view.js";
import { chooseToken } from "./choose.js";
import { Walk } from "./walk.js";

/**
 * How a route can start: now, later, after its own prompt was sent, or not at all.
 *
 * @typedef {{walk: Walk, wait?: undefined, stop?: undefined}} Start
 * @typedef {{walk?: undefined, wait: string, stop?: undefined, ask?: undefined}} Wait
 * @typedef {{walk?: undefined, wait?: undefined, stop?: undefined, ask: true}} Ask
 * @typedef {{walk?: undefined, wait?: undefined, stop: string, ask?: undefined}} Stop
 */

const MIN_TOKENS = 2;

/**
 * Return how a route can start. `asked`: it has already sent its own prompt.
 * {walk}: start now; {wait: text}: not yet; {ask}: a prompt can be sent; {stop: text}: not
 * possible.
 *
 * @param {Route} route
 * @param {boolean} asked
 * @returns {Start | Wait | Ask | Stop}
 */
export function routeStart(route, asked) {
  const { kind, needsOwnRun } = route;
  if (state.replay)
    return { stop: `A replay is open. The ${kind} needs the live model: leave the replay first.` };
  if (lackOf("layers")) return { stop: lackOf("layers") };
  if (state.engine.state === "failed")
    return { stop: "The engine has failed, so there is no model to show." };
  if (!state.turns.length || (needsOwnRun && !asked)) {
    if (asked) return { stop: state.problem?.message ?? `The ${kind}’s run is gone.` };
    if (state.active) return { wait: `The ${kind} starts when the answer is complete.` };
    if (state.hello && ready()) return { ask: true };
    return { wait: `The ${kind} starts as soon as the model is ready.` };
  }
  return ofAnswer(view.answer, route);
}

/** @param {Answer | null} answer @param {Route} route @returns {Start | Wait | Stop} */
function ofAnswer(answer, { kind, nTokens }) {
  const segment = answer?.segment;
  if (!segment) return { stop: "There is no answer to show." };
  if (segment.textOnly !== null && !segment.running) {
    const why = segment.edited ? NOT_MEASURED : "The measurements of this answer are gone.";
    return { stop: `${why} Send a new prompt and start the ${kind} again.` };
  }
  const { nDrawn: n, first } = segment;
  if (segment.running && n < (isPaused(segment) ? MIN_TOKENS : nTokens))
    return {
      wait:
        `Generating: ${plural(n, "token")} so far. ` +
        `The ${kind} starts when the answer is complete or long enough.`,
    };
  if (n < MIN_TOKENS)
    return { stop: `The answer is too short. Ask for a longer one and start the ${kind} again.` };
  const drawn = answer.tokens.slice(first, first + Math.min(n, nTokens));
  return { walk: new Walk(answer, first + (chooseToken(drawn) ?? 0)) };
}

/** Send a route's own prompt, for a short run with capture; false when it cannot be sent. @param {Route} route */
export function askForRun({ prompts, nTokens, needsOwnRun }) {
  if (needsOwnRun && state.turns.length) startNew();
  if (prompts[state.mode] === undefined) setMode(state.mode === "chat" ? "completion" : "chat");
  return submitPrompt(prompts[state.mode] ?? "", { max_tokens: nTokens }, true);
}
