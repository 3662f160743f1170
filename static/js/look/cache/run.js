// The KV cache of one run: how it grows, where it ends, and what other ways of keeping it would take.

import { clamp, el, fitCanvas, setText, setVars } from "../dom.js";
import { bytes, count, plural } from "../format.js";
import { palette } from "../palette.js";
import { numberOf, pin, point } from "../view.js";
import { clipped, hatch, label, rule, ticks } from "./chart.js";
import { indexAt, Missing, sequenceOf } from "./context.js";
import { shapeOf, wallOf, waysOf } from "./kvsize.js";

/** Heights in the chart, from its foot: token numbers, the row of blocks, and the gap over it. */
const RULER = 22;
const BLOCKS = 16;
const GAP = 10;
const TOP = 22;
/** Blocks narrower than this are drawn without their edges. */
const LEAST_BLOCK = 4;
const LEAST_SCALE = 64;

let canvas = null;
let list = null;
let head = null;
/** What the last `show` drew: see `measure`. */
let now = null;

/** A view of the instrument (look/cache.js). */
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
    list = ways.appendChild(el("ul"));
  },

  show(context) {
    now = measure(context);
    draw();
    drawWays();
    const hatched = now.reused ? " Hatched: found in the cache, not computed." : "";
    return `Blocks as the engine counted them on this run; bytes from the shape of its cache.${hatched}`;
  },

  table() {
    const { ways, tokens, wall } = now;
    return {
      columns: [
        "kept",
        "how",
        { name: "bytes now", format: count },
        { name: "bytes when full", format: count },
      ],
      rows: ways.map(({ name, what, bytes: size }) => [name, what, size(tokens), size(wall)]),
    };
  },
};

/**
 * tokens, reused, prompt  in the cache now, found there, of the prompt
 * blocks  of the sequence: {from, to, reused} in tokens
 * most    tokens that the chart has room for: the wall, halved while the run fits
 */
function measure(context) {
  const { answer, hello, token } = context;
  const segment = token?.segment ?? (token ? answer.segments[0] : answer.segment);
  if (!segment.accepted) throw new Missing("The tokens of this answer are not here any more.");
  const { limits } = hello;
  const wall = wallOf(hello);
  const tokens = Math.min(wall, Math.max(segment.prefill.done, segment.used - 1));
  let most = wall;
  while (most / 2 >= Math.max(tokens, LEAST_SCALE)) most /= 2;
  const { reused } = segment.prefill;
  return {
    answer,
    segment,
    wall,
    tokens,
    reused,
    most,
    context: limits.context,
    layers: hello.model.n_layers,
    blocks: blocksOf(segment, limits, tokens),
    blockTokens: limits.block_tokens,
    position: token ? sequenceOf(context).position : null,
    token,
    ways: waysOf(hello),
    ...shapeOf(hello),
  };
}

/** The blocks that this sequence holds, in order. */
function blocksOf({ kvBlocks, prefill }, { block_tokens: size }, tokens) {
  return Array.from({ length: kvBlocks }, (_, i) => ({
    from: i * size,
    to: Math.min((i + 1) * size, tokens),
    reused: (i + 1) * size <= prefill.reused,
  }));
}

// ---- the chart -------------------------------------------------------------------------------

let scale = null;

function draw() {
  const [context, width, height] = fitCanvas(canvas);
  if (!width) return;
  const left = parseFloat(getComputedStyle(canvas).getPropertyValue("--gutter"));
  const room = width - left - 12;
  const foot = height - RULER - BLOCKS - GAP;
  const full = now.most * now.perToken;
  scale = {
    left,
    room,
    foot,
    height,
    x: (tokens) => left + (tokens / now.most) * room,
    y: (size) => foot - (size / full) * (foot - TOP),
  };
  drawAxes(context, full);
  drawFan(context);
  drawBlocks(context);
  drawWall(context);
  drawFocus(context);
}

function drawAxes(context, full) {
  const { left, room, foot, x, y, height } = scale;
  for (const size of ticks(full, foot - TOP, 44)) {
    rule(context, left, y(size), room, 1);
    if (size) label(context, bytes(size), left - 10, y(size), { align: "end" });
  }
  const beside = (text, at) => label(context, text, left - 10, at, { align: "end" });
  beside("tokens", height - RULER / 2 + 3);
  beside(left > 80 ? plural(now.blocks.length, "block") : "blocks", foot + GAP + BLOCKS / 2);
  for (const tokens of ticks(now.most, room, 90)) {
    rule(context, x(tokens), height - RULER + 2, 1, 5, "edge");
    label(context, count(tokens), x(tokens), height - RULER / 2 + 3, { align: "center" });
  }
}

/** What is kept, one thin slice for each layer: every token adds as much to each. */
function drawFan(context) {
  const { foot, x, y } = scale;
  const { tokens, layers, perLayer, reused, perToken, most } = now;
  for (let layer = 0; layer < layers; layer += 1) {
    context.fillStyle = layer % 2 ? palette["data-2"] : palette.data;
    context.globalAlpha = layers > 40 ? 0.8 : 1;
    context.beginPath();
    context.moveTo(x(0), foot);
    context.lineTo(x(tokens), y(tokens * perLayer * layer));
    context.lineTo(x(tokens), y(tokens * perLayer * (layer + 1)));
    context.fill();
  }
  context.globalAlpha = 1;
  if (reused) drawReused(context);
  context.strokeStyle = palette.edge;
  context.setLineDash([2, 4]);
  context.beginPath();
  context.moveTo(x(tokens), y(tokens * perToken));
  context.lineTo(x(most), y(most * perToken));
  context.stroke();
  context.setLineDash([]);
}

function drawReused(context) {
  const { foot, x, y } = scale;
  const { reused, perToken } = now;
  const path = () => {
    context.moveTo(x(0), foot);
    context.lineTo(x(reused), y(reused * perToken));
    context.lineTo(x(reused), foot);
  };
  clipped(context, path, () => {
    context.fillStyle = palette.ground;
    context.fillRect(x(0), 0, x(reused) - x(0), foot);
    hatch(context, x(0), y(reused * perToken), x(reused) - x(0), foot - y(reused * perToken));
  });
}

function drawBlocks(context) {
  const { foot, x } = scale;
  const { blocks, blockTokens } = now;
  const top = foot + GAP;
  const gap = x(blockTokens) - x(0) >= LEAST_BLOCK ? 1 : 0;
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

function drawReusedBlock(context, x, y, width) {
  const path = () => context.rect(x, y, width, BLOCKS);
  clipped(context, path, () => {
    context.fillStyle = palette.ground;
    context.fillRect(x, y, width, BLOCKS);
    hatch(context, x, y, width, BLOCKS);
  });
}

/** Where no token fits any more, or how far away that is. */
function drawWall(context) {
  const { x, foot, left, room } = scale;
  const { wall, most, context: limit } = now;
  const what = wall < limit ? "the cache is full" : "the context ends";
  if (most < wall) {
    const text = `${what} at ${count(wall)} tokens; the first ${count(most)} are drawn`;
    label(context, text, left + room, 8, { align: "end" });
    return;
  }
  const text = `${what}: ${count(wall)} tokens, ${bytes(wall * now.perToken)}`;
  rule(context, x(wall) - 1, 0, 2, foot + GAP + BLOCKS, "ink");
  label(context, text, x(wall) - 8, 8, { align: "end", colour: "ink-2" });
}

function drawFocus(context) {
  const { position, token, perToken, tokens } = now;
  if (position === null) return;
  const { x, y, foot, left, room } = scale;
  const kept = Math.min(position + 1, tokens);
  const at = clamp(x(position + 0.5), left, left + room - 1);
  rule(context, at, y(kept * perToken) - 6, 1.5, foot + GAP + BLOCKS + 4 - y(kept * perToken), "lamp");
  const text = `${numberOf(token)}: ${bytes(kept * perToken)}`;
  const wide = at > left + room / 2;
  label(context, text, at + (wide ? -6 : 6), y(kept * perToken) - 10, {
    align: wide ? "end" : "start",
    colour: "lamp",
    weight: 500,
  });
}

/** The number of the token under the pointer, or null. */
function tokenAt(offsetX) {
  if (!scale || !now) return null;
  const position = Math.floor(((offsetX - scale.left) / scale.room) * now.most);
  if (position < 0 || position > now.tokens) return null;
  const index = indexAt(now, position);
  return index !== null && index < now.answer.tokens.length ? index : null;
}

function onPoint({ offsetX, pointerType }) {
  if (pointerType !== "touch") point(tokenAt(offsetX));
}

// ---- other ways ------------------------------------------------------------------------------

function drawWays() {
  const { ways, tokens, wall, perToken, layers, perLayer } = now;
  const each = `${bytes(perToken)} a token: ${bytes(perLayer)} in each of ${plural(layers, "layer")}.`;
  setText(head, `${each} ${plural(tokens, "token")} kept now.`);
  if (list.children.length !== ways.length + 1) list.replaceChildren(newRow(), ...ways.map(newRow));
  const most = Math.max(...ways.map((way) => way.bytes(wall)));
  const [first, ...rows] = list.children;
  ["kept", "", "now", "full"].forEach((text, i) => setText(first.children[i], text));
  ways.forEach(({ name, what, bytes: size }, i) => {
    const [label_, bar, small, large] = rows[i].children;
    setText(label_.firstChild, name);
    setText(label_.lastChild, what);
    setVars(bar.firstChild, { "--q": size(tokens) / most, "--p": size(wall) / most });
    setText(small, bytes(size(tokens)));
    setText(large, bytes(size(wall)));
  });
}

function newRow(way) {
  const row = el("li", way?.name === "as here" ? "here" : "");
  const name = el("span", "kv-name");
  if (way) name.append(el("b"), el("small"));
  const bar = el("span", "kv-bar");
  if (way) bar.append(el("i"));
  row.append(name, bar, el("span", "n"), el("span", "n"));
  return row;
}
