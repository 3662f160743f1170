// What the server says, and what that changes.

import { stampReceived } from "./clock.js";
import { loseAll, settle } from "./inspect.js";
import { keeping } from "./keeping.js";
import { connect, send, toListener } from "./line.js";
import { scales, useScales } from "./metrics.js";
import { note } from "./overhead.js";
import { restore, save, saveSoon } from "./persist.js";
import { deskOf } from "./reachdesk.js";
import { endRefill, onForgotten, pauseRefill, pickUp, refill } from "./resume.js";
import { takeBack } from "./session.js";
import { changed, lastTurn, live, sameEngine, shownAnswer, state } from "./state.js";
import { showAnswer, view } from "./view.js";

/** Gives a refused prompt back to the composer. */
let giveBack = () => {};

/** Bring back the conversation of this tab, and connect. */
export function start(onRefused) {
  giveBack = onRefused;
  const kept = restore();
  if (kept) {
    const { turns, mode = state.mode, reach } = kept;
    Object.assign(state, { turns, mode, reach: deskOf(reach) });
    showAnswer(shownAnswer(lastTurn()));
    refill(kept.refill);
  }
  connect(onMessage, onLine);
  addEventListener("pagehide", save);
  changed("turns", "tokens", "line", "reach");
}

function onLine(line, retryAt) {
  state.line = line;
  state.retryAt = retryAt;
  if (line !== "open") {
    pauseRefill();
    loseAll();
  }
  changed("line");
}

const HANDLERS = {
  hello(message) {
    const talk = live();
    const before = talk.hello;
    talk.hello = message;
    if (!message.model.chat) talk.mode = "completion";
    if (before && !sameEngine(before, message)) dropScales();
    changed(...(state.replay ? ["line"] : ["hello", "settings", "size"]));
  },

  status(message) {
    state.engine = message;
    changed("line");
    if (message.state === "ready") pickUp();
  },

  event(message) {
    const { id, seq, event, at, prepared } = message;
    const { answer, segment } = whose(id) ?? {};
    if (!segment) return void toListener(message);
    stampReceived(event, at);
    segment.preparedMs ??= prepared ?? null;
    const taken = answer.take(segment, seq, event);
    if (taken === null) send({ type: "resume", id, after: segment.seq });
    if (!taken) return;
    if (event.type === "token") onToken(answer, event);
    if (event.type === "prefill") settleScales(event.stats ?? []);
    if (event.type === "done") onDone(answer, segment);
    keeping.take(segment, event);
    saveSoon();
    changed("tokens");
  },

  answer: settle,
  counted: settle,
  tokenized: settle,

  error(message) {
    if (typeof message.request === "number") return settle(message);
    const { answer, segment } = whose(message.id) ?? {};
    if (message.code === "unknown_generation" && segment) return onForgotten(answer, segment);
    if (message.id && !segment) return toListener(message); // or of one this page let go
    if (segment?.state === "done") return undefined; // a change that came after the end
    live().problem = message;
    if (segment && !segment.accepted) giveBack(takeBack(answer));
    changed("turns", "settings");
    return undefined;
  },
};

function onMessage(message) {
  HANDLERS[message.type]?.(message);
}

function whose(id) {
  for (const turn of live().turns.toReversed()) {
    for (const answer of turn.answers ?? []) {
      const segment = answer.find(id);
      if (segment) return { answer, segment };
    }
  }
  return null;
}

function onToken(answer, token) {
  note(token);
  if (token.stats) settleScales([token.stats]);
  if (answer === view.answer) changed("focus");
}

/** Another model or device: scales begin anew, those that a replay has set aside too. */
function dropScales() {
  if (state.replay) state.replay.aside.scales = undefined;
  else useScales();
}

/** Those of a replay are its own. */
function settleScales(stats) {
  if (!state.replay && scales.settle(stats)) changed("metric");
}

function onDone(answer, segment) {
  endRefill(segment);
  const talk = live();
  if (talk.active === answer && answer.segment === segment) {
    talk.active = null;
    changed("turns");
  }
}
