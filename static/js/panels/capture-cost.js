// Dialog with the cost of measuring: speed without capture, with capture, and while an instrument
// queries the engine; and the memory of the measurements the page keeps.

import { byId, drawPairs } from "../ui/dom.js";
import { leftSegments } from "../conversations/left.js";
import { bytes, count, figure, plural } from "../ui/format.js";
import { retention } from "../turns/retention.js";
import { usage as cacheUsage } from "../look/shared/answer-cache.js";
import { speeds } from "./overhead.js";
import { liveState, on, state } from "../state.js";

const dialog = byId("costs");

export function setUpCosts() {
  byId("costs-open").addEventListener("click", () => {
    draw();
    dialog.showModal();
  });
  dialog.addEventListener("click", ({ target }) => target === dialog && dialog.close());
  on("tokens turns hello", () => dialog.open && draw());
  on("turns", forgetRemovedRuns);
}

/** Drop measurements of runs that left the conversation. */
function forgetRemovedRuns() {
  const answers = liveState().turns.flatMap(({ answers: own = [] }) => own);
  const segments = [...answers.flatMap((answer) => answer.segments), ...leftSegments()];
  retention.retainOnly(new Set(segments));
}

function draw() {
  drawPairs(byId("costs-facts"), [...rowsOfSpeed(), ...rowsOfMemory()]);
}

function rowsOfSpeed() {
  const none = { off: null, on: null, asking: null };
  const { off, on: captured, asking } = state.replay ? none : speeds();
  const speedText = (/** @type {number | null} */ value) => {
    if (!value) return "not measured yet";
    const share = off && value !== off ? Math.round(100 * (1 - value / off)) : 0;
    return `${figure(value)} tok/s${share > 0 ? `, ${share} % slower` : ""}`;
  };
  return [
    ["Capture off", speedText(off)],
    ["Capture on", speedText(captured)],
    ["Instrument open", speedText(asking)],
  ];
}

function rowsOfMemory() {
  const { bytes: kept, whole, together, shared, largestGroup } = retention.usage;
  const size = `${bytes(kept)} of ${bytes(retention.mostBytes)}`;
  const parts = [size, `${plural(whole, "token")} in full`];
  if (together) parts.push(`${count(together)} with averaged heads`);
  if (shared) parts.push(`${count(shared)} as means of up to ${largestGroup} tokens`);
  const { bytes: given, mostBytes } = cacheUsage();
  return [
    ["Measurements", parts.join(", ")],
    ["Instruments", `${bytes(given)} of ${bytes(mostBytes)} of results`],
  ];
}
