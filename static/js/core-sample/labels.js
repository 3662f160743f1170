// Everything in the core sample except measurements: grid, ruler, text and marks.

import { count } from "../ui/format.js";
import { grid, namedEvery, rowTop } from "./grid.js";
import { palette } from "../ui/palette.js";
import { describeChange } from "../settings/sampling-settings.js";
import { summarySpan } from "../turns/summary-span.js";
import { state } from "../state.js";

/** Number of tokens that stay at the beginning: ATTENTION_SINKS of gpu/kv/context_shift.py. */
const SINKS = 4;
const SANS = '"Plex Sans", sans-serif';
const SERIF = '"Source Serif", serif';
/** Minimum width of a sentence's text (px). */
const MIN_WORDS = 28;

/** @typedef {{width: number, column: number, prompt: number, x0: number, scroll: number}} Core */

/**
 * Draw the empty part of the plot: layer lines and a faint grid of tokens.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {{width: number, column: number, x0: number, scroll: number}} options
 * @param {number} n
 */
export function drawPaper(context, { width, column, x0, scroll }, n) {
  context.fillStyle = palette.line;
  for (let layer = 0; layer < grid.layers; layer += namedEvery())
    context.fillRect(0, rowTop(layer), width, 1);
  for (const y of [grid.top, grid.body + grid.layers * grid.row, grid.bottom - 1])
    context.fillRect(0, y, width, 1);
  const left = x0 - scroll;
  const step = tickStep(column);
  for (
    let i = Math.max(step, firstTick(-left, column, step));
    left + i * column < width;
    i += step
  ) {
    if (i <= n) continue;
    for (let y = grid.top; y < grid.bottom; y += 6)
      context.fillRect(Math.round(left + i * column), y, 1, 2);
  }
}

/**
 * @param {number} x
 * @param {number} column
 * @param {number} step
 */
const firstTick = (x, column, step) => Math.max(0, Math.floor(x / column / step) * step);
/** Labels of the ruler are at least 90 px apart. @param {number} column */
const tickStep = (column) => [10, 20, 50, 100, 200].find((step) => step * column >= 90) ?? 500;

/**
 * Draw ruler, prompt label, sentences, and marks of changes.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {Core} core
 * @param {Answer | null} answer
 */
export function drawLabels(context, core, answer) {
  context.textBaseline = "middle";
  drawRuler(context, core, answer?.tokens.length ?? 0);
  if (!answer) return;
  drawPrompt(context, core, answer.promptSegment);
  drawSummary(context, core, answer.promptSegment);
  drawSlid(context, core, answer);
  drawSentences(context, core, answer);
  drawMarks(context, core, answer);
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {{width: number, column: number, x0: number, scroll: number}} options
 * @param {number} n
 */
function drawRuler(context, { width, column, x0, scroll }, n) {
  const left = x0 - scroll;
  const step = tickStep(column);
  const small = step / 10;
  context.font = `400 ${grid.small}px ${SANS}`;
  context.textAlign = "center";
  for (let i = firstTick(-left, column, small); left + i * column < width; i += small) {
    const x = left + i * column;
    if (x < 0) continue;
    const named = i % step === 0;
    context.globalAlpha = i <= n ? 1 : 0.45;
    context.fillStyle = named ? palette["ink-3"] : palette.edge;
    context.fillRect(Math.round(x), grid.bottom + 2, 1, named ? 6 : 3);
    context.globalAlpha = 1;
    context.fillStyle = palette["ink-3"];
    if (!named || !i) continue;
    // One that is partly out of sight, as after scrolling, would read as another number.
    const half = context.measureText(count(i)).width / 2;
    if (x >= half && x + half <= width) context.fillText(count(i), x, grid.bottom + 17);
  }
  context.textAlign = "start";
}

/**
 * Hatch the prompt tokens found in the KV cache, which were not computed: rising lines for the
 * prefix, falling ones for chunks that were moved there from another text.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {{prompt: number, scroll: number}} options
 * @param {Segment} segment
 */
function drawPrompt(context, { prompt, scroll }, segment) {
  if (!segment?.prompt.length) return;
  const reused = segment.promptReused;
  hatchTokens(context, -scroll, reused * prompt - scroll, 1);
  for (const { first, end } of segment.promptMoved)
    hatchTokens(context, first * prompt - scroll, end * prompt - scroll, -1);
  const label = `prompt ${count(segment.prompt.length)}`;
  context.font = `400 ${grid.small}px ${SANS}`;
  context.fillStyle = palette["ink-3"];
  const room = segment.prompt.length * prompt - scroll;
  if (room > context.measureText(label).width + 4)
    context.fillText(label, Math.max(0, -scroll), grid.flag + grid.text / 2);
  if (reused && room > 60 && scroll === 0)
    context.fillText(`${count(reused)} reused`, 0, grid.bottom + 17);
}

/**
 * Put a bar over the prompt tokens that are a summary of the oldest turns.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {{prompt: number, scroll: number}} options
 * @param {Segment} segment
 */
function drawSummary(context, { prompt, scroll }, segment) {
  const span = segment?.prompt.length ? summarySpan(segment) : null;
  if (!span) return;
  const left = Math.max(0, span.first * prompt - scroll);
  const width = span.end * prompt - scroll - left;
  if (width <= 0) return;
  context.fillStyle = palette.data;
  context.fillRect(left, grid.top - 4, width - 1, 3);
  const label = `summary ${count(span.end - span.first)}`;
  context.font = `400 ${grid.small}px ${SANS}`;
  context.fillStyle = palette["ink-2"];
  if (width > context.measureText(label).width) context.fillText(label, left, grid.top - 12);
}

/**
 * Hatch the tokens that have left the context by the end of the answer, and mark the tokens before
 * which some left.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {{prompt: number, column: number, x0: number, scroll: number}} options
 * @param {Answer} answer
 */
function drawSlid(context, { prompt, column, x0, scroll }, { tokens, promptSegment }) {
  const slid = tokens.at(-1)?.slid ?? 0;
  if (!slid) return;
  const nPrompt = promptSegment.prompt.length;
  /** @param {number} i */
  const x = (i) => (i < nPrompt ? i * prompt : x0 + (i - nPrompt) * column) - scroll;
  hatchTokens(context, x(SINKS), x(SINKS + slid), -1);
  context.fillStyle = palette.edge;
  for (let i = tokens.length - 1; i > 0; i -= 1)
    if (tokens[i].slid !== tokens[i - 1].slid)
      context.fillRect(Math.round(x(nPrompt + i)), grid.top, 1, grid.bottom - grid.top);
}

/**
 * Hatch the columns from `left` to `right`; `rise` 1: lines rise to the right, -1: they fall.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {number} left
 * @param {number} right
 * @param {number} rise
 */
function hatchTokens(context, left, right, rise) {
  if (right <= 0 || right <= left) return;
  context.save();
  context.beginPath();
  context.rect(left, grid.top + 1, right - left - 2, grid.bottom - grid.top - 2);
  context.clip();
  context.strokeStyle = palette.edge;
  context.globalAlpha = 0.5;
  context.lineWidth = 1;
  context.beginPath();
  const height = grid.bottom - grid.top;
  const [from, to] = rise > 0 ? [grid.bottom, grid.top] : [grid.top, grid.bottom];
  for (let x = left - height; x < right; x += 6) {
    context.moveTo(x, from);
    context.lineTo(x + height, to);
  }
  context.stroke();
  context.restore();
}

const endsSentence = /[.?!…][”"')\]]*\s*$|\n\s*$/;

/** Numbers of the tokens that start a sentence; extended as the answer grows. */
const startsOf = new WeakMap();
/** @param {Answer} answer */
function sentenceStarts(answer) {
  let known = startsOf.get(answer);
  if (!known || known.edition !== answer.edition) {
    known = { edition: answer.edition, starts: [0], seen: 1 };
    startsOf.set(answer, known);
  }
  for (; known.seen < answer.tokens.length; known.seen += 1) {
    const before = answer.tokens[known.seen - 1].text;
    const now = answer.tokens[known.seen].text;
    if (endsSentence.test(before) && /^[\s“"'(]*\p{L}/u.test(now)) known.starts.push(known.seen);
  }
  return known.starts;
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {{width: number, column: number, x0: number, scroll: number}} options
 * @param {Answer} answer
 */
function drawSentences(context, { width, column, x0, scroll }, answer) {
  const { tokens } = answer;
  const starts = sentenceStarts(answer);
  const left = x0 - scroll;
  context.font = `400 ${grid.words}px ${SERIF}`;
  for (let k = starts.length - 1; k >= 0; k -= 1) {
    const from = starts[k];
    const to = starts[k + 1] ?? tokens.length;
    const x = left + from * column;
    const end = Math.min(width, left + (starts[k + 1] ?? tokens.length + 14) * column - 4);
    if (x > width) continue;
    if (end < 0) break;
    if (from) {
      context.fillStyle = palette.edge;
      context.fillRect(Math.round(x) - 1, grid.flag + 3, 1, grid.text + grid.prob - 3);
    }
    const start = Math.max(from ? x + 5 : x, 0);
    if (x < -4 || end - start < MIN_WORDS) continue;
    context.fillStyle = palette["ink-2"];
    context.fillText(
      fitWords(context, tokens, from, to, end - start),
      start,
      grid.flag + grid.text / 2,
    );
  }
}

/**
 * Return as many whole words of tokens [from, to) as fit into `room`.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {Token[]} tokens
 * @param {number} from
 * @param {number} to
 * @param {number} room
 */
function fitWords(context, tokens, from, to, room) {
  let fits = "";
  let text = "";
  for (let i = from; i < to; i += 1) {
    text += tokens[i].text.replaceAll("\n", " ");
    const whole = i + 1 >= to || !/^\p{L}/u.test(tokens[i + 1].text);
    if (!whole) continue;
    const rest = i + 1 < to ? " …" : "";
    if (context.measureText(text.trim() + rest).width > room) return fits && `${fits} …`;
    fits = text.trim();
  }
  return fits;
}

/**
 * Draw marks of changed settings, of continuations and of engine failures.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {Core} core
 * @param {Answer} answer
 */
function drawMarks(context, core, answer) {
  const { tokens, segments, marks } = answer;
  const lines = marks
    .filter(({ index }) => index < tokens.length)
    .map(({ index, shown }) => ({
      index,
      quiet: !shown.length,
      text: shown.map(describeChange).join(", "),
    }));
  for (const [k, segment] of segments.entries()) {
    if (k && segment.nTokens) lines.push({ index: segment.base, quiet: false, text: "continued" });
    if (segment.reason === "error") drawBreak(context, core, segment.base + segment.nTokens);
  }
  lines.sort((a, b) => a.index - b.index);
  let free = -Infinity;
  context.font = `500 ${grid.small}px ${SANS}`;
  for (const { index, text, quiet } of lines) {
    const x = Math.round(core.x0 + index * core.column - core.scroll);
    if (x < 0 || x > core.width) continue;
    if (quiet) {
      context.fillStyle = palette["ink-3"];
      context.fillRect(x, 2, 1, grid.flag + grid.text);
      continue;
    }
    context.fillStyle = palette.plate;
    context.fillRect(x - 1, grid.top, 3, grid.bottom - grid.top);
    context.fillStyle = palette.ink;
    context.fillRect(x, 2, 1, grid.bottom + 6);
    if (!text || x + 6 < free) continue;
    context.fillStyle = palette["ink-2"];
    context.fillText(text, x + 6, grid.flag / 2);
    free = x + 12 + context.measureText(text).width;
  }
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Core} core
 * @param {number} index
 */
function drawBreak(context, core, index) {
  const x = core.x0 + index * core.column - core.scroll;
  if (x < -10 || x > core.width) return;
  context.strokeStyle = palette["ink-3"];
  context.lineWidth = 1;
  context.beginPath();
  for (let y = grid.top, k = 0; y < grid.bottom; y += 5, k += 1)
    context.lineTo(x + 3 + (k & 1) * 4, y);
  context.stroke();
  if (state.active) return;
  context.fillStyle = palette["ink-2"];
  context.font = `500 ${grid.small}px ${SANS}`;
  context.fillText(
    `the engine stopped after token ${count(index)}`,
    x + 14,
    rowTop(grid.layers - 2) + grid.row / 2,
  );
}
