// Grid of all KV cache blocks by number, with one highlighted.

import { clamp, el, fitCanvas, setVars, sizeOf } from "../../ui/dom.js";
import { count } from "../../ui/format.js";
import { palette } from "../../ui/palette.js";
import { changed } from "../../state.js";
import {
  describeBlock,
  isCached,
  isFree,
  isOthers,
  isOwn,
  isShared,
  markOf,
  recencyOf,
} from "./blocks.js";
import { label } from "../shared/chart.js";

/**
 * @typedef {ReturnType<typeof layOut>} Layout
 * @typedef {{pool: Pool, places: Layout, left: number}} Drawn
 * @typedef {(i: number, x: number, y: number) => void} PaintBlock
 * @typedef {(wanted: (pool: Pool, i: number) => boolean, paint: PaintBlock) => void} Each
 */

/**
 * Minimum and maximum distance between blocks (px), and the multiple that columns are rounded to.
 */
const MIN_PITCH = 4;
const MAX_PITCH = 44;
const COLUMNS_BY = 8;
const TOP = 2;
const RIGHT = 12;
/** From this distance on cached blocks are outlined, and gaps are two pixels. */
const ROOMY = 9;
/** From this distance on shared blocks show the number of runs, and others the run. */
const WORDED = 15;
/** Minimum distance of row numbers (px). */
const MIN_LABEL = 14;
/** Opacity of cached blocks relative to used ones. */
const CACHED_ALPHA = 0.36;
/** Minimum size of the highlight (px). */
const MIN_MARK = 11;

/**
 * Return the layout of `n` blocks in a box: {columns, rows, pitch, side}, side of a block in px.
 * The box grows if the blocks do not fit at the minimum distance.
 *
 * @param {number} n
 * @param {number} width
 * @param {number} height
 */
export function layOut(n, width, height) {
  for (let pitch = MAX_PITCH; ; pitch -= 1) {
    const fitting = Math.max(1, Math.floor(width / pitch));
    const columns = fitting < COLUMNS_BY ? fitting : fitting - (fitting % COLUMNS_BY);
    const rows = Math.ceil(n / columns);
    if (rows * pitch <= height || pitch === MIN_PITCH)
      return { columns, rows, pitch, side: pitch - (pitch < ROOMY ? 1 : 2) };
  }
}

/**
 * Paint the blocks of `pool` (look/cache/blocks.js), the first at (left, top). Grouped by colour:
 * changing the fill style costs more than a rectangle.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {Pool} pool
 * @param {Layout} places
 * @param {number} left
 * @param {number} top
 */
export function paintBlocks(context, pool, places, left, top) {
  const { columns, pitch, side } = places;
  /** @type {Each} */
  const each = (wanted, paint) => {
    for (let i = 0; i < pool.n; i += 1)
      if (wanted(pool, i))
        paint(i, left + (i % columns) * pitch, top + Math.floor(i / columns) * pitch);
  };
  /** @param {PaletteName} name @param {Parameters<Each>[0]} wanted */
  const fill = (name, wanted) => {
    context.fillStyle = palette[name];
    each(wanted, (_, x, y) => context.fillRect(x, y, side, side));
  };
  fill("line", isFree);
  fill("data", isOwn);
  fill("data-2", isOthers);
  paintCached(context, pool, places, each);
  fill("ink", isShared);
  if (pitch < WORDED) return;
  /** @type {LabelStyle} */
  const middle = { align: "center", colour: "ground", weight: 600 };
  /** @param {string} text @param {number} x @param {number} y */
  const write = (text, x, y) => label(context, text, x + side / 2, y + side / 2 + 1, middle);
  each(isShared, (i, x, y) => write(String(pool.owners[i]), x, y));
  each(isOwn, (i, x, y) => write(markOf(pool, i), x, y));
}

/**
 * Paint cached blocks, filled in proportion to their reusable tokens.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {Pool} pool
 * @param {Layout} layout
 * @param {Each} each
 */
function paintCached(context, { found, blockTokens }, { pitch, side }, each) {
  context.fillStyle = palette.data;
  context.globalAlpha = CACHED_ALPHA;
  each(isCached, (i, x, y) => {
    context.fillRect(x, y, Math.max(1, Math.round((found[i] / blockTokens) * side)), side);
  });
  context.globalAlpha = 1;
  if (pitch < ROOMY) return;
  each(isCached, (_, x, y) => {
    context.fillRect(x, y, side, 1);
    context.fillRect(x, y + side - 1, side, 1);
    context.fillRect(x, y + 1, 1, side - 2);
    context.fillRect(x + side - 1, y + 1, 1, side - 2);
  });
}

/** @param {CanvasRenderingContext2D} context @param {Layout} places @param {number} left */
function paintNames(context, { columns, rows, pitch, side }, left) {
  const every = [1, 2, 4, 8, 16, 32].find((n) => n * pitch >= MIN_LABEL) ?? 64;
  for (let row = 0; row < rows; row += every) {
    const y = TOP + row * pitch + Math.min(side / 2, MIN_LABEL / 2);
    label(context, count(row * columns), left - 10, y + 1, { align: "end" });
  }
}

export class BlockGrid {
  /**
   * `onHover(block | null)`: the block under the pointer, else the one with keyboard focus.
   *
   * @param {HTMLElement} root
   * @param {(block: number | null) => void} onHover
   */
  constructor(root, onHover) {
    this.onHover = onHover;
    this.box = root.appendChild(el("div", "kv-blocks"));
    this.field = this.box.appendChild(el("div", "kv-field"));
    this.field.tabIndex = 0;
    this.field.setAttribute("role", "slider");
    this.field.setAttribute("aria-label", "Block of the cache");
    this.field.setAttribute("aria-valuemin", "0");
    this.canvas = this.field.appendChild(el("canvas"));
    this.mark = this.field.appendChild(el("i", "kv-mark"));
    this.mark.hidden = true;
    /** What is drawn; null before the first. @type {Drawn | null} */
    this.drawn = null;
    /** Block of the keyboard cursor. */
    this.at = 0;
    /** Block under the pointer, or null. @type {number | null} */
    this.hover = null;
    /** @type {unknown[]} */
    this.painted = [];
    this.#listen();
    new ResizeObserver(() => changed("look")).observe(this.canvas);
  }

  #listen() {
    const { field } = this;
    field.addEventListener("pointermove", (event) => {
      if (event.pointerType !== "touch") this.#look(this.#under(event));
    });
    field.addEventListener("pointerleave", () => this.#look(null));
    field.addEventListener("click", (event) => this.#go(this.#under(event) ?? this.at));
    field.addEventListener("keydown", (event) => this.#onKey(event));
    field.addEventListener("focus", () => this.#tell());
    field.addEventListener("blur", () => this.#tell());
  }

  /** @param {Pool} pool */
  draw(pool) {
    this.at = Math.min(this.at, pool.n - 1);
    if ((this.hover ?? 0) >= pool.n) this.hover = null;
    const [width, height] = sizeOf(this.box);
    if (!width) return;
    const left = parseFloat(getComputedStyle(this.field).getPropertyValue("--gutter"));
    const places = layOut(pool.n, width - left - RIGHT, height - TOP);
    this.drawn = { pool, places, left };
    setVars(this.field, { "--kv-high": `${TOP + places.rows * places.pitch}px` });
    this.#paint(this.drawn);
    this.field.setAttribute("aria-valuemax", String(pool.n - 1));
    this.#tell();
  }

  /**
   * Repaint only after a change: tokens arrive far more often than new block states.
   *
   * @param {Drawn} drawn
   */
  #paint({ pool, places, left }) {
    const { canvas } = this;
    const { columns, pitch } = places;
    const of = [pool, columns, pitch, ...sizeOf(canvas), devicePixelRatio, palette.map];
    if (of.every((part, i) => part === this.painted[i])) return;
    this.painted = of;
    const [context] = fitCanvas(canvas);
    paintBlocks(context, pool, places, left, TOP);
    paintNames(context, places, left);
  }


  /** @param {MouseEvent} event */
  #under({ offsetX, offsetY }) {
    if (!this.drawn) return null;
    const { pool, places, left } = this.drawn;
    const { columns, pitch } = places;
    const column = Math.floor((offsetX - left) / pitch);
    const i = Math.floor((offsetY - TOP) / pitch) * columns + column;
    return column >= 0 && column < columns && i >= 0 && i < pool.n ? i : null;
  }

  /** @param {number | null} block */
  #look(block) {
    if (block === this.hover) return;
    this.hover = block;
    this.#tell();
  }

  /** @param {number} block */
  #go(block) {
    if (!this.drawn) return;
    this.at = clamp(block, 0, this.drawn.pool.n - 1);
    this.#tell();
    this.mark.scrollIntoView({ block: "nearest" });
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.drawn) return;
    const { pool, places } = this.drawn;
    const { columns } = places;
    /** @type {Record<string, number>} */
    const keys = {
      ArrowRight: this.at + 1,
      ArrowLeft: this.at - 1,
      ArrowDown: this.at + columns,
      ArrowUp: this.at - columns,
      Home: 0,
      End: pool.n - 1,
    };
    const to = keys[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.hover = null;
    if (to >= 0 && to < pool.n) this.#go(to);
  }

  /** Highlight the focused block and update its aria text. */
  #tell() {
    if (!this.drawn) return;
    const { field, at } = this;
    const { pool } = this.drawn;
    const block = this.hover ?? (document.activeElement === field ? at : null);
    field.setAttribute("aria-valuenow", String(at));
    const words = `block ${at}: ${describeBlock(pool, at)}; ${recencyOf(pool, at)}`;
    field.setAttribute("aria-valuetext", words);
    this.mark.hidden = block === null;
    if (block !== null) this.#markAt(block, this.drawn);
    this.onHover(block);
  }

  /** @param {number} block @param {Drawn} drawn */
  #markAt(block, { places, left }) {
    const { columns, pitch, side } = places;
    const wide = Math.max(side + 4, MIN_MARK);
    const around = (wide - side) / 2;
    setVars(this.mark, {
      "--x": `${left + (block % columns) * pitch - around}px`,
      "--y": `${TOP + Math.floor(block / columns) * pitch - around}px`,
      "--side": `${wide}px`,
    });
  }
}
