// Run strip: time and memory of the whole run.

import { byId, fitCanvas, inputOf, one, setAttr, setParts, setText, splitBar } from "../ui/dom.js";
import { bytes, count, duration, figure, plural } from "../ui/format.js";
import { speeds } from "./overhead.js";
import { palette } from "../ui/palette.js";
import { saveSettings } from "../turns/persist.js";
import { meanInterval } from "../chat/status-line.js";
import { workOf } from "../turns/work.js";
import { whyOtherModel } from "../look/shared/context.js";
import { on, setState, state } from "../state.js";
import { pushSettings } from "../turns/live-updates.js";
import { view } from "../view.js";

/** Minimum share of a prefill's bar. */
const MIN_SHARE = 0.012;
const SPARK_POINTS = 60;
const SPARK_HEIGHT = 28;
const KV_ROWS = 4;
const KV_COLUMNS = 32;

export function setUpRunStrip() {
  byId("capture").addEventListener("change", (event) => {
    setState({ capture: inputOf(event).checked });
    saveSettings();
    pushSettings();
  });
  on("tokens turns hello focus", drawFigures);
  on("tokens turns hello size theme", drawKv);
  on("hello", drawMemory);
  on("tokens settings hello", drawCapture);
  new ResizeObserver(drawKv).observe(byId("kv"));
}

function drawFigures() {
  const { answer } = view;
  const segment = answer?.segment ?? null;
  const first = segment?.timings?.ttft_ms ?? firstWork(answer, segment);
  const tpot = answer && segment && segment.nDrawn > 1 ? meanInterval(answer, segment) : NaN;
  const seconds = first !== null && first >= 10_000;
  setText(byId("r-ttft"), first === null ? "–" : figure(seconds ? first / 1000 : first));
  setText(byId("r-ttft-unit"), seconds ? "s" : "ms");
  setText(byId("r-tpot"), figure(tpot));
  setText(byId("r-speed"), figure(1000 / tpot));
  setText(byId("r-speed-of"), (segment?.pace ?? null) === null ? "" : "without waits");
  drawTimes(segment, tpot);
  drawSpark(answer, segment);
  drawExperts(segment?.experts);
}

/**
 * Draw the expert cache's hit rate, if not all experts fit on the device.
 *
 * @param {Segment["experts"] | undefined} used
 */
function drawExperts(used) {
  byId("r-experts-row").hidden = !used;
  if (!used) return;
  const share = used.found / Math.max(1, used.found + used.brought);
  setText(byId("r-experts"), `${Math.floor(100 * share)}`);
  setText(byId("r-moved"), `${bytes(used.n_bytes)} loaded`);
}

/** @param {Segment | null} segment @param {number} tpot */
function drawTimes(segment, tpot) {
  const prefill = segment?.timings?.prompt_ms ?? segment?.prefill.ms ?? 0;
  const decode =
    segment?.timings?.predicted_ms ??
    (segment && Number.isFinite(tpot) ? tpot * (segment.nDrawn - 1) : 0);
  const waited = segment?.timings?.queue_ms ?? 0;
  const any = segment !== null && prefill + decode > 0;
  setText(byId("r-total"), any ? duration(waited + prefill + decode) : "");
  const found = segment ? foundWords(segment.prefill) : "";
  const before = any
    ? [`prefill ${plural(segment.prefill.total, "token")}${found}`, duration(prefill)]
    : ["prefill"];
  if (any && waited >= 1) before.push(`waited ${duration(waited)}`);
  setParts(byId("r-pre"), before, ", ");
  setAttr(byId("r-pre"), "title", any ? before.join(", ") : null);
  setText(byId("r-dec"), any && decode ? `decode ${duration(decode)}` : "decode");
  byId("tl").toggleAttribute("data-any", any);
  splitBar(
    byId("tl"),
    any ? [Math.max(prefill, (prefill + decode) * MIN_SHARE), decode, 0] : [0, 1, 0],
  );
}

/** Say how much of a prompt was not computed: " (120 reused, 64 moved)". @param {Segment["prefill"]} prefill */
function foundWords({ reused, moved }) {
  const words = [reused && `${count(reused)} reused`, moved && `${count(moved)} moved`];
  return reused || moved ? ` (${words.filter(Boolean).join(", ")})` : "";
}

/** The work of a run's first token (ms), or null. @param {Answer | null} answer @param {Segment | null} segment */
function firstWork(answer, segment) {
  const token = segment && answer?.tokens[segment.first];
  return token?.times ? workOf(token.times) : null;
}

/**
 * Draw the speed of the last tokens, from zero to twice their mean.
 *
 * @param {Answer | null} answer
 * @param {Segment | null} segment
 */
function drawSpark(answer, segment) {
  const path = one(byId("spark"), "path");
  const recent = answer && segment
    ? answer.tokens.slice(Math.max(segment.first + 1, answer.tokens.length - SPARK_POINTS))
    : [];
  /** @type {number[]} */
  const rates = recent.map(({ times }) => 1000 / Math.max(workOf(times), 0.01));
  if (rates.length < 2) return path.removeAttribute("d");
  const mean = rates.reduce((sum, r) => sum + r, 0) / rates.length;
  const y = (/** @type {number} */ rate) => (SPARK_HEIGHT - 1) * (1 - Math.min(1, rate / (2 * mean)));
  return path.setAttribute(
    "d",
    rates
      .map((rate, i) => `${i ? "L" : "M"}${(i * 120) / (SPARK_POINTS - 1)} ${y(rate).toFixed(1)}`)
      .join(""),
  );
}

/**
 * Draw the cache's blocks as squares (several blocks each in a large cache); this run's are filled.
 */
function drawKv() {
  const limits = state.hello?.limits;
  const newest = view.answer?.segment;
  const segment = newest && whyOtherModel(newest) ? null : newest; // the blocks are of the loaded model
  const [context, width, height] = fitCanvas(byId("kv"));
  if (!limits?.kv_blocks) setText(byId("r-kv"), "");
  if (!limits?.kv_blocks || !width) return;
  const used = segment?.kvBlocks ?? 0;
  const reused = reusedBlocks(segment?.prefill, limits);
  const size = bytes(limits.kv_block_bytes * used);
  const words = [`${count(used)} of ${count(limits.kv_blocks)} blocks`];
  if (reused) words.push(`${count(reused)} reused`);
  if (used) words.push(size);
  setParts(byId("r-kv"), words, ", ");
  const perCell = Math.ceil(limits.kv_blocks / (KV_ROWS * KV_COLUMNS));
  const cells = Math.ceil(limits.kv_blocks / perCell);
  const columns = Math.max(Math.ceil(cells / KV_ROWS), KV_COLUMNS);
  const pitchX = width / columns;
  const pitchY = height / KV_ROWS;
  const side = Math.min(pitchX, pitchY) - 2;
  for (let i = 0; i < cells; i += 1) {
    const x = (i % columns) * pitchX + 0.5;
    const y = Math.floor(i / columns) * pitchY + 0.5;
    const filled = Math.min(1, Math.max(0, (used - i * perCell) / perCell));
    drawBlock(context, x, y, side, filled, (i + 1) * perCell <= reused);
  }
}

/**
 * Return how many full blocks of this run were found in the cache, of all groups of layers.
 *
 * @param {Segment["prefill"] | undefined} prefill
 * @param {ToPage.PageLimits} limits
 */
function reusedBlocks(prefill, limits) {
  if (!prefill) return 0;
  // Old recordings of models with groups do not say: of a sliding window only the last are found.
  if (limits.kv_groups?.length) return prefill.reusedBlocks ?? 0;
  return Math.floor(prefill.reused / limits.block_tokens);
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {number} x
 * @param {number} y
 * @param {number} side
 * @param {number} filled
 * @param {boolean} reused
 */
function drawBlock(context, x, y, side, filled, reused) {
  context.lineWidth = 0.75;
  context.globalAlpha = filled ? 1 : 0.6;
  context.strokeStyle = filled ? palette.data : palette.edge;
  context.strokeRect(x, y, side, side);
  context.fillStyle = palette.data;
  if (!reused) return context.fillRect(x, y, side * filled, side);
  context.beginPath();
  context.moveTo(x, y + side);
  context.lineTo(x + side, y);
  context.moveTo(x, y + side / 2);
  context.lineTo(x + side / 2, y);
  return context.stroke();
}

/** Draw the memory by use. */
function drawMemory() {
  const memory = state.hello?.memory;
  const { weights, kv_cache: kv, work } = memory ?? { weights: 0, kv_cache: 0, work: 0 };
  /** @param {string} name @param {number} n */
  const sized = (name, n) => (memory ? `${name} ${bytes(n)}` : name);
  setText(byId("r-mem"), memory ? bytes(weights + kv + work) : "");
  setText(byId("m-w"), sized("weights", weights));
  setText(byId("m-k"), sized("KV", kv));
  setText(byId("m-a"), memory && !work ? "" : sized("compute", work));
  byId("mem").toggleAttribute("data-any", !!memory);
  splitBar(byId("mem"), memory ? [weights, kv, work] : [1, 0, 0]);
}

/** Draw the cost of capture, once this session has measured both states. */
function drawCapture() {
  byId("capture").checked = state.capture;
  const { on: withIt, off: without } = state.replay ? { on: null, off: null } : speeds();
  const share = withIt && without ? Math.round(100 * (withIt / without - 1)) : 0;
  const cost = share < 0 ? `${-share} %` : "nothing";
  const known =
    !withIt || !without ? "" : state.capture ? `, costs ${cost}` : `, would cost ${cost}`;
  setText(byId("capture-label"), `${state.capture ? "on" : "off"}${known}`);
  const speed = (/** @type {number | null} */ value) => (value ? `${figure(value)} tok/s` : "not measured yet");
  setText(byId("cost-on"), state.replay ? "" : `on: ${speed(withIt)}`);
  setText(byId("cost-off"), state.replay ? "" : `off: ${speed(without)}`);
}
