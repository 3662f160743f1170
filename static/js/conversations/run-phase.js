// What the run of a conversation does, in the drawer and on the button that opens it.

import { count, plural } from "../ui/format.js";
import { byId, setText } from "../ui/dom.js";
import { on, state } from "../state.js";
import { leftOf } from "./left.js";

export function setUpRunPhase() {
  on("conversations", drawButton);
}

/**
 * Return {phase, text, why} of a conversation whose run goes on, or ended unseen; null for another.
 * `why`: all that is to be said about a failed one, or "".
 *
 * @param {string} id
 */
export function runPhaseOf(id) {
  const { active, conversation } = state;
  if (id === conversation.id && active && !state.replay) return running(active);
  const one = leftOf(id);
  if (!one) return null;
  if (one.phase === "running")
    return one.answer ? running(one.answer) : { phase: "running", text: "being written", why: "" };
  const why = one.problem?.message ?? one.answer?.segment?.message ?? "";
  if (one.phase === "failed")
    return { phase: "failed", text: why ? `failed: ${why}` : "failed", why };
  const tokens = one.answer ? `, ${plural(one.answer.tokens.length, "token")}` : "";
  return { phase: "finished", text: `finished${tokens}`, why: "" };
}

/** @param {Answer} answer */
const running = (answer) => ({ phase: "running", text: progressOf(answer), why: "" });

/** @param {Answer} answer */
function progressOf({ segment, tokens }) {
  if (!segment || segment.state === "sent") return "sent";
  const isPaused = segment.pace === 0 && (segment.nDrawn > 0 || segment.preview);
  if (isPaused) return `paused, ${plural(tokens.length, "token")}`; // also if it gave its slot up
  if (segment.state === "queued") return `queued, position ${segment.position}`;
  if (segment.nDrawn) return `writing, ${plural(tokens.length, "token")}`;
  const { done, total } = segment.prefill;
  return `reading, ${count(done)} of ${plural(total, "token")}`;
}

const PHASES = [
  ["failed", "failed"],
  ["finished", "finished"],
  ["running", "being written"],
];

/** Mark the button with the most urgent phase of the conversations that are not on the page. */
function drawButton() {
  const counts = PHASES.map(([phase, words]) => {
    const n = state.left.filter((one) => one.phase === phase).length;
    return { phase, n, words: `${n} ${words}` };
  }).filter(({ n }) => n);
  byId("conversations-open").dataset.phase = counts[0]?.phase ?? "";
  const words = counts.map((each) => each.words).join(", ");
  setText(byId("conversations-left"), words && `Other conversations: ${words}`);
}
