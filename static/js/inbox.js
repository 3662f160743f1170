// What the server says, and what that changes.

import { stampReceived } from "./clock.js";
import { loseAll, settle } from "./inspect.js";
import { connect, send } from "./line.js";
import { freshScales, scales } from "./metrics.js";
import { note } from "./overhead.js";
import { restore, save, saveSoon } from "./persist.js";
import { endReplay, onForgotten, pauseReplay, pickUp, replay } from "./resume.js";
import { takeBack } from "./session.js";
import { changed, lastTurn, shownAnswer, state } from "./state.js";
import { showAnswer, view } from "./view.js";

/** Gives a refused prompt back to the composer. */
let giveBack = () => {};

/** Bring back the conversation of this tab, and connect. */
export function start(onRefused) {
  giveBack = onRefused;
  const kept = restore();
  if (kept) {
    Object.assign(state, { turns: kept.turns, mode: kept.mode ?? state.mode });
    showAnswer(shownAnswer(lastTurn()));
    replay(kept.replay);
  }
  connect(onMessage, onLine);
  addEventListener("pagehide", save);
  changed("turns", "tokens", "line");
}

function onLine(line, retryAt) {
  state.line = line;
  state.retryAt = retryAt;
  if (line !== "open") {
    pauseReplay();
    loseAll();
  }
  changed("line");
}

const HANDLERS = {
  hello(message) {
    const before = state.hello;
    state.hello = message;
    if (
      before &&
      (before.model.name !== message.model.name || before.device.name !== message.device.name)
    )
      freshScales();
    if (!message.model.chat) state.mode = "completion";
    changed("hello", "settings", "size");
  },

  status(message) {
    state.engine = message;
    changed("line");
    if (message.state === "ready") pickUp();
  },

  event({ id, seq, event, at, prepared }) {
    const { answer, segment } = whose(id) ?? {};
    if (!segment) return;
    stampReceived(event, at);
    segment.preparedMs ??= prepared ?? null;
    const taken = answer.take(segment, seq, event);
    if (taken === null) send({ type: "resume", id, after: segment.seq });
    if (!taken) return;
    if (event.type === "token") onToken(answer, event);
    if (event.type === "prefill" && scales.settle(event.stats ?? [])) changed("metric");
    if (event.type === "done") onDone(answer, segment);
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
    if (message.id && !segment) return undefined; // of a generation this page let go
    if (segment?.state === "done") return undefined; // a change that came after the end
    state.problem = message;
    if (segment && !segment.accepted) giveBack(takeBack(answer));
    changed("turns", "settings");
    return undefined;
  },
};

function onMessage(message) {
  HANDLERS[message.type]?.(message);
}

function whose(id) {
  for (const turn of state.turns.toReversed()) {
    for (const answer of turn.answers ?? []) {
      const segment = answer.find(id);
      if (segment) return { answer, segment };
    }
  }
  return null;
}

function onToken(answer, token) {
  note(token);
  if (token.stats && scales.settle([token.stats])) changed("metric");
  if (answer === view.answer) changed("focus");
}

function onDone(answer, segment) {
  endReplay(segment);
  if (state.active === answer && answer.segment === segment) {
    state.active = null;
    changed("turns");
  }
}
