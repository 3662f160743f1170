// What the walk walks through: a run that is there, or one that it asks for itself.

import { plural } from "../format.js";
import { ask } from "../session.js";
import { ready, state } from "../state.js";
import { view } from "../view.js";
import { chooseToken } from "./choose.js";
import { Walk } from "./walk.js";

/** A run of this many tokens has one worth following, and does not take long on any device. */
const ENOUGH = 64;
const LEAST = 2;
/** What any model can answer, or go on with. */
const PROMPTS = {
  chat: "Tell me a story about a fox who finds a lantern",
  completion: "Once upon a time, a fox found a lantern in the wood.",
};

/**
 * How far a walk is from beginning. `asked`: it sent a prompt of its own already.
 * {walk}: it can begin; {wait: sentence}: not yet; {ask}: a prompt can be sent; {stop: sentence}: never.
 */
export function beginning(asked) {
  if (state.replay) return { stop: "A saved run is shown. The walk asks the live model, so close it first." };
  if (state.engine.state === "failed") return { stop: "The engine has failed, so there is no model to walk through." };
  if (!state.turns.length) {
    if (asked) return { stop: state.problem?.message ?? "The run that was to be walked through is gone." };
    return state.hello && ready() ? { ask: true } : { wait: "It begins as soon as the model is ready." };
  }
  return ofAnswer(view.answer);
}

function ofAnswer(answer) {
  const segment = answer?.segment;
  if (!segment) return { stop: "There is no answer to walk through." };
  if (segment.plain !== null && !segment.running)
    return { stop: "The measurements of this answer are gone. Ask something new, and start again." };
  const { nDrawn: n, first } = segment;
  if (segment.running && n < ENOUGH)
    return { wait: `The model writes: ${plural(n, "token")} so far. It begins when the text is done, or long enough.` };
  if (n < LEAST) return { stop: "The model wrote too little to walk through. Ask for more, and start again." };
  const drawn = answer.tokens.slice(first, first + Math.min(n, ENOUGH));
  return { walk: new Walk(answer, first + chooseToken(drawn)) };
}

/** Send the walk's own prompt; false when it cannot be sent. Its run is short and measured. */
export const askForRun = () => ask(PROMPTS[state.mode], { max_tokens: ENOUGH }, true);
