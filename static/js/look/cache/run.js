// KV cache of one run: its growth, its limit, and the size under other layouts.

import { newTerm } from "../../glossary/terms.js";
import { clamp, el, fitCanvas, setText, setVars } from "../../ui/dom.js";
import { bytes, count, plural } from "../../ui/format.js";
import { palette } from "../../ui/palette.js";
import { numberOf, pin, point } from "../../view.js";
import { clipped, hatch, label, rule, ticks } from "../shared/chart.js";
import { indexAt, Missing, positionOf, requireTokens, whyOtherModel } from "../shared/context.js";
import { addRow, clearRows, newTable, numeric, shareBar } from "../shared/table.js";
import { capacityOf, kvLayouts, kvShape, windowsOf } from "./kv-size.js";

/** @typedef {ReturnType<typeof measure>} Measured */
/** Draws a line through lengths of the text and their heights. */
/** @typedef {(at: number[], height: (n: number) => number) => void} Trace */

/** Heights in the chart, from the bottom: token numbers, row of blocks, gap. */
const RULER = 22;
const BLOCKS = 16;
const GAP = 10;
const TOP = 22;
/** Blocks narrower than this (px) are drawn without gaps. */
const MIN_BLOCK = 4;
const MIN_SCALE = 64;

/** @type {HTMLCanvasElement} */
let canvas;
/** @type {HTMLTableElement} */
let list;
/** @type {HTMLElement} */
let head;
/** Elements of the layouts. @type {ReturnType<typeof newRow>[]} */
let rows = [];
/** Data of the last `show`: see `measure`. @type {Measured} */
let now;

/** View of the instrument (look/cache/cache.js). @type {CacheView} */
export const cacheRun = {
  needs: "run",

  setUp(root) {
    canvas = root.appendChild(el("canvas", "kv-chart"));
    canvas.setAttribute("aria-hidden", "true");
    canvas.addEventListener("pointermove", onPoint);
    canvas.addEventListener("pointerleave", () => point(null));
    canvas.addEventListener("click", ({ offsetX }) => pin(tokenAt(offsetX)));
    const ways = root.appendChild(el("div", "kv-ways"));
    head = ways.appendChild(el("p", "kv-head"));
    list = newTable("", "Size in other layouts", ["layout", "", ...numeric(["now", "full"])]);
    ways.append(list);
  },

  show(context) {
    now = measure(context);
    draw();
    drawWays();
    const hatched = now.reused ? " Hatched: reused, not computed." : "";
    return (
      "Blocks as counted by the engine for this run; " +
      `bytes computed from the cache’s shape.${hatched}`
    );
  },

  table() {
    const { ways, tokens, capacity } = now;
    return {
      columns: [
        "layout",
        "how",
        { name: "bytes now", format: count },
        { name: "bytes when full", format: count },
      ],
      rows: ways.map(({ name, what, bytes: size }) => [name, what, size(tokens), size(capacity)]),
    };
  },
};

/**
 * Return the data to draw:
 *   tokens, reused  number of tokens in the cache now, and of those reused from it
 *   blocks  blocks of the sequence: {from, to, reused} in tokens; nBlocks: how many it has, in all
 *           groups of layers
 *   range   of the chart in tokens: the limit, halved while the run fits
 *   windows, size   of every layer how many tokens it keeps; bytes that all keep of a text
 *
 * @param {RunFocus} context
 */
function measure(context) {
  const { answer, hello, token, index } = context;
  const segment = token?.segment ?? (token ? answer.promptSegment : answer.segment);
  requireTokens(segment);
  const why = whyOtherModel(segment); // whose cache has another shape
  if (why) throw new Missing(why);
  const { limits } = hello;
  const capacity = capacityOf(hello);
  const tokens = Math.min(capacity, Math.max(segment.prefill.done, segment.used - 1));
  let range = capacity;
  while (range / 2 >= Math.max(tokens, MIN_SCALE)) range /= 2;
  const { reused } = segment.prefill;
  const ways = kvLayouts(hello);
  return {
    answer,
    segment,
    capacity,
    tokens,
    reused,
    range,
    context: limits.context,
    windows: windowsOf(hello),
    blocks: blocksOf(segment, limits, tokens),
    nBlocks: segment.kvBlocks,
    blockTokens: limits.block_tokens,
    position: index === null ? null : positionOf(segment, index),
    token,
    ways,
    size: ways[0].bytes,
    ...kvShape(hello),
  };
}

/**
 * Return the blocks of this sequence in order, once for all groups of layers that have some: those
 * behind the widest window were given back.
 *
 * @param {Segment} segment
 * @param {ToPage.PageLimits} limits
 * @param {number} tokens
 */
function blocksOf({ kvBlocks, prefill }, { block_tokens: size, kv_groups: groups }, tokens) {
  const left = (groups ?? []).map(({ window }) => Math.max(0, tokens - (window ?? tokens)));
  const first = groups?.length ? Math.floor(Math.min(...left) / size) : 0;
  const length = groups?.length ? Math.ceil(tokens / size) - first : kvBlocks;
  return Array.from({ length }, (_, i) => ({
    from: (first + i) * size,
    to: Math.min((first + i + 1) * size, tokens),
    reused: (first + i + 1) * size <= prefill.reused,
  }));
}

// ---- the chart -------------------------------------------------------------------------------

/**
 * @type {{left: number, room: number, foot: number, height: number, x: (tokens: number) => number, y: (size: number) => number}}
 */
let scale;

function draw() {
  const [context, width, height] = fitCanvas(canvas);
  if (!width) return;
  const left = parseFloat(getComputedStyle(canvas).getPropertyValue("--gutter"));
  const room = width - left - 12;
  const foot = height - RULER - BLOCKS - GAP;
  const full = now.size(now.range);
  scale = {
    left,
    room,
    foot,
    height,
    /** @param {number} tokens */
    x: (tokens) => left + (tokens / now.range) * room,
    /** @param {number} size */
    y: (size) => foot - (size / full) * (foot - TOP),
  };
  drawAxes(context, full);
  drawFan(context);
  drawBlocks(context);
  drawWall(context);
  drawFocus(context);
}

/** @param {CanvasRenderingContext2D} context @param {number} full */
function drawAxes(context, full) {
  const { left, room, foot, x, y, height } = scale;
  for (const size of ticks(full, foot - TOP, 44)) {
    rule(context, left, y(size), room, 1);
    if (size) label(context, bytes(size), left - 10, y(size), { align: "end" });
  }
  /** @param {string} text @param {number} at */
  const beside = (text, at) => label(context, text, left - 10, at, { align: "end" });
  beside("tokens", height - RULER / 2 + 3);
  beside(left > 80 ? plural(now.nBlocks, "block") : "blocks", foot + GAP + BLOCKS / 2);
  for (const tokens of ticks(now.range, room, 90)) {
    rule(context, x(tokens), height - RULER + 2, 1, 5, "edge");
    label(context, count(tokens), x(tokens), height - RULER / 2 + 3, { align: "center" });
  }
}

/**
 * Return `from`, `to`, and the lengths between at which the window of a layer is full.
 *
 * @param {number} from
 * @param {number} to
 */
function bends(from, to) {
  const full = [...new Set(now.windows)].filter((window) => window > from && window < to);
  return [from, ...full.sort((a, b) => a - b), to];
}

/**
 * Draw the cached bytes, one slice per layer: each token adds the same to those it fits into.
 *
 * @param {CanvasRenderingContext2D} context
 */
function drawFan(context) {
  const { x, y } = scale;
  const { tokens, windows, perLayer, reused, range, size } = now;
  const lengths = bends(0, tokens);
  /** @type {Trace} */
  const line = (at, height) => at.forEach((n) => context.lineTo(x(n), y(height(n))));
  /** @type {(n: number) => number} */
  let below = () => 0;
  windows.forEach((window, layer) => {
    const under = below;
    /** @param {number} n */
    const over = (/** @type {number} */ n) => under(n) + perLayer * Math.min(n, window);
    context.fillStyle = layer % 2 ? palette["data-2"] : palette.data;
    context.globalAlpha = windows.length > 40 ? 0.8 : 1;
    context.beginPath();
    line(lengths, under);
    line(lengths.toReversed(), over);
    context.fill();
    below = over;
  });
  context.globalAlpha = 1;
  if (reused) drawReused(context, line);
  context.strokeStyle = palette.edge;
  context.setLineDash([2, 4]);
  context.beginPath();
  line(bends(tokens, range), size);
  context.stroke();
  context.setLineDash([]);
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Trace} line
 */
function drawReused(context, line) {
  const { foot, x, y } = scale;
  const { reused, size } = now;
  const path = () => {
    line(bends(0, reused), size);
    context.lineTo(x(reused), foot);
  };
  const top = y(size(reused));
  clipped(context, path, () => {
    context.fillStyle = palette.ground;
    context.fillRect(x(0), 0, x(reused) - x(0), foot);
    hatch(context, x(0), top, x(reused) - x(0), foot - top);
  });
}

/** @param {CanvasRenderingContext2D} context */
function drawBlocks(context) {
  const { foot, x } = scale;
  const { blocks, blockTokens } = now;
  const top = foot + GAP;
  const gap = x(blockTokens) - x(0) >= MIN_BLOCK ? 1 : 0;
  for (const { from, to, reused } of blocks) {
    const [a, b, end] = [from, to, from + blockTokens].map((tokens) => Math.round(x(tokens)));
    context.fillStyle = palette.line;
    context.fillRect(a, top, end - a - gap, BLOCKS);
    if (reused) drawReusedBlock(context, a, top, end - a - gap);
    else {
      context.fillStyle = palette.data;
      context.fillRect(a, top, Math.max(0, b - a - (b === end ? gap : 0)), BLOCKS);
    }
  }
}

/** @param {CanvasRenderingContext2D} context @param {number} x @param {number} y @param {number} width */
function drawReusedBlock(context, x, y, width) {
  const path = () => context.rect(x, y, width, BLOCKS);
  clipped(context, path, () => {
    context.fillStyle = palette.ground;
    context.fillRect(x, y, width, BLOCKS);
    hatch(context, x, y, width, BLOCKS);
  });
}

/**
 * Draw the limit of the sequence, or a note if it is out of range.
 *
 * @param {CanvasRenderingContext2D} context
 */
function drawWall(context) {
  const { x, foot, left, room } = scale;
  const { capacity, range, context: limit } = now;
  const what = capacity < limit ? "the cache is full" : "the context ends";
  if (range < capacity) {
    const text = `${what} at ${count(capacity)} tokens (shown: first ${count(range)})`;
    label(context, text, left + room, 8, { align: "end" });
    return;
  }
  const text = `${what}: ${count(capacity)} tokens, ${bytes(now.size(capacity))}`;
  rule(context, x(capacity) - 1, 0, 2, foot + GAP + BLOCKS, "ink");
  label(context, text, x(capacity) - 8, 8, { align: "end", colour: "ink-2" });
}

/** @param {CanvasRenderingContext2D} context */
function drawFocus(context) {
  const { position, token, size, tokens } = now;
  if (position === null || !token) return;
  const { x, y, foot, left, room } = scale;
  const kept = Math.min(position + 1, tokens);
  const at = clamp(x(position + 0.5), left, left + room - 1);
  const top = y(size(kept));
  rule(context, at, top - 6, 1.5, foot + GAP + BLOCKS + 4 - top, "lamp");
  const text = `${numberOf(token)}: ${bytes(size(kept))}`;
  const fits = at > left + 90; // on the left, where the layers do not rise into it
  label(context, text, at + (fits ? -6 : 6), Math.max(TOP + 4, top - 10), {
    align: fits ? "end" : "start",
    colour: "lamp",
    weight: 500,
  });
}

/** Number of the token under the pointer, or null. @param {number} offsetX */
function tokenAt(offsetX) {
  if (!scale || !now) return null;
  const position = Math.floor(((offsetX - scale.left) / scale.room) * now.range);
  if (position < 0 || position > now.tokens) return null;
  const index = indexAt(now, position);
  return index !== null && index < now.answer.tokens.length ? index : null;
}

/** @param {PointerEvent} event */
function onPoint({ offsetX, pointerType }) {
  if (pointerType !== "touch") point(tokenAt(offsetX));
}

// ---- other layouts ---------------------------------------------------------------------------

function drawWays() {
  const { ways, tokens, capacity, perToken, windows, perLayer } = now;
  const perEach = `${bytes(perLayer)} in each of ${plural(windows.length, "layer")}`;
  const each = `Keys (W_K) and values (W_V) take ${bytes(perToken)} per token, ${perEach}.`;
  setText(head, `${each} ${cachedNow(tokens, windows)}`);
  if (rows.length !== ways.length) {
    clearRows(list);
    rows = ways.map(newRow);
  }
  const largest = Math.max(...ways.map((way) => way.bytes(capacity)));
  ways.forEach(({ name, word, what, bytes: size }, i) => {
    const row = rows[i];
    drawAskable(row.name, name, word);
    drawAskable(row.what, what, word);
    setVars(row.bar, { "--q": size(tokens) / largest, "--p": size(capacity) / largest });
    setText(row.now, bytes(size(tokens)));
    setText(row.full, bytes(size(capacity)));
  });
}

/** Draw a text in which `word` can be asked. @param {HTMLElement} node @param {string} text @param {string} [word] */
function drawAskable(node, text, word = "") {
  const at = word ? text.indexOf(word) : -1;
  if (at < 0) setText(node, text);
  else if (node.textContent !== text)
    node.replaceChildren(text.slice(0, at), newTerm(word), text.slice(at + word.length));
}

/**
 * "218 tokens cached now.", and of layers with a window how many they keep of these.
 *
 * @param {number} tokens
 * @param {number[]} windows
 */
function cachedNow(tokens, windows) {
  const full = [...new Set(windows)].filter((window) => window < tokens);
  if (!full.length) return `${plural(tokens, "token")} cached now.`;
  const parts = full.map((window) => {
    const n = windows.filter((other) => other === window).length;
    const who = n === windows.length ? "all layers" : plural(n, "layer");
    return `${who} ${who === "1 layer" ? "reads" : "read"} only the last ${count(window)}`;
  });
  return `${plural(tokens, "token")} so far: ${parts.join(", ")}.`;
}

/** @param {KvLayout} way */
function newRow(way) {
  const head = el("span", "kv-name");
  const [name, what] = [head.appendChild(el("b")), head.appendChild(el("small"))];
  const bar = shareBar(0, "kv-bar");
  const row = addRow(list, [head, bar, "", ""]);
  row.classList.toggle("here", way.name === "current");
  const [, , now, full] = row.cells;
  return { name, what, bar, now, full };
}
