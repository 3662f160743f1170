// Handlers of the server's messages.

import { stampReceived } from "../ui/message-clock.js";
import { rejectAll, resolveRequest } from "../net/inspect.js";
import { retention } from "../turns/retention.js";
import { connect, send, notifyListener } from "../net/connection.js";
import { followedRun, onFollowedError, onTakenAlready, resumeFollowed, unfollow } from "../net/followed-runs.js";
import { scales, useScales } from "../turns/metrics.js";
import { recordInterval } from "../panels/overhead.js";
import { loseRerun } from "../replay/rerun.js";
import { restore, save, saveSoon } from "../turns/persist.js";
import { keepNow, keepSoon } from "../conversations/keeper.js";
import { restoreKept, restoreLeftConversations } from "../conversations/library.js";
import { newStore } from "../interventions/intervention-store.js";
import {
  endRefill,
  onUnknownGeneration,
  pauseRefill,
  resumeRun,
  refill,
} from "../turns/resume.js";
import { keepRequest, withdrawRequest } from "../chat/session.js";
import { goOn } from "../chat/summarize.js";
import {
  changed,
  lastTurn,
  liveState,
  sameEngine,
  setLiveState,
  setState,
  shownAnswer,
  state,
} from "../state.js";
import { showAnswer, view } from "../view.js";

/** @typedef {import("../chat/session.js").Withdrawn} Withdrawn */

/** Puts a refused prompt back into the composer. @type {(request: Withdrawn) => void} */
let restorePrompt = () => {};

/**
 * Restore the conversation of this tab and connect. Returns whether there was one.
 *
 * @param {(request: Withdrawn) => void} onRefused
 */
export function start(onRefused) {
  restorePrompt = onRefused;
  const kept = restore();
  if (kept) {
    const { turns, mode = state.mode, reach, conversation } = kept;
    setState({ turns, mode, interventions: newStore(reach) });
    if (conversation) setState({ conversation });
    showAnswer(shownAnswer(lastTurn()));
    refill(kept.refill);
    restoreKept(turns).then(() => kept.unsaved && keepSoon());
    restoreLeftConversations(kept.left);
  }
  connect(onMessage, onConnection, onStayedOnServer);
  addEventListener("pagehide", save);
  document.addEventListener("visibilitychange", () => document.hidden && keepNow());
  changed("turns", "tokens", "connection", "interventions");
  return kept !== null;
}

/** @param {State["connection"]} connection @param {number} retryAt */
function onConnection(connection, retryAt, message = "") {
  setState({ connection, retryAt, lost: message });
  if (connection !== "open") {
    pauseRefill();
    rejectAll();
    loseRerun();
  }
}

/** The model ran in this browser before a reload, and cannot now. @param {string} message */
function onStayedOnServer(message) {
  setState({ problem: { code: "place", message } });
}

const HANDLERS = {
  /** @param {ToPage.Hello} message */
  hello(message) {
    const before = liveState().hello;
    setLiveState({ hello: message, ...(!message.model.chat && { mode: "completion" }) });
    if (before && !sameEngine(before, message)) dropScales();
    changed(...(state.replay ? ["connection"] : ["hello", "settings", "size"]));
  },

  /** @param {ToPage.Status} message */
  status(message) {
    setState({ engine: message });
    if (message.state !== "ready") return;
    resumeRun();
    resumeFollowed();
  },

  /** @param {ToPage.Generation} message */
  event(message) {
    const { id, seq, event, at, prepared } = message;
    const followed = followedRun(id);
    const found = findSegment(id) ?? followed;
    if (!found) return void notifyListener(message);
    const { answer, segment } = found;
    stampReceived(event, at);
    segment.preparedMs ??= prepared ?? null;
    const taken = answer.applyEvent(segment, seq, event);
    if (taken === null) send({ type: "resume", id, after: segment.seq });
    if (!taken) return;
    if (event.type === "token") onToken(answer, event);
    if (event.type === "prefill") settleScales(event.stats ?? []);
    retention.record(segment, event);
    if (found === followed) toFollower(followed, event);
    else onOwnEvent(answer, segment, event);
    changed("tokens");
  },

  answer: resolveRequest,
  counted: resolveRequest,
  tokenized: resolveRequest,
  segmented: resolveRequest,

  /** @param {ToPage.Error} message */
  error(message) {
    if (typeof message.request === "number") return resolveRequest(message);
    const elsewhere = followedRun(message.id);
    if (elsewhere && onFollowedError(elsewhere, message)) return undefined;
    const found = elsewhere ?? findSegment(message.id);
    if (!found) {
      if (message.id) return notifyListener(message); // may be a dropped generation
    } else {
      const { answer, segment } = found;
      if (message.code === "unknown_generation") return onUnknownGeneration(answer, segment);
      if (segment.state === "done") return undefined; // an update that arrived after the end
      if (onTakenAlready(segment, message)) return undefined;
      if (isRepeated(message)) return void send({ type: "resume", id: segment.id, after: segment.seq });
    }
    setLiveState({ problem: message });
    if (found && !found.segment.accepted) onRefused(found.answer, found.segment, message);
    changed("turns", "settings");
    return undefined;
  },
};

/** Was this request refused because it arrived twice? A proxy may repeat it. @param {ToPage.Error} message */
const isRepeated = ({ code, param }) => code === "invalid_request" && param === "id";

/** @param {Answer} answer @param {Segment} segment @param {ToPage.Error} message */
function onRefused(answer, segment, message) {
  endRefill(segment);
  if (!segment.staysIfRefused) return restorePrompt(withdrawRequest(answer));
  setLiveState({ problem: { ...message, inTurns: true } });
  return keepRequest(answer, message);
}

/** @param {any} message */
function onMessage(message) {
  if (message.type in HANDLERS) HANDLERS[/** @type {keyof typeof HANDLERS} */ (message.type)](message);
}

/** @param {string | null | undefined} id */
function findSegment(id) {
  if (!id) return null;
  for (const turn of liveState().turns.toReversed()) {
    for (const answer of turn.answers ?? []) {
      const segment = answer.find(id);
      if (segment) return { answer, segment };
    }
  }
  return null;
}

/**
 * Handle an event of the page's conversation.
 *
 * @param {Answer} answer
 * @param {Segment} segment
 * @param {RunEvent} event
 */
function onOwnEvent(answer, segment, event) {
  if (event.type === "token") recordInterval(event, segment);
  if (event.type === "done") onDone(answer, segment);
  saveSoon();
  if (segment.here || segment.left) keepSoon(segment.here);
  if (event.type === "done") keepNow();
}

/** @param {NonNullable<ReturnType<typeof followedRun>>} run @param {RunEvent} event */
function toFollower({ segment, follower }, event) {
  if (event.type === "done") unfollow(segment.id);
  follower.onEvent(segment, event);
}

/** @param {Answer} answer @param {ToPage.Token} token */
function onToken(answer, token) {
  if (token.stats) settleScales([token.stats]);
  if (answer === view.answer) changed("focus");
}

/** Reset the colour scales for another model or device, also those suspended by a replay. */
function dropScales() {
  if (state.replay) setLiveState({ scales: undefined });
  else useScales();
}

/** Update the colour scales; a replay has scales of its own. @param {ToPage.TokenStats[]} stats */
function settleScales(stats) {
  if (!state.replay && scales.settle(stats)) changed("metric");
}

/** @param {Answer} answer @param {Segment} segment */
function onDone(answer, segment) {
  endRefill(segment);
  if (liveState().active === answer && answer.segment === segment) {
    setLiveState({ active: null });
    changed("turns");
    goOn();
  }
}
