// Turns view of the timeline: a strip for each answer of the conversation. Its chunks are as wide as
// they have tokens; those that the prefix cache had are hatched.

import { el, setText, setVars } from "../../ui/dom.js";
import { count, duration, percent, plural } from "../../ui/format.js";
import { state } from "../../state.js";
import { Missing } from "../shared/context.js";
import { KINDS, runsOf, totalsOf } from "./chunks.js";

/** @type {HTMLElement} */
let summary;
/** @type {HTMLElement} */
let list;
/** @type {ChunkedRun[]} */
let runs = [];

/** @type {InstrumentView<RunFocus>} */
export const turns = {
  name: "turns",
  label: "Turns",

  setUp(root) {
    summary = root.appendChild(el("p", "readout tn-summary"));
    list = root.appendChild(el("ol", "tn-list"));
    list.tabIndex = 0; // it may scroll
    list.setAttribute("aria-label", "Answers of this conversation");
    root.append(buildKey());
  },

  show() {
    runs = runsOf(state.turns);
    if (!runs.length) throw new Missing("The tokens of these answers are no longer available.");
    const most = Math.max(...runs.map(({ nPrompt, nWritten }) => nPrompt + nWritten));
    list.replaceChildren(...runs.map((run, i) => newRow(run, i, most)));
    setText(summary, describe());
    return "Measured on the runs of this conversation: tokens as they came, times from the end of each run.";
  },

  table: () => ({ columns: COLUMNS, rows: runs.flatMap(rowsOf) }),
};

const COLUMNS = [
  { name: "answer", format: count },
  "chunk",
  "what",
  { name: "tokens", format: count },
  { name: "reused", format: count },
  { name: "computed", format: count },
  "time, ms",
];

/** @param {ChunkedRun} run @param {number} i */
function rowsOf({ prompt, written, nWritten, nPrompt, nReused, readMs, writeMs, toolMs }, i) {
  const n = i + 1;
  return [
    ...prompt.map(({ kind, from, end, reused }) => [n, ...KINDS[kind], end - from, reused, end - from - reused, null]),
    [n, "", "prompt", nPrompt, nReused, nPrompt - nReused, readMs],
    [n, KINDS[written][0], `${KINDS[written][1]}, written`, nWritten, 0, nWritten, writeMs],
    ...(toolMs === null ? [] : [[n, "", "tools", null, null, null, toolMs]]),
  ];
}

function describe() {
  const { read, write, tools, share } = totalsOf(runs);
  const reused = runs.reduce((sum, { nReused }) => sum + nReused, 0);
  const all = runs.reduce((sum, { nPrompt }) => sum + nPrompt, 0);
  const times = [
    `reading prompts ${duration(read)}, ${percent(share)} % of the time`,
    `writing ${duration(write)}`,
    ...(runs.some(({ toolMs }) => toolMs !== null) ? [`tools ${duration(tools)}`] : []),
  ];
  const moved = runs.reduce((sum, { nMoved }) => sum + nMoved, 0);
  const where = moved ? `the KV cache, ${count(moved)} of them moved from other texts` : "the prefix cache";
  return `${plural(runs.length, "answer")}: ${times.join("; ")}. ${count(reused)} of ${count(all)} prompt tokens were reused from ${where}.`;
}

/** @param {ChunkedRun} run @param {number} i @param {number} most */
function newRow(run, i, most) {
  const { prompt, written, nWritten, nPrompt, nReused, readMs, writeMs, toolMs } = run;
  const row = el("li", "tn-row");
  const strip = el("div", "tn-strip");
  for (const { kind, from, end, reused } of prompt) {
    const computed = end - from - reused;
    if (reused) strip.append(newChunk(kind, reused, "reused", most));
    if (computed) strip.append(newChunk(kind, computed, "computed", most));
  }
  if (nWritten) strip.append(newChunk(written, nWritten, "written", most));
  const times = [
    `${count(nPrompt - nReused)} of ${count(nPrompt)} prompt tokens computed${readMs === null ? "" : ` in ${duration(readMs)}`}`,
    `${count(nWritten)} written${writeMs === null ? "" : ` in ${duration(writeMs)}`}`,
    ...(toolMs === null ? [] : [`tools ${duration(toolMs)}`]),
  ];
  row.append(el("b", "tn-no", `${i + 1}`), strip, el("span", "tn-times", times.join(", ")));
  return row;
}

/** @param {ChunkKind} kind @param {number} n @param {"reused" | "computed" | "written"} how @param {number} most */
function newChunk(kind, n, how, most) {
  const [letter, name] = KINDS[kind];
  const chunk = el("span", "tn-chunk", letter);
  chunk.dataset.how = how;
  chunk.title = `${name}: ${plural(n, "token")} ${how}`;
  return setVars(chunk, { "--share": n / most });
}

function buildKey() {
  const key = el("p", "key tn-key");
  for (const [letter, name] of Object.values(KINDS)) key.append(el("span", "", `${letter} ${name}`));
  for (const how of ["reused", "computed", "written"]) {
    const one = key.appendChild(el("span", "", how));
    const swatch = el("i", "tn-chunk");
    swatch.dataset.how = how;
    one.prepend(swatch);
  }
  return key;
}
