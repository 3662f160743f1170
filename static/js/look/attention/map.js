// Map of heads: layers from bottom to top, heads of one KV group side by side.

import { clamp, fitCanvas, setVars } from "../../ui/dom.js";
import { palette } from "../../ui/palette.js";
import { CellPainter } from "../shared/cell-painter.js";
import { label, rule } from "../shared/chart.js";
import { nameOf } from "./scores.js";
import { intensity } from "../shared/share-colours.js";

/** @typedef {ReturnType<typeof layOut>} Layout */

const TOP = 20;
const FOOT = 18;
const RIGHT = 4;
const MEAN_GAP = 12;
const MAX_ROW = 40;
const MIN_ROW = 3;
const MIN_COLUMN = 2;
/** Cells at least this large (px) have text under their strip. */
const WORDS_HIGH = 24;
const WORDS_WIDE = 40;
const WORDS = 13;
const MAX_BITS = 8;
/** Strips at least this wide mark the focused token by notches of this height. */
const MIN_MARKED = 12;
const NOTCH = 4;
/** @type {Record<HeadPlace, string>} */
const SHORT = { first: "first", previous: "prev.", copy: "copy", self: "self" };

/**
 * Return the layout in CSS pixels. A column is {head, x, width}, `head` null for the mean; a row is
 * {layer, y}, `layer` null for the mean of all layers, which has a cell in the mean column only.
 *
 * @param {number} width
 * @param {number} height
 * @param {number} left
 * @param {HeadCounts} headCounts
 */
export function layOut(width, height, left, { nLayers, nHeads, nKvHeads }) {
  const each = nHeads / nKvHeads;
  const inner = width - left > 6 * nHeads ? 1 : 0;
  const apart = each > 1 ? clamp(Math.round((width - left) / (12 * nKvHeads)), 1, 8) : inner;
  const gaps = MEAN_GAP + (nKvHeads - 1) * apart + (nHeads - nKvHeads) * inner;
  const room = (width - left - RIGHT - gaps) / (nHeads + 1);
  const column = Math.max(MIN_COLUMN, room);
  /** @type {{head: number | null, x: number, width: number}[]} */
  const columns = [{ head: null, x: left, width: column }];
  let x = left + column + MEAN_GAP;
  for (let head = 0; head < nHeads; head += 1) {
    columns.push({ head, x, width: column });
    x += column + ((head + 1) % each === 0 ? apart : inner);
  }
  for (const one of columns) {
    const end = Math.round(one.x + one.width);
    one.x = Math.round(one.x);
    one.width = Math.max(1, end - one.x);
  }
  const row = clamp(Math.floor((height - TOP - FOOT) / nLayers), MIN_ROW, MAX_ROW);
  /** @type {{layer: number | null, y: number}[]} */
  const rows = Array.from({ length: nLayers }, (_, layer) => ({
    layer,
    y: TOP + (nLayers - 1 - layer) * row,
  }));
  rows.push({ layer: null, y: TOP + nLayers * row + 2 });
  const worded = row >= WORDS_HIGH && column >= WORDS_WIDE;
  const strip = worded ? row - WORDS - 1 : row - (row > 5 ? 1 : 0);
  return { columns, rows, row, strip, worded, each, foot: TOP + nLayers * row };
}

export class HeadMap {
  /**
   * `onHover(choice | null)`, `onChoose(choice)`: {layer, head}, either may be null.
   *
   * @param {HTMLCanvasElement} canvas
   * @param {(choice: HeadChoice | null) => void} onHover
   * @param {(choice: HeadChoice) => void} onChoose
   */
  constructor(canvas, onHover, onChoose) {
    this.canvas = canvas;
    /** @type {Layout | null} */
    this.places = null;
    /** @type {{of: unknown[], image: ImageData | null}} */
    this.picture = { of: [], image: null };
    canvas.addEventListener("pointermove", (event) => {
      if (event.pointerType !== "touch") onHover(this.#under(event));
    });
    canvas.addEventListener("pointerleave", () => onHover(null));
    canvas.addEventListener("click", (event) => {
      const choice = this.#under(event);
      if (choice) onChoose(choice);
    });
  }

  /**
   * `maps`: {nLayers, nHeads, nKvHeads, n, position, from, to, scores, bits, mode} and
   * lineAt(choice, line), see `lineOf`. `mode`: "weights", "entropy" or a place. `chosen` and
   * `layer` are highlighted.
   *
   * @param {AttentionShown} maps
   * @param {HeadChoice} chosen
   * @param {number | undefined} layer
   */
  draw(maps, chosen, layer) {
    // With very many layers the map is higher than the panel.
    setVars(this.canvas, { "--min-height": `${TOP + FOOT + MIN_ROW * maps.nLayers}px` });
    const [context, width, height] = fitCanvas(this.canvas);
    if (!width) return;
    const left = parseFloat(getComputedStyle(this.canvas).getPropertyValue("--names"));
    const places = (this.places = layOut(width, height, left, maps));
    context.putImageData(this.#image(context, maps, places), 0, 0);
    this.#names(context, places, left, layer);
    this.#groups(context, places, maps.nKvHeads);
    if (places.worded) this.#words(context, maps, places);
    this.#mark(context, maps, places, chosen);
  }

  /**
   * The cells' colours, cached while only highlights change.
   *
   * @param {CanvasRenderingContext2D} context
   * @param {AttentionShown} maps
   * @param {Layout} places
   */
  #image(context, maps, places) {
    const { width, height } = this.canvas;
    const { from, to, n, mode, scores } = maps;
    const of = [from, to, n, mode, scores, palette.map, width, height];
    if (this.picture.of.every((part, i) => part === of[i]) && this.picture.image)
      return this.picture.image;
    const image = context.createImageData(width, height);
    const paint = new CellPainter(image, width / this.canvas.clientWidth);
    if (mode === "weights") this.#paintStrips(paint, maps, places);
    else this.#paintValues(paint, maps, places);
    this.picture = { of, image };
    return image;
  }

  /**
   * Compute every head's line once: the means reuse the painted lines.
   *
   * @param {CellPainter} paint
   * @param {AttentionShown} maps
   * @param {Layout} places
   */
  #paintStrips(paint, maps, places) {
    const { columns, rows, strip } = places;
    const { n, nLayers, nHeads } = maps;
    const line = new Float32Array(n);
    const all = new Float32Array(n);
    const [mean, ...heads] = columns;
    for (const { layer, y } of rows.slice(0, nLayers)) {
      const sum = new Float32Array(n);
      for (const { head, x, width } of heads) {
        maps.lineAt({ layer, head }, line);
        for (let j = 0; j < n; j += 1) sum[j] += line[j];
        paint.strip([x, y, width, strip], line, 1);
      }
      for (let j = 0; j < n; j += 1) all[j] += sum[j];
      paint.strip([mean.x, y, mean.width, strip], sum, 1 / nHeads);
    }
    const { y } = rows[rows.length - 1];
    paint.strip([mean.x, y, mean.width, FOOT - 8], all, 1 / (nLayers * nHeads));
  }

  /** @param {CellPainter} paint @param {AttentionShown} maps @param {Layout} places */
  #paintValues(paint, maps, places) {
    const { columns, rows, strip } = places;
    for (const { layer, y } of rows)
      for (const { head, x, width } of layer === null ? [] : columns)
        paint.fill([x, y, width, strip], this.#value(maps, layer, head));
  }

  /**
   * Position of a cell's value on its scale, in [0, 1]; null without a value.
   *
   * @param {AttentionShown} maps
   * @param {number | null} layer
   * @param {number | null} head
   */
  #value({ mode, scores, bits, nHeads }, layer, head) {
    const values = mode === "entropy" ? bits : mode === "weights" ? null : scores[mode];
    if (!values || layer === null) return null;
    const own = values.subarray(layer * nHeads, (layer + 1) * nHeads);
    const value = head === null ? own.reduce((a, b) => a + b) / nHeads : own[head];
    return mode === "entropy" ? value / MAX_BITS : intensity(value);
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {Layout} places
   * @param {number} left
   * @param {number | undefined} focusLayer
   */
  #names(context, { columns, rows, row, foot }, left, focusLayer) {
    const every = [1, 2, 4, 5, 10, 20].find((step) => step * row >= 14) ?? 20;
    const long = left > 60 && every === 1;
    for (const { layer, y } of rows) {
      if (layer === null || layer % every) continue;
      const on = layer === focusLayer;
      const text = long ? `layer ${layer}` : String(layer);
      label(context, text, left - 10, y + row / 2, {
        align: "end",
        colour: on ? "lamp" : "ink-3",
        weight: on ? 500 : 400,
      });
    }
    label(context, "all", left - 10, foot + FOOT / 2, { align: "end" });
    const [mean, first, second] = columns;
    label(context, "mean", mean.x + mean.width / 2, TOP / 2 - 1, { align: "center" });
    const pitch = (second ?? first).x - first.x || first.width;
    const step = [1, 2, 4, 8, 16].find((n) => n * pitch >= 20) ?? 32;
    for (const { head, x, width } of columns.slice(1))
      if (head !== null && head % step === 0) {
        const text = head || width < 40 ? String(head) : "head 0";
        label(context, text, x + width / 2, foot + FOOT / 2, { align: "center" });
      }
  }

  /**
   * Draw brackets over the heads that share keys and values.
   *
   * @param {CanvasRenderingContext2D} context
   * @param {Layout} places
   * @param {number} nKvHeads
   */
  #groups(context, { columns, each }, nKvHeads) {
    const heads = columns.slice(1);
    if (each === 1) {
      const last = heads[heads.length - 1];
      const room = last.x + last.width - heads[0].x;
      const text = "one KV head per query head";
      if (room > 260) label(context, text, heads[0].x, TOP / 2 - 1);
      return;
    }
    for (let group = 0; group < nKvHeads; group += 1) {
      const first = heads[group * each];
      const last = heads[(group + 1) * each - 1];
      const wide = last.x + last.width - first.x;
      rule(context, first.x, TOP - 5, wide, 1, "edge");
      rule(context, first.x, TOP - 5, 1, 3, "edge");
      rule(context, last.x + last.width - 1, TOP - 5, 1, 3, "edge");
      const text = wide > 60 ? `KV head ${group}` : wide > 34 ? `KV ${group}` : String(group);
      if (wide > 14) label(context, text, first.x + wide / 2, TOP / 2 - 3, { align: "center" });
    }
  }

  /**
   * Draw text under the strips: the head's kind, or the value shown by the colour.
   *
   * @param {CanvasRenderingContext2D} context
   * @param {AttentionShown} maps
   * @param {Layout} places
   */
  #words(context, maps, places) {
    const { columns, rows, strip } = places;
    const { nHeads } = maps;
    for (const { layer, y } of rows) {
      if (layer === null) continue;
      for (const { head, x } of columns) {
        const at = y + strip + WORDS / 2;
        const text = this.#word(maps, layer, head, nHeads);
        if (text) label(context, text, x + 1, at, { colour: "ink-2" });
      }
    }
  }

  /**
   * @param {AttentionShown} maps
   * @param {number} layer
   * @param {number | null} head
   * @param {number} nHeads
   */
  #word({ mode, scores, bits }, layer, head, nHeads) {
    if (head === null) return "";
    const i = layer * nHeads + head;
    if (mode === "entropy") return bits[i].toFixed(1);
    const score = mode === "weights" ? undefined : scores[mode]?.[i];
    if (mode !== "weights") return score === undefined ? "" : inPercent(score);
    const name = nameOf(scores, i);
    return name ? `${SHORT[name.place]} ${inPercent(name.score)}` : "";
  }

  /**
   * Highlight the selected cell, and the focused token in every strip.
   *
   * @param {CanvasRenderingContext2D} context
   * @param {AttentionShown} maps
   * @param {Layout} places
   * @param {HeadChoice} chosen
   */
  #mark(context, { mode, n, position }, places, chosen) {
    const { columns, rows, strip } = places;
    /** @param {number | null} layer */
    const high = (layer) => (layer === null ? FOOT - 8 : strip);
    if (mode === "weights" && position < n - 1)
      for (const { layer, y } of rows)
        for (const { x, width } of layer === null ? [columns[0]] : columns) {
          if (width < MIN_MARKED) continue;
          const at = x + ((position + 0.5) / n) * width - 0.5;
          const notch = Math.min(NOTCH, high(layer) / 4);
          rule(context, at, y, 1, notch, "lamp");
          rule(context, at, y + high(layer) - notch, 1, notch, "lamp");
        }
    const row = rows.find(({ layer }) => layer === chosen.layer);
    const column = columns.find(({ head }) => head === chosen.head);
    if (!row || !column) return;
    context.strokeStyle = palette.lamp;
    context.lineWidth = 2;
    context.strokeRect(column.x - 1, row.y - 1, column.width + 2, high(row.layer) + 2);
  }

  /** @param {MouseEvent} event @returns {HeadChoice | null} */
  #under({ offsetX, offsetY }) {
    if (!this.places) return null;
    const { columns, rows, row, foot } = this.places;
    const column = columns.find(({ x, width }) => offsetX >= x - 1 && offsetX < x + width + 1);
    if (!column || offsetY < TOP || offsetY > foot + FOOT) return null;
    if (offsetY >= foot) return column.head === null ? { layer: null, head: null } : null;
    const { layer } = rows.find(({ y }) => offsetY >= y && offsetY < y + row) ?? {};
    return layer === undefined ? null : { layer, head: column.head };
  }
}

/** @param {number} share */
const inPercent = (share) => String(Math.round(100 * share));
