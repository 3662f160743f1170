// Status line over the composer: progress of the run, and the buttons Stop, Regenerate, Continue,
// ….

import { byId, setAttr, setParts, setText } from "../ui/dom.js";
import { count, duration, figure, percent, plural } from "../ui/format.js";
import { continueAnswer, regenerate, showVersion } from "./session.js";
import { stop } from "../turns/stop.js";
import { lastTurn, on, ready, shownAnswer, state } from "../state.js";
import { startNewChat } from "./composer.js";
import { lackOf } from "../ui/lacks.js";
import { isPaused, pauseOf } from "./pace.js";
import { editOf } from "../turns/summary.js";
import { watermarkOf, zOf } from "../turns/watermark.js";
import { workOf } from "../turns/work.js";
import { goToEnd } from "../ui/following.js";

const COPIED_MS = 1500;
const SEPARATOR = " · ";
let announced = "";

export function setUpStatusLine() {
  /**
   * @param {keyof ElementsById} id
   * @param {() => void} action
   */
  const act = (id, action) => byId(id).addEventListener("click", action);
  act("stop", stop);
  act("again", () => {
    regenerate();
    goToEnd();
  });
  act("more", () => {
    continueAnswer();
    goToEnd();
  });
  act("copy", copyAnswer);
  act("new", startNewChat);
  act("older", () => showVersion((lastTurn()?.shown ?? 0) - 1));
  act("newer", () => showVersion((lastTurn()?.shown ?? 0) + 1));
  on("turns tokens connection hello", draw);
}

/** Copy the last answer, including the text it completes. */
export async function copyAnswer() {
  const turn = lastTurn();
  if (!turn) return;
  const text = (turn.given + (shownAnswer(turn)?.text ?? "")).trim();
  const label = (await toClipboard(text)) ? "Copied" : "Not allowed";
  setText(byId("copy-label"), label);
  byId("copy").setAttribute("data-said", "");
  byId("live-status").textContent =
    label === "Copied" ? "Answer copied" : "The browser did not allow copying";
  setTimeout(() => {
    setText(byId("copy-label"), "Copy");
    byId("copy").removeAttribute("data-said");
  }, COPIED_MS);
}

/**
 * Copy by the Clipboard API (https or localhost only), else by selecting and `execCommand`.
 *
 * @param {string} text
 */
async function toClipboard(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const { activeElement } = document;
    const carrier = document.body.appendChild(document.createElement("textarea"));
    carrier.className = "vh";
    carrier.value = text;
    carrier.select();
    const copied = document.execCommand("copy");
    carrier.remove();
    if (activeElement instanceof HTMLElement) activeElement.focus();
    return copied;
  }
}

/**
 * Where the keyboard goes on when its button can no longer be pressed, by the ids of both. The page
 * would lose it.
 *
 * @type {Record<string, ("stop" | "again" | "older" | "newer")[]>}
 */
const NEXT = {
  stop: ["again"],
  pause: ["again"],
  step: ["again"],
  again: ["stop"],
  more: ["stop"],
  older: ["newer", "stop"],
  newer: ["older", "stop"],
};

function keepKeyboard() {
  const from = document.activeElement;
  if (!(from instanceof HTMLButtonElement) || !from.disabled || !from.matches(":focus-visible")) return;
  NEXT[from.id]?.map(byId).find(({ disabled }) => !disabled)?.focus();
}

function draw() {
  const turn = lastTurn();
  const answer = shownAnswer(turn);
  const segment = answer?.segment ?? null;
  const writing = !!state.active;
  const idle = ready() && !writing && !!answer;
  byId("stop").disabled = !writing || state.connection !== "open" || !!state.replay;
  byId("again").disabled = !idle;
  const isEdited = !!turn?.summary && editOf(turn) !== null;
  byId("more").disabled = !idle || segment?.reason === "context" || isEdited;
  byId("copy").disabled = !answer || answer.empty;
  byId("new").disabled = state.turns.length === 0 || !!state.replay;
  const versions = turn?.answers.length ?? 0;
  byId("versions").hidden = versions < 2;
  byId("older").disabled = writing || turn?.shown === 0;
  byId("newer").disabled = writing || turn?.shown === versions - 1;
  setText(byId("version"), versions > 1 ? `${(turn?.shown ?? 0) + 1}/${versions}` : "");
  const parts = answer && segment ? describe(answer, segment) : [];
  setParts(byId("stats"), parts, SEPARATOR);
  setAttr(byId("stats"), "title", withReason(parts.join(SEPARATOR), segment) || null);
  announce(segment);
  queueMicrotask(keepKeyboard); // once the pace is drawn too
}

/** @type {Record<string, string>} */
const REASONS = {
  eos: "",
  stop: "stop string",
  length: "max tokens reached",
  context: "context full",
  cancelled: "stopped",
  error: "interrupted",
};

/**
 * Say why a run ended. One with a grammar stops when the text is complete by it.
 *
 * @param {Segment} segment
 */
export function reasonOf({ reason, grammar, message }) {
  if (reason === "cancelled" && message) return "ended while paused";
  return reason === "stop" && grammar ? "grammar complete" : REASONS[reason];
}

/**
 * Add to the status of a run why the server ended it, for a tooltip.
 *
 * @param {string} described
 * @param {Segment | null} segment
 */
export function withReason(described, segment) {
  const why = segment?.reason === "cancelled" ? segment.message : "";
  return [described, why].filter(Boolean).join(": ");
}

/**
 * Is the prompt of a run being read? Behind an upstream a paused run has no preview to say so.
 *
 * @param {Segment} segment
 */
export const isPrefilling = (segment) =>
  segment.nDrawn === 0 && !segment.preview && !(isPaused(segment) && lackOf("preview"));

/**
 * Does a run wait in the queue? One that gave its slot up while it was paused waits for the person.
 *
 * @param {Segment} segment
 */
export const isQueued = (segment) =>
  segment.state === "queued" && (!isPaused(segment) || isPrefilling(segment));

/**
 * Return what the status line says of a run, the most important first.
 *
 * @param {Answer} answer
 * @param {Segment} segment
 * @returns {string[]}
 */
function describe(answer, segment) {
  if (state.active === answer) {
    if (segment.state === "sent")
      return [state.connection === "open" || state.replay ? "Sent" : "Waiting for the connection"];
    if (isQueued(segment)) return [`Queued, position ${segment.position}`];
    if (isPrefilling(segment)) {
      const { done, total } = segment.prefill;
      return [`Reading the prompt, ${count(done)} of ${plural(total, "token")}`];
    }
  }
  if (segment.edited) return ["edited, not measured"];
  if (segment.textOnly !== null)
    return [answer.empty ? "not answered" : "only the text of this answer is left"];
  const reason = state.active === answer ? "" : reasonOf(segment);
  const ttft = segment.timings?.ttft_ms ?? (answer.tokens[segment.first] && workOf(answer.tokens[segment.first].times));
  const speed = tokensPerSecond(answer, segment);
  return [
    pauseOf(answer) || plural(answer.tokens.length, "token"),
    describeWatermark(answer),
    reason,
    speed ? `${figure(speed)} tok/s` : "",
    ttft !== undefined && segment.nTokens ? `TTFT ${duration(ttft)}` : "",
  ].filter(Boolean);
}

/** Say how many tokens are green so far, and how far above chance that is. @param {Answer} answer */
function describeWatermark(answer) {
  const sums = watermarkOf(answer);
  if (!sums) return "";
  return `z ${zOf(sums).toFixed(1)}, ${percent(sums.green / sums.n)} % green`;
}

/**
 * Mean decode speed of a run so far (tok/s), or null.
 *
 * @param {Answer} answer
 * @param {Segment} segment
 */
export function tokensPerSecond(answer, segment) {
  if (segment.nDrawn < 2) return null;
  const tpot = meanInterval(answer, segment);
  return tpot > 0 ? 1000 / tpot : null;
}

const sums = new WeakMap();

/**
 * Mean time between tokens after the first (ms); the server's figure once the run is done.
 *
 * @param {Answer} answer
 * @param {Segment} segment
 */
export function meanInterval(answer, segment) {
  if (segment.timings?.tpot_ms) return segment.timings.tpot_ms;
  const known = sums.get(segment) ?? { n: 1, sum: 0 };
  for (; known.n < segment.nDrawn; known.n += 1)
    known.sum += workOf(answer.tokens[segment.first + known.n].times);
  sums.set(segment, known);
  return known.sum / Math.max(1, known.n - 1);
}

/**
 * Tell screen readers when generation starts and ends, never the tokens themselves.
 *
 * @param {Segment | null} segment
 */
function announce(segment) {
  if (state.replay) return;
  let now = "";
  if (state.active)
    now =
      segment && isQueued(segment)
        ? `Queued, position ${segment.position}`
        : isPaused(segment)
          ? "Paused"
          : "Generating";
  else if (segment?.edited && announced) now = "Answer edited";
  else if (segment && announced) now = `Answer complete, ${plural(segment.nTokens, "token")}`;
  if (now === announced || (!state.active && !announced)) return;
  announced = now;
  byId("live-status").textContent = now;
}
