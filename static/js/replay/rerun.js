// Write a replay's answer again on the engine of this page, and compare it token by token.
//
// The same ids, the same settings, the same seed, and every change at the token it acted on: the
// same model and arithmetic then writes the same tokens. Another device or another dtype rounds
// otherwise, and may part from them.

import { Answer } from "./answer.js";
import { stampReceived } from "./clock.js";
import { count, plural, tokenLabel } from "./format.js";
import { listenTo, send } from "./line.js";
import { differences } from "./params.js";
import { normal, same } from "./reach.js";
import { seek } from "./replay.js";
import { isToken } from "./replayfile.js";
import { newId } from "./session.js";
import { encode } from "./socket.js";
import { changed, hasEngine, live, on, state } from "./state.js";
import { showAnswer } from "./view.js";

/**
 * What is written anew: state.replay.again.
 *
 *   take     the film's answer (film.js)
 *   reels    its generations still to write, the one under way first
 *   answer   the new one
 *   same     how many tokens were the same so far, before the first that was not
 *   parted   that first one: {here, there, reason} (tokens; null: none; `reason` it ended for), or null
 *   running, said, tone   for the bar
 *
 * @typedef {{take: object, reels: object[], answer: Answer, same: number,
 *   parted: object | null, running: boolean, said: string, tone: string}} Again
 */

/** Reels of the answer on show that have their tokens. */
const reelsOf = ({ film }) => film.reel.take.reels.filter(({ kept }) => kept.events);

/** Why it cannot be written again here, or "". */
export function whyNotAgain() {
  const { hello } = live();
  if (!hasEngine() || !hello) return "To write it again here, this page needs its engine.";
  const { model } = state.replay.film.hello;
  if (model.name !== hello.model.name || model.vocab_size !== hello.model.vocab_size)
    return `It was written by ${model.name}; the engine here runs ${hello.model.name}.`;
  if (!reelsOf(state.replay).some(({ tokens }) => tokens.length))
    return "Only the text of this answer is in the file.";
  return "";
}

export function writeAgain() {
  const { replay } = state;
  const reels = reelsOf(replay).filter(({ tokens }) => tokens.length);
  seek(reels.at(-1).end);
  const { take } = replay.film.reel;
  const again = { take, reels, answer: new Answer(), same: 0, parted: null, running: true };
  replay.again = again;
  say(again, "Writing it again …");
  replay.film.addFresh(take, again.answer);
  state.active = again.answer;
  showAnswer(again.answer);
  begin(again);
}

/** End it; what was written stays to be compared. */
export function stopAgain() {
  const again = state.replay?.again;
  if (!again?.running) return false;
  const { id } = again.answer.segment;
  send({ type: "stop", id });
  listenTo(id, null);
  Object.assign(again.answer.segment, { state: "done", reason: "cancelled" });
  const all = again.parted ? parting(again) : `${plural(again.same, "token")}, all the same.`;
  end(again, `Stopped after ${all}`);
  return true;
}

export function setUpAgain() {
  on("line", () => {
    const again = state.replay?.again;
    if (!again?.running || hasEngine()) return;
    listenTo(again.answer.segment.id, null);
    end(again, `The engine went away after ${plural(again.same, "token")}.`, "bad");
  });
}

// ---- asking ----------------------------------------------------------------------------------

/** Ask for the next generation. */
function begin(again) {
  const message = { type: "generate", id: newId(), ...requestOf(again.reels[0]) };
  const limit = live().hello.limits.message_bytes;
  if (new TextEncoder().encode(encode(message)).length > limit)
    return end(again, "The server takes no message as long as this prompt.", "bad");
  again.answer.begin(message.id, message).sentAt = performance.now();
  listenTo(message.id, (told) => hear(again, told));
  send(message);
  return changed("turns", "tokens", "focus", "replay");
}

/**
 * What writes a reel again. A limit is at most what was written: one that was stopped by hand ends
 * where it did.
 */
export function requestOf({ kept }) {
  const { reach, reached } = kept.request;
  const [{ event: accepted }] = kept.events;
  const done = kept.events.at(-1).event;
  const n = done.completion_tokens ?? kept.events.filter(isToken).length;
  const limited = (params) => ({ ...params, max_tokens: Math.min(params.max_tokens, n) });
  const params = limited(accepted.params);
  return {
    ids: accepted.prompt.map(({ id }) => id),
    params,
    capture: accepted.capture,
    ...(reach && { reach }),
    ...(reached && { reached }),
    changes: changesOf(kept, limited),
  };
}

function changesOf({ events, request }, limited) {
  const changes = [];
  let before = null;
  let inside = request.reach ?? {};
  for (const { event } of events) {
    if (event.type === "updated") {
      const params = differences(limited(before.params), limited(event.params));
      const change = { index: event.index };
      change.params = Object.fromEntries(params.map(({ name, to }) => [name, to]));
      if (event.capture !== before.capture) change.capture = event.capture;
      if (event.reach && !same(inside, event.reach)) change.reach = inside = normal(event.reach);
      changes.push(change);
    }
    if (event.params) before = event;
  }
  return changes;
}

// ---- hearing ---------------------------------------------------------------------------------

function hear(again, message) {
  if (!again.running) return;
  if (message.type === "error") return end(again, `It was refused: ${message.message}.`, "bad");
  const { seq, event, at, prepared } = message;
  const { answer } = again;
  const { segment } = answer;
  stampReceived(event, at);
  segment.preparedMs ??= prepared ?? null;
  if (!answer.take(segment, seq, event)) return;
  if (event.type === "token") compare(again, event);
  if (event.type === "done") finish(again, event);
  changed("tokens", "focus", "replay");
}

/** A token of the file, or null past its end. */
const tokenOf = ({ tokens }, index) =>
  index < tokens.length ? state.replay.film.steps[tokens[index]].event : null;

function compare(again, token) {
  if (again.parted) return;
  const there = tokenOf(again.reels[0], token.index);
  if (there?.id === token.id) again.same += 1;
  else again.parted = { here: token, there };
  say(again, again.parted ? parting(again) : `${count(again.same)} tokens, all the same so far.`);
}

function finish(again, done) {
  const { id, nTokens } = again.answer.segment;
  listenTo(id, null);
  const [reel, ...rest] = again.reels;
  if (!again.parted && nTokens < reel.tokens.length)
    again.parted = { here: null, there: tokenOf(reel, nTokens), reason: done.reason };
  if (done.reason === "error") return end(again, `It was interrupted: ${done.message}.`, "bad");
  if (again.parted) return end(again, parting(again), "parted");
  if (!rest.length) return end(again, `The same ${plural(again.same, "token")}.${elsewhere()}`, "same");
  again.reels = rest;
  return begin(again);
}

function end(again, said, tone = "") {
  again.running = false;
  if (state.active === again.answer) state.active = null;
  say(again, said, tone);
  changed("turns", "tokens", "focus");
}

// ---- saying ----------------------------------------------------------------------------------

function say(again, said, tone = "") {
  Object.assign(again, { said, tone });
  changed("replay");
}

const wordOf = (token) => (token ? `“${tokenLabel(token.text, "·")}”` : "the end");

function parting({ same, parted }) {
  const { here, there, reason } = parted;
  const before = same ? `The same ${plural(same, "token")}, then ` : "From the first token on: ";
  if (reason === "context") return `${before}the context of this engine was full.`;
  return `${before}${wordOf(here)} here and ${wordOf(there)} in the file. ${whyParted()}`;
}

/** How the engine here differs from the one of the file: [here, there] or null. */
function difference() {
  const [here, there] = [live().hello, state.replay.film.hello];
  const of = ({ model, device }) => `${model.dtype} on ${device.name}`;
  return of(here) === of(there) ? null : [of(here), of(there)];
}

function elsewhere() {
  const other = difference();
  return other ? ` Here it is ${other[0]}, in the file ${other[1]}.` : "";
}

function whyParted() {
  const other = difference();
  return other
    ? `Here it is ${other[0]}, in the file ${other[1]}: they round otherwise.`
    : "The device and the dtype are the same, so the weights or the program are not.";
}
