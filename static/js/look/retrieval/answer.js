// "Answer": which chunks of its prompt were read anew, and which of them the answer in view looked at:
// attention to each, and how likely the answer is without it.

import { partsOf } from "../../turns/message-parts.js";
import { NOT_MEASURED } from "../../turns/answer.js";
import { spansUpTo } from "../../interventions/interventions.js";
import { changed, state } from "../../state.js";
import { el, newButton, setText } from "../../ui/dom.js";
import { count, percent, plural } from "../../ui/format.js";
import { signed } from "../attribution/list.js";
import { Measurement } from "../attribution/measure.js";
import { askOnce } from "../shared/answer-cache.js";
import { Missing, requireTokens, runKey, whyOtherModel } from "../shared/context.js";
import { addRow, clearRows, newTable, numeric, shareBar } from "../shared/table.js";
import { attentionOf, cachedOf, chunksIn, excerpt } from "./prompt-parts.js";

/** @typedef {import("./prompt-parts.js").PromptChunk} PromptChunk */
/**
 * What is shown: the run, its chunks, and what was measured. `shares`: of attention, of the chunks and then
 * of `OTHERS`; null: not measured. `running`: ends the measurement, from the press of its button to its last answer;
 * `problem`: why the attention was not measured, or "".
 *
 * @typedef {{segment: Segment, ids: number[], chunks: PromptChunk[], measurement: Measurement, shares: number[] | null, running: AbortController | null, problem: string}} Shown
 */

const NO_ANSWER = "There is no answer yet. Find chunks for a question, then ask the model.";
const NO_CHUNKS = "The answer in view was written without chunks. Find chunks for a question, then ask the model.";
const COMPLETION = "A completion does not remember which chunks its prompt had. Ask the model in chat mode to measure them.";
const OTHERS = ["first token", "rest of the prompt", "answer itself"];
const N_KEPT = 12;
/** Tokens of the answer that are measured, from its first. */
const MAX_TOKENS = 64;

/** @type {Map<string, Shown>} */
const kept = new Map();
/** @type {Shown | null} */
let now = null;
let leaving = new AbortController();

const at = {
  says: el("p", "rt-says"),
  cached: el("p", "rt-cached"),
  go: newButton("Measure", toggle, "send"),
  bar: el("progress"),
  list: newTable("rt-measured", "Chunks of the prompt", [
    "part of the prompt", ...numeric(["tokens", "read now", "reused", "moved", "attention %"]), "", ["without it, nats", "n"], "",
  ]),
};

/** @type {InstrumentView<Focus>} */
export const answerView = {
  name: "answer",
  label: "Answer",

  setUp(root) {
    const acts = el("div", "controls");
    at.says.setAttribute("role", "status");
    at.bar.setAttribute("aria-label", "Measured");
    acts.append(at.go, at.bar);
    const box = root.appendChild(el("div", "rt-scroll"));
    Object.assign(box, { tabIndex: 0, role: "group", ariaLabel: "Chunks of the prompt" });
    box.append(at.list);
    root.prepend(at.cached, at.says, acts);
  },

  show(focus) {
    now = shownFrom(focus);
    draw(now);
    const n = now.ids.length - now.segment.prompt.length;
    const tokens = now.segment.nTokens > n ? `the first ${plural(n, "token")} of the answer` : "the answer";
    return `Attention of ${tokens}: mean over layers and heads. Without it: change of the log-probability of ${tokens}.`;
  },

  hide: () => leaving.abort(),

  table: () => ({
    columns: ["part of the prompt", "tokens", "read now", "reused", "moved", "attention", "log-probability with it", "without it", "difference"],
    rows: now ? rowsOf(now) : [],
  }),
};

/** @param {Shown} shown @returns {unknown[][]} */
function rowsOf({ segment, chunks, measurement, shares }) {
  const { whole } = measurement;
  const rows = chunks.map((chunk, i) => {
    const { read, reused, moved } = cachedOf(chunk, segment);
    const without = measurement.reading(i)?.logprob ?? null;
    return [chunk.name, chunk.to - chunk.from, read, reused, moved, shares?.[i] ?? null, whole?.logprob ?? null, without, measurement.effect(i)];
  });
  return [...rows, ...OTHERS.map((name, i) => [name, null, null, null, null, shares?.[chunks.length + i] ?? null, null, null, null])];
}

/** @param {Focus} focus @returns {Shown} */
function shownFrom({ answer }) {
  const turn = state.turns.findIndex(({ answers }) => !!answer && !!answers?.includes(answer));
  // Between the message and an answer there may be calls of tools.
  const asked = state.turns.slice(0, Math.max(0, turn)).findLast(({ role }) => role === "user");
  const files = asked?.role === "user" ? partsOf(asked).files : [];
  if (!answer) throw new Missing(NO_ANSWER);
  if (state.turns[turn]?.mode === "completion") throw new Missing(COMPLETION);
  if (!files.length) throw new Missing(NO_CHUNKS);
  const segment = answer.promptSegment;
  if (segment && !segment.accepted) throw new Missing("The prompt is on its way to the engine.");
  requireTokens(segment);
  const why = whyOtherModel(segment);
  if (why) throw new Missing(why);
  const written = answer.tokens.slice(segment.base, segment.base + Math.min(segment.nTokens, MAX_TOKENS));
  const known = kept.get(keyOf(segment, written.length));
  if (known) return known;
  const chunks = chunksIn(segment.prompt, files);
  if (!chunks.length) throw new Missing(NO_CHUNKS);
  const ids = [...segment.prompt, ...written].map(({ id }) => id);
  const measurement = new Measurement({ ids, first: segment.prompt.length }, chunks, "out", { windows: [], nLayers: 0 });
  return { segment, ids, chunks, measurement, shares: null, running: null, problem: "" };
}

/** @param {Segment} segment @param {number} nTokens of its answer, that are measured */
const keyOf = (segment, nTokens) => `${runKey(segment)} ${nTokens}`;

// ---- measuring ------------------------------------------------------------------------------------

async function toggle() {
  if (!now) return;
  const shown = now;
  if (shown.running) {
    shown.running.abort();
    return changed("look");
  }
  leaving.abort();
  leaving = shown.running = new AbortController();
  const { signal } = leaving;
  shown.problem = "";
  kept.set(keyOf(shown.segment, shown.ids.length - shown.segment.prompt.length), shown);
  for (const oldest of kept.keys()) if (kept.size > N_KEPT) kept.delete(oldest);
  changed("look");
  try {
    shown.shares ??= await measureAttention(shown);
    changed("look");
  } catch (error) {
    shown.problem = /** @type {Problem} */ (error).message;
  }
  if (!signal.aborted) await shown.measurement.run(signal, () => changed("look"));
  shown.running = null;
  changed("look");
}

/** @param {Shown} shown */
async function measureAttention({ segment, ids, chunks }) {
  const first = segment.prompt.length - 1; // the last token of the prompt chooses the first of the answer
  const read = ids.slice(0, -1);
  /** Its own attention is part of the answer about any window. @type {FromPage.Divergence} */
  const question = { kind: "divergence", ids: read, first, window: 1 };
  const { received } = (await askOnce(question)).arrays;
  const own = received.values.slice(0, read.length);
  const ranges = [...chunks, { from: 0, to: 1 }, { from: 1, to: first + 1 }, { from: first + 1, to: read.length }];
  const shares = attentionOf(own, read.length - first, ranges);
  shares[chunks.length + 1] -= shares.slice(0, chunks.length).reduce((sum, share) => sum + share, 0);
  return shares;
}

// ---- drawing --------------------------------------------------------------------------------------

/** Why the answer cannot be measured, or "". @param {Shown} shown */
function whyNot({ segment, ids }) {
  if (segment.running) return "The answer is still being written.";
  if (segment.edited) return NOT_MEASURED;
  if (ids.length === segment.prompt.length) return "No token was written.";
  if (spansUpTo(segment, ids.length).reached) return "This text was written with interventions, which would act at other places without a chunk.";
  return "";
}

/** @param {Shown} shown */
function draw(shown) {
  const { segment, chunks, measurement, shares, running } = shown;
  const { whole, isComplete, nDone, largest } = measurement;
  const why = whyNot(shown);
  at.go.hidden = !!why || (isComplete && !!shares);
  const isBegun = !!shares || !!whole;
  setText(at.go, running?.signal.aborted ? "Stopping …" : running ? "Stop" : isBegun ? "Continue" : "Measure");
  Object.assign(at.bar, { max: chunks.length + 2, value: Number(!!shares) + Number(!!whole) + nDone, hidden: !running });
  setText(at.cached, cacheWords(shown));
  setText(at.says, shown.problem || measurement.problem || why || resultWords(shown));
  clearRows(at.list);
  chunks.forEach((chunk, i) => {
    const { read, reused, moved } = cachedOf(chunk, segment);
    const effect = measurement.effect(i);
    const name = el("span", "rt-name");
    name.append(el("b", "", chunk.name), el("small", "", excerpt(chunk.text)));
    const share = shares?.[i] ?? null;
    addRow(at.list, [
      name,
      ...[chunk.to - chunk.from, read, reused, moved].map(count),
      ...shareCells(share),
      effect === null ? "" : signed(effect, largest),
      effect === null ? "" : shareBar(Math.abs(effect) / largest, effect < 0 ? "lamp" : ""),
    ]);
  });
  if (shares) OTHERS.forEach((name, i) => addRow(at.list, [name, "", "", "", "", ...shareCells(shares[chunks.length + i]), "", ""]));
}

/** @param {number | null} share @returns {(string | Node)[]} */
const shareCells = (share) => (share === null ? ["", ""] : [percent(Math.max(0, share)), shareBar(Math.max(0, share))]);

/** What of the chunks the KV cache had. @param {Shown} shown */
function cacheWords({ segment, chunks }) {
  const sum = { read: 0, reused: 0, moved: 0 };
  for (const chunk of chunks) {
    const { read, reused, moved } = cachedOf(chunk, segment);
    sum.read += read;
    sum.reused += reused;
    sum.moved += moved;
  }
  const all = sum.read + sum.reused + sum.moved;
  const why = sum.moved || !sum.read ? "" : ` ${WHY_READ}`;
  if (sum.read === all) return `All ${plural(all, "token")} of the chunks were read for this answer.${why}`;
  const moved = sum.moved ? `, ${count(sum.moved)} moved here from another place of the cache (approximate)` : "";
  return `Of ${plural(all, "token")} of the chunks, ${count(sum.reused)} were reused from the KV cache${moved}, and ${count(sum.read)} were read for this answer.${why}`;
}

const WHY_READ =
  "Only what a prompt shares with the beginning of an earlier one is found in the cache. With “Move cached chunks”, " +
  "below the sampling settings, chunks at another place are reused too.";

/** @param {Shown} shown */
function resultWords({ chunks, measurement, shares, running }) {
  const { whole, nDone, isComplete, steps } = measurement;
  if (running?.signal.aborted) return "Stops once the engine has answered the question that it is working on.";
  if (running && !shares) return "Measuring the attention to each chunk …";
  if (running && !whole) return "Reading the whole prompt …";
  if (!nDone || !shares) return `Which chunk did the answer use? The engine reads the text ${plural(chunks.length + 2, "time")}.`;
  if (!isComplete) return `Measured: ${nDone} of ${plural(steps.length, "chunk")}.`;
  const effects = chunks.map((_, i) => measurement.effect(i) ?? 0);
  const [byEffect, byAttention] = [indexOfMost(effects.map(Math.abs)), indexOfMost(shares.slice(0, chunks.length))];
  const first = `Without “${chunks[byEffect].name}”, the log-probability of the answer changes most: ${signed(effects[byEffect], measurement.largest)} nats.`;
  if (byEffect === byAttention) return `${first} It also gets the most attention.`;
  return `${first} “${chunks[byAttention].name}” gets the most attention.`;
}

/** @param {number[]} values */
const indexOfMost = (values) => values.indexOf(Math.max(...values));
