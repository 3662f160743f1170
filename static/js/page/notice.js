// Notice over the composer: errors and long waits.

import { byId, el, setText } from "../ui/dom.js";
import { count, sentence } from "../ui/format.js";
import { startNewChat } from "../chat/composer.js";
import { openDrawer } from "../conversations/drawer.js";
import { dismissUnkept } from "../conversations/keeper.js";
import { saveReplay } from "../replay/dialog.js";
import { hasNoModel, isRecordedRunShown, openRecordedRun } from "../replay/recorded-run.js";
import { sendAgain } from "../chat/session.js";
import { awaitedSummary } from "../chat/summarize.js";
import { oldestTurns } from "../turns/summary.js";
import { setTruncation } from "../chat/truncation.js";
import { canSwitch, openModels } from "../panels/models.js";
import { hasServer, isLocal, moveEngine, reconnect } from "../net/connection.js";
import { changed, lastTurn, on, setState, shownAnswer, state } from "../state.js";

/**
 * `progress`: a part of 1, null if it is not known; absent: nothing is under way.
 *
 * @typedef {[label: string, action: () => unknown]} Act
 * @typedef {{tone: "bad" | "wait", head: string, text: string, progress?: number | null, acts?: Act[]}} Notice
 */

let shown = "";
let announced = "";
let ticking = 0;
let dismissedNote = "";

export function setUpNotice() {
  on("connection turns hello settings tokens conversations", draw);
}

/** Return the most urgent notice, or null. @returns {Notice | null} */
function current() {
  if (state.replay) return state.problem ? about(state.problem) : aboutRecordedRun();
  const kept = state.turns.length ? " Your text is kept." : "";
  if (state.connection === "lost" && isLocal())
    return {
      tone: "bad",
      head: "The model has stopped",
      text: `${sentence(state.lost)}${kept}`.trim(),
      acts: [["Start it again", reconnect], ...toServer()],
    };
  if (state.connection === "lost") {
    const seconds = Math.max(0, Math.ceil((state.retryAt - Date.now()) / 1000));
    const text = `${kept} Trying again ${seconds ? `in ${seconds} s` : "now"}.`.trim();
    return {
      tone: "bad",
      head: "The server cannot be reached",
      text,
      acts: [["Try now", reconnect]],
    };
  }
  const { state: engine, message, progress } = state.engine;
  if (engine === "loading")
    return {
      tone: "wait",
      head: "The model is loading",
      text: sentence(message),
      progress: progress ?? null,
      acts: canSwitch && !isLocal() ? [["Models", openModels]] : [],
    };
  if (engine === "restarting") {
    const then = kept && `${kept} Press Continue once it is ready.`;
    return {
      tone: "bad",
      head: "The engine is restarting",
      text: `${sentence(message)}${then}`.trim(),
      progress: progress ?? undefined,
    };
  }
  if (engine === "failed" && isLocal())
    return {
      tone: "bad",
      head: "The model does not run in this browser",
      text: `${sentence(message)}${kept}`,
      acts: hasServer ? toServer() : [["Watch a recorded run", openRecordedRun]],
    };
  if (engine === "failed")
    return { tone: "bad", head: "The engine has failed", text: sentence(message) };
  if (state.problem) return about(state.problem);
  const summary = awaitedSummary()?.summary;
  if (summary) return makingRoom(summary.covers);
  const segment = shownAnswer(lastTurn())?.segment;
  const end = segment && !state.active && ended(segment);
  if (end) return end;
  const storage = aboutStorage();
  if (storage) return storage;
  if (state.hello?.note && state.hello.note !== dismissedNote) return aboutModel(state.hello.note);
  if (state.hello && !state.hello.model.chat && !state.turns.length)
    return {
      tone: "wait",
      head: "This model has no chat template",
      text: "It can only continue text: write the beginning of one.",
    };
  return null;
}

/**
 * The server's sentence about the model, such as why it is not the default one.
 *
 * @param {string} note
 * @returns {Notice}
 */
function aboutModel(note) {
  const dismiss = () => {
    dismissedNote = note;
    changed("hello");
  };
  /** @type {Act[]} */
  const acts = [["Dismiss", dismiss]];
  if (canSwitch) acts.unshift(["Models", openModels]);
  return { tone: "wait", head: "Another model runs", text: sentence(note), acts };
}

/** @param {number} covers @returns {Notice} */
const makingRoom = (covers) => ({
  tone: "wait",
  head: "The context is full",
  text:
    `The model is summarising ${oldestTurns(covers)}. ` +
    "Your message is sent when the summary is written.",
});

/** The way out of an engine in this browser that cannot go on. @returns {Act[]} */
const toServer = () => (hasServer ? [["Go on on the server", () => moveEngine(null)]] : []);

/**
 * What is played in place of a model, and why; null where a model can run or something else is played.
 *
 * @returns {Notice | null}
 */
function aboutRecordedRun() {
  if (!hasNoModel() || !isRecordedRunShown()) return null;
  const name = state.hello?.model.name ?? "The model";
  return {
    tone: "wait",
    head: "The model does not run in this browser, so this is a recorded run",
    text:
      `${sentence(state.engine.message)} ${name} wrote this on a server. All that was measured is here: ` +
      "pause, step, focus a token, open an instrument.",
  };
}

/** @type {Record<string, string>} */
const HEADS = {
  queue_full: "The queue is full",
  context_exceeded: "The prompt is too long",
  invalid_request: "The request was refused",
  unavailable: "The engine is not ready",
  bad_message: "The request was refused",
  not_in_browser: "Not in this browser",
  place: "The model runs on the server now",
  too_long: "The conversation is too long to send",
  attachment: "Not attached",
  markdown: "Not shown as Markdown",
  walk: "The tour could not start",
  address: "This link cannot be followed",
  summary: "There is no room for your message",
};

/** @param {Problem} problem @returns {Notice} */
function about(problem) {
  const dismiss = () => {
    setState({ problem: null });
    changed("settings");
  };
  return {
    tone: "bad",
    head: HEADS[problem.code] ?? "That did not work",
    text: sentence(problem.message),
    acts: [...waysOut(problem), ["Dismiss", dismiss]],
  };
}

/**
 * What may be done with a text that was refused because it is too long for the context.
 *
 * @param {Problem} problem
 * @returns {Act[]}
 */
function waysOut({ code, inTurns }) {
  /** @type {Act} */
  const drop = ["Drop the oldest turns", () => truncateAndSend("auto")];
  if (code === "summary") return [["Try again", () => truncateAndSend("summarize")], drop];
  if (code !== "context_exceeded" || state.truncation !== "disabled")
    return inTurns ? [["Send again", sendAgain]] : [];
  /** @type {Act} */
  const slide = ["Let the oldest tokens leave", () => truncateAndSend("slide")];
  if (state.mode !== "chat" || state.turns.length < (inTurns ? 3 : 1)) return [slide];
  if (inTurns) return [drop, slide];
  return [["Summarise the oldest turns", () => truncateAndSend("summarize")], drop, slide];
}

/** @param {Truncation} truncation */
function truncateAndSend(truncation) {
  setTruncation(truncation);
  if (state.problem?.inTurns) sendAgain();
  else byId("composer").requestSubmit();
}

/**
 * What becomes of the next message, by the page's `truncation`.
 *
 * @type {Partial<Record<Truncation, string>>}
 */
const NEXT = {
  auto: " The next message is sent without the oldest turns.",
  summarize: " Before the next message is sent, the model summarises the oldest turns.",
};

/** Return the notice for a generation that ended early, or null. @param {Segment} segment @returns {Notice | null} */
function ended({ reason, message, context }) {
  if (reason === "error") {
    return {
      tone: "bad",
      head: "Generation was interrupted",
      text: `${sentence(message)} The text so far is kept; press Continue to resume.`,
    };
  }
  if (reason === "context") {
    const next = state.mode === "chat" ? (NEXT[state.truncation] ?? "") : "";
    return {
      tone: "bad",
      head: "The context is full",
      text: `All ${count(context)} positions are used; the model cannot continue.${next}`,
      acts: [["New chat", startNewChat]],
    };
  }
  return null;
}

/** Return the notice about a conversation that is not kept as it should be, or null. @returns {Notice | null} */
function aboutStorage() {
  const { unkept, copied, turns } = state;
  if (copied) {
    const dismiss = () => setState({ copied: "" });
    return {
      tone: "wait",
      head: "Kept as a copy",
      text: `Another tab changed this conversation meanwhile. What was written here is kept as “${copied}”.`,
      acts: [["Dismiss", dismiss]],
    };
  }
  if (!unkept || unkept.dismissed || !turns.length) return null;
  /** @type {Act[]} */
  const acts = [
    ["Save as a file", () => saveReplay()],
    ["Dismiss", dismissUnkept],
  ];
  if (unkept.code === "storage_full") acts.unshift(["Conversations", openDrawer]);
  const head =
    unkept.code === "storage_full" ? "The browser’s storage is full" : "Conversations are not kept";
  return { tone: "bad", head, text: unkept.message, acts };
}

/** @type {Partial<Record<State["connection"], string>>} */
const CONNECTIONS = { connecting: "Connecting", lost: "Not connected" };
const ENGINES = {
  connecting: "Connecting",
  loading: "Loading",
  ready: "Connected",
  restarting: "Restarting",
  failed: "Failed",
};

function phase() {
  if (state.replay) return "replay";
  if (state.connection === "open") return state.engine.state;
  return state.connection === "lost" ? "lost" : "connecting";
}

function draw() {
  const status = CONNECTIONS[state.connection] ?? ENGINES[state.engine.state];
  setText(byId("conn"), state.replay ? "Replay" : status);
  document.body.dataset.engine = phase();
  const notice = current();
  const box = byId("notice");
  box.hidden = !notice;
  clearTimeout(ticking);
  if (!notice) {
    shown = announced = "";
    return;
  }
  if (state.connection === "lost" && !isLocal() && !state.replay)
    ticking = setTimeout(() => changed("connection"), 1000);
  box.dataset.tone = notice.tone;
  setText(byId("notice-head"), notice.head);
  setText(byId("notice-text"), notice.text);
  const bar = byId("notice-progress");
  bar.hidden = notice.progress === undefined;
  if (notice.progress != null) bar.value = notice.progress;
  else bar.removeAttribute("value");
  if (shown !== notice.head)
    byId("notice-acts").replaceChildren(...(notice.acts ?? []).map(button));
  shown = notice.head;
  announceAlert(notice);
}

/** @param {Act} act */
function button([label, action]) {
  const node = el("button", "text", label);
  node.type = "button";
  node.addEventListener("click", action);
  return node;
}

/** Announce an alert once, not at every tick of its countdown. @param {Notice} notice */
function announceAlert({ tone, head, text }) {
  const what = tone === "bad" ? `${head}. ${state.connection === "lost" ? "" : text}` : "";
  if (what === announced) return;
  announced = what;
  byId("live-alert").textContent = what;
}
