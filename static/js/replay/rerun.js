// Reruns an answer of a replay on the engine of this page and compares it token by token.
//
// The request has the same ids, settings and seed, and every change at the token it first acted on.
// The same model and arithmetic then writes the same tokens. Another device or dtype rounds
// differently, so the tokens may differ from some point on.

import { Answer } from "../turns/answer.js";
import { rulesAfter } from "../turns/answer-rules.js";
import { stampReceived } from "../ui/message-clock.js";
import { plural, tokenLabel } from "../ui/format.js";
import { listenTo, send } from "../net/connection.js";
import { differences } from "../settings/sampling-settings.js";
import { normalize, sameInterventions } from "../interventions/interventions.js";
import { seek } from "./replay.js";
import { isToken } from "./file.js";
import { newId } from "../net/new-id.js";
import { encode } from "../net/socket.js";
import { changed, hasEngine, liveState, setState, state } from "../state.js";
import { showAnswer } from "../view.js";

/**
 * A rerun: state.replay.rerun.
 *
 *   answerVersion  the answer that is rerun (replay/playback.js)
 *   recordings     its generations that are not finished yet, the current one first
 *   answer         the new answer
 *   matching       number of equal tokens before the first difference
 *   divergence     the first difference: {here, there, reason}, or null. `here`, `there`: tokens,
 *                  null past the end; `reason`: why the rerun ended first
 *   running, said, tone   for the playback bar
 *
 * @typedef {{answerVersion: Recording["answerVersion"], recordings: Recording[], answer: Answer,
 *   matching: number, divergence: Divergence | null, running: boolean, said: string,
 *   tone: string}} ReplayRerun
 * @typedef {{here: Token | null, there: {id: number, text: string} | null, reason?: string}} Divergence
 */

/** Recordings of the shown answer that have their events. @param {OpenReplay} openReplay */
const recordingsOf = ({ playback }) =>
  playback.recording.answerVersion.recordings.filter(({ saved }) => saved.events);

/** Why the answer cannot be rerun here, or "". */
export function whyNotRerunnable() {
  const { hello } = liveState();
  if (!hasEngine() || !hello) return "This page needs its engine to write the answer again.";
  if (!state.replay) return "";
  const { replay } = state;
  const { model } = replay.playback.hello;
  if (model.name !== hello.model.name || model.vocab_size !== hello.model.vocab_size)
    return `It was written by ${model.name}; the engine here runs ${hello.model.name}.`;
  if (!recordingsOf(replay).some(({ tokens }) => tokens.length))
    return "The file has only the text of this answer.";
  if (recordingsOf(replay).some(hasMoved))
    return "Chunks of its prompt came from the cache of other texts, which cannot be repeated exactly.";
  return "";
}

/**
 * True if a prompt was read with `cache_reuse`: what followed is approximate.
 *
 * @param {Recording} recording
 */
const hasMoved = ({ saved }) =>
  (saved.events ?? []).some(({ event }) => event.type === "prefill" && event.moved?.length);

export function rerunReplay() {
  const { replay } = state;
  if (!replay) return;
  const recordings = recordingsOf(replay).filter(({ tokens }) => tokens.length);
  seek(recordings[recordings.length - 1].end);
  const { answerVersion } = replay.playback.recording;
  const answer = new Answer();
  /** @type {ReplayRerun} */
  const rerun = {
    answerVersion, recordings, answer, matching: 0, divergence: null, running: true, said: "", tone: "",
  };
  replay.rerun = rerun;
  say(rerun, "Writing it again …");
  replay.playback.addRerun(answerVersion, rerun.answer);
  setState({ active: rerun.answer });
  showAnswer(rerun.answer);
  begin(rerun);
}

/** Stop the rerun; its tokens stay. */
export function stopRerun() {
  const rerun = state.replay?.rerun;
  if (!rerun?.running) return false;
  const id = rerun.answer.segment?.id ?? "";
  send({ type: "stop", id });
  listenTo(id, null);
  Object.assign(rerun.answer.segment ?? {}, { state: "done", reason: "cancelled" });
  const matching = `${plural(rerun.matching, "token")}, all the same.`;
  end(rerun, `Stopped after ${rerun.divergence ? describeDivergence(rerun) : matching}`);
  return true;
}

/** End the rerun: its events come over a connection that is gone. */
export function loseRerun() {
  const rerun = state.replay?.rerun;
  if (!rerun?.running) return;
  listenTo(rerun.answer.segment?.id ?? "", null);
  const written = plural(rerun.matching, "token");
  end(rerun, `The connection to the engine was lost after ${written}.`, "bad");
}

// ---- request ----------------------------------------------------------------------------------

/** Request the next generation. @param {ReplayRerun} rerun */
function begin(rerun) {
  const id = newId();
  const asked = { type: "generate", id, ...requestOf(rerun.recordings[0]) };
  const message = /** @type {RunRequest} */ (asked);
  const limit = liveState().hello?.limits.message_bytes ?? 0;
  if (new TextEncoder().encode(encode(message)).length > limit)
    return end(rerun, "The prompt is longer than a message to this server may be.", "bad");
  rerun.answer.begin(id, message).sentAt = performance.now();
  listenTo(id, (received) => onMessage(rerun, received));
  send(message);
  return changed("turns", "tokens", "focus", "replay");
}

/**
 * Return the request that reruns a recording. `max_tokens` is at most what was written, so that a
 * rerun of a stopped generation ends at the same token. Under a grammar the limit stays until then: a
 * JSON text is brought to its end where few tokens are left.
 *
 * @param {Recording} recording
 */
export function requestOf({ saved }) {
  const { reach, reached, grammar } = saved.request;
  const { events = [] } = saved;
  const accepted = /** @type {ReplayFile.Accepted} */ (events[0].event);
  const done = events[events.length - 1].event;
  const n = done.type === "done" ? done.completion_tokens : events.filter(isToken).length;
  const wasStopped = done.type !== "done" || ["cancelled", "error"].includes(done.reason);
  const most = grammar ? Infinity : n;
  /** @param {ReplayFile.FileSettings} params */
  const limited = (params) => ({ ...params, max_tokens: Math.min(params.max_tokens, most) });
  const params = limited(accepted.params);
  const changes = changesOf(saved, limited);
  return {
    ids: accepted.prompt.map(({ id }) => id),
    params,
    capture: accepted.capture,
    ...(reach && { reach }),
    ...(reached && { reached }),
    ...rulesAfter(saved.request, 0),
    changes: grammar && wasStopped ? [...changes.filter(({ index }) => index <= n), endAt(n)] : changes,
    cache_reuse: 0,
    ...(saved.request.truncation === "slide" && { truncation: "slide" }),
  };
}

/** The change that ends a text with its first `n` tokens. @param {number} n @returns {FromPage.ScheduledUpdate} */
const endAt = (n) => ({ index: n, params: { max_tokens: n } });

/**
 * @param {ReplayFile.Segment} segment
 * @param {(params: ReplayFile.FileSettings) => NamedSettings} limited
 */
function changesOf({ events = [], request }, limited) {
  /** @type {FromPage.ScheduledUpdate[]} */
  const changes = [];
  /** @type {ReplayFile.Accepted | ReplayFile.Updated | null} */
  let before = null;
  let inside = request.reach ?? {};
  for (const { event } of events) {
    if (event.type === "updated" && before) {
      const params = differences(limited(before.params), limited(event.params));
      const values = Object.fromEntries(params.map(({ name, to }) => [name, to]));
      /** @type {FromPage.ScheduledUpdate} */
      const change = { index: event.index, params: values };
      if (event.capture !== before.capture) change.capture = event.capture;
      if (event.reach && !sameInterventions(inside, event.reach))
        change.reach = inside = normalize(event.reach);
      changes.push(change);
    }
    if (event.type === "accepted" || event.type === "updated") before = event;
  }
  return changes;
}

// ---- answer ----------------------------------------------------------------------------------

/**
 * @param {ReplayRerun} rerun
 * @param {ToPage.Generation | ToPage.Error} message
 */
function onMessage(rerun, message) {
  if (!rerun.running) return;
  if (message.type === "error")
    return end(rerun, `The server refused it: ${message.message}.`, "bad");
  const { seq, event, at, prepared } = message;
  const { answer } = rerun;
  const { segment } = answer;
  if (!segment) return;
  stampReceived(event, at);
  segment.preparedMs ??= prepared ?? null;
  if (!answer.applyEvent(segment, seq, event)) return;
  if (event.type === "token") compare(rerun, /** @type {Token} */ (event));
  if (event.type === "done") finish(rerun, event);
  changed("tokens", "focus", "replay");
}

/**
 * Token of a recording, or null past its end.
 *
 * @param {Recording} recording
 * @param {number} index
 */
const tokenOf = ({ tokens }, index) =>
  /** @type {Token | null} */ (
    index < tokens.length ? (state.replay?.playback.steps[tokens[index]].event ?? null) : null
  );

/**
 * @param {ReplayRerun} rerun
 * @param {Token} token
 */
function compare(rerun, token) {
  if (rerun.divergence) return;
  const there = tokenOf(rerun.recordings[0], token.index);
  if (there?.id === token.id) rerun.matching += 1;
  else rerun.divergence = { here: token, there };
  const matching = `${plural(rerun.matching, "token")}, all the same so far.`;
  say(rerun, rerun.divergence ? describeDivergence(rerun) : matching);
}

/**
 * @param {ReplayRerun} rerun
 * @param {ToPage.Done} done
 */
function finish(rerun, done) {
  const { id = "", nTokens = 0 } = rerun.answer.segment ?? {};
  listenTo(id, null);
  const [recording, ...rest] = rerun.recordings;
  if (!rerun.divergence && nTokens < recording.tokens.length)
    rerun.divergence = { here: null, there: tokenOf(recording, nTokens), reason: done.reason };
  if (done.reason === "error") return end(rerun, `It was interrupted: ${done.message}.`, "bad");
  if (rerun.divergence) return end(rerun, describeDivergence(rerun), "parted");
  if (!rest.length)
    return end(rerun, `The same ${plural(rerun.matching, "token")}.${otherEngineNote()}`, "same");
  rerun.recordings = rest;
  return begin(rerun);
}

/**
 * @param {ReplayRerun} rerun
 * @param {string} said
 * @param {string} [tone]
 */
function end(rerun, said, tone = "") {
  rerun.running = false;
  if (state.active === rerun.answer) setState({ active: null });
  say(rerun, said, tone);
  changed("turns", "tokens", "focus");
}

// ---- status ----------------------------------------------------------------------------------

/**
 * @param {ReplayRerun} rerun
 * @param {string} said
 * @param {string} [tone]
 */
function say(rerun, said, tone = "") {
  Object.assign(rerun, { said, tone });
  changed("replay");
}

/** @param {{text: string} | null} token */
const wordOf = (token) => (token ? `“${tokenLabel(token.text, "·")}”` : "the end");

/** @param {ReplayRerun} replayRerun */
function describeDivergence({ matching, divergence }) {
  const { here = null, there = null, reason } = divergence ?? {};
  const same = `The same ${plural(matching, "token")}, then `;
  const before = matching ? same : "Different from the first token: ";
  if (reason === "context") return `${before}the context of this engine was full.`;
  return `${before}${wordOf(here)} here and ${wordOf(there)} in the file. ${explainDivergence()}`;
}

/** The engines here and of the file, in words, if they differ: [here, there] or null. */
function difference() {
  const [here, there] = [liveState().hello, state.replay?.playback.hello];
  if (!here || !there) return null;
  /** @param {{model: {dtype: string}, device: {name: string}}} hello */
  const of = ({ model, device }) => `${model.dtype} on ${device.name}`;
  return of(here) === of(there) ? null : [of(here), of(there)];
}

function otherEngineNote() {
  const other = difference();
  return other ? ` Here it is ${other[0]}, in the file ${other[1]}.` : "";
}

function explainDivergence() {
  const other = difference();
  return other
    ? `Here it is ${other[0]}, in the file ${other[1]}: the two round differently.`
    : "Device and dtype are the same, so the weights or the program differ.";
}
