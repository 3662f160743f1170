// Map of experts: layers from bottom to top, the experts of each from left to right, and the
// balance of each layer beside its row.

import { clamp, fitCanvas, setVars } from "../../ui/dom.js";
import { palette } from "../../ui/palette.js";
import { CellPainter } from "../shared/cell-painter.js";
import { label, rule } from "../shared/chart.js";
import { gatesOf } from "./figures.js";
import {
  broadOf, drawBeside, drawDense, drawNames, heightOf, layOut, ROOMY, WORDS,
} from "./grid.js";
import { GridField } from "./grid-field.js";
import { loadIntensity, intensity } from "../shared/share-colours.js";

/**
 * @typedef {Pick<ExpertsNow, "use" | "layers" | "n" | "nLayers" | "mode" | "stats">} Shown
 * @typedef {{shown: Shown, places: GridPlaces<ExpertLayer>}} Drawn
 */

/**
 * Columns beside the rows: a bar, and a number in high rows; omitted in narrow maps.
 *
 * @type {GridColumn<ExpertLayer>[]}
 */
export const BESIDE = [
  {
    name: "evenness",
    at: ({ evenness }) => evenness ?? 0,
    text: ({ evenness }) => evenness?.toFixed(2) ?? "–",
  },
  {
    name: "unused",
    at: ({ never, given }) => never.length / given.length,
    text: ({ never }) => String(never.length),
  },
  {
    name: "busiest",
    at: ({ load }) => loadIntensity(load),
    text: ({ load }) => `${load.toFixed(1)} ×`,
  },
];

export class ExpertMap {
  /** @param {HTMLElement} root @param {import("./cursor.js").ExpertCursor} cursor */
  constructor(root, cursor) {
    this.field = new GridField(root, cursor, {
      id: "ex-how",
      how: "Up and down arrows select layers, left and right select experts.",
    });
    this.canvas = this.field.canvas;
    /** @type {{of: unknown[], image: ImageData | null}} */
    this.picture = { of: [], image: null };
  }

  /**
   * Draw the map. `shown`: {use, layers, n, nLayers, mode, stats}: the result of `layersOf`,
   * numbers of experts and layers, "run" or "token", and the focused token's statistics. `cell` and
   * the name of layer `hot` are highlighted.
   *
   * @param {Shown} shown
   * @param {ExpertCell} cell
   * @param {number} hot
   */
  draw(shown, cell, hot) {
    const { n, nLayers } = shown;
    setVars(this.canvas, { "--min-height": `${heightOf(nLayers)}px` });
    const left = parseFloat(getComputedStyle(this.canvas).getPropertyValue("--names"));
    setVars(this.canvas, { "--broad": `${broadOf(n, left)}px` });
    const [context, width, height] = fitCanvas(this.canvas);
    if (!width) return;
    const places = layOut(width, height, left, shown, BESIDE);
    const drawn = { shown, places };
    Object.assign(this.field, { places, size: { n, nLayers } });
    context.putImageData(this.#image(context, drawn), 0, 0);
    drawNames(context, { ...shown, left, hot }, places);
    this.#unused(context, drawn);
    if (places.worded) this.#words(context, drawn);
    drawBeside(context, shown.layers, places);
    const having = new Set(shown.layers.map(({ layer }) => layer));
    drawDense(context, { ...shown, having }, places);
    this.#mark(context, drawn, cell);
  }

  /** The cells' colours, cached while only highlights change. @param {CanvasRenderingContext2D} context @param {Drawn} drawn */
  #image(context, { shown, places }) {
    const { width, height } = this.canvas;
    const { use, layers, mode, stats, n } = shown;
    const of = [use, use.tokens, mode, mode === "token" ? stats : null, palette.map, width, height];
    if (this.picture.image && this.picture.of.every((part, i) => part === of[i]))
      return this.picture.image;
    const image = context.createImageData(width, height);
    const paint = new CellPainter(image, width / this.canvas.clientWidth);
    const { x, y, wide, high } = places;
    for (const layer of layers) {
      const value = valueOf(layer, mode, stats);
      for (let expert = 0; expert < n; expert += 1)
        paint.fill([x(expert), y(layer.layer), wide(expert), high], value(expert));
    }
    this.picture = { of, image };
    return image;
  }

  /**
   * Mark experts never chosen by a dot, to tell them from rarely chosen ones.
   *
   * @param {CanvasRenderingContext2D} context
   * @param {Drawn} drawn
   */
  #unused(context, { shown, places }) {
    if (shown.mode === "token") return;
    const { x, y, wide, high } = places;
    for (const { layer, never } of shown.layers)
      for (const expert of never) {
        const side = clamp(Math.round(Math.min(wide(expert), high) / 4), 1, 4);
        const at = x(expert) + (wide(expert) - side) / 2;
        rule(context, at, y(layer) + (high - side) / 2, side, side, "edge");
      }
  }

  /** Draw the values shown by the colours. @param {CanvasRenderingContext2D} context @param {Drawn} drawn */
  #words(context, { shown, places }) {
    const { mode, stats, n } = shown;
    const { x, y, high } = places;
    for (const layer of shown.layers) {
      const gates = gatesOf(stats, layer.layer);
      for (let expert = 0; expert < n; expert += 1) {
        const gate = gates.get(expert);
        const share = `${Math.round((100 * layer.given[expert]) / layer.choices)} %`;
        const text = mode === "run" ? share : (gate?.toFixed(2) ?? "");
        /** @type {LabelStyle} */
        const style = { colour: gate === undefined ? "ink-2" : "lamp" };
        label(context, text, x(expert) + 1, y(layer.layer) + high + WORDS / 2, style);
      }
    }
  }

  /**
   * Highlight the focused cell, and the focused token's experts in each layer.
   *
   * @param {CanvasRenderingContext2D} context
   * @param {Drawn} drawn
   * @param {ExpertCell} cell
   */
  #mark(context, { shown, places }, { layer, expert }) {
    const { layers, mode, stats } = shown;
    const { x, y, wide, high } = places;
    if (mode === "run" && high >= ROOMY - 1)
      for (const of of layers)
        for (const one of gatesOf(stats, of.layer).keys()) {
          const thick = high >= WORDS ? 2 : 1;
          rule(context, x(one), y(of.layer) + high - thick, wide(one), thick, "lamp");
        }
    context.strokeStyle = palette.lamp;
    context.lineWidth = 2;
    context.strokeRect(x(expert) - 1, y(layer) - 1, wide(expert) + 2, high + 2);
  }
}

/**
 * Position of an expert's value on the colour scale, in [0, 1].
 *
 * @param {ExpertLayer} layer
 * @param {ExpertMode} mode
 * @param {Stats | null} stats
 */
function valueOf({ layer, given, choices }, mode, stats) {
  /** @param {number} expert */
  const loadOf = (expert) => (given[expert] * given.length) / (choices || 1);
  if (mode === "run") return (/** @type {number} */ expert) => loadIntensity(loadOf(expert));
  const gates = gatesOf(stats, layer);
  return (/** @type {number} */ expert) => intensity(gates.get(expert) ?? 0);
}
