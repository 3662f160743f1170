// Picture of the scores of all experts; those that are off are hatched.

import { fitCanvas, setVars } from "../../ui/dom.js";
import { figure } from "../../ui/format.js";
import { palette } from "../../ui/palette.js";
import { CellPainter } from "../shared/cell-painter.js";
import { clipped, hatch, label, rule } from "../shared/chart.js";
import { intensity } from "../shared/share-colours.js";
import { broadOf, drawBeside, drawDense, drawNames, heightOf, layOut, WORDS } from "./grid.js";

/** @typedef {import("./scores.js").ExpertScores} ExpertScores */
/** A layer: scores of its experts, and which are off. @typedef {{layer: number, scores: number[], off: boolean[]}} ScoredLayer */
/**
 * @typedef {{scores: ExpertScores, nLayers: number, cell: ExpertCell, hot: number,
 *   isOff: (layer: number, expert: number) => boolean}} Picture
 */

/** @param {number[]} values */
const total = (values) => values.reduce((sum, value) => sum + value, 0);

/** Share of the scores of a layer that its experts have which are off. @param {ScoredLayer} layer */
const lost = ({ scores, off }) => total(scores.filter((_, i) => off[i])) / (total(scores) || 1);

/** @type {GridColumn<ScoredLayer>[]} */
const BESIDE = [
  { name: "off", at: ({ off }) => off.filter(Boolean).length / off.length, text: ({ off }) => String(off.filter(Boolean).length) },
  { name: "score off, %", at: lost, text: (layer) => String(Math.round(100 * lost(layer))) },
];

/**
 * Draw the grid and return its places. Colours are relative to the highest score of a layer.
 *
 * @param {HTMLCanvasElement} canvas
 * @param {Picture} picture
 */
export function drawScores(canvas, { scores, nLayers, cell, hot, isOff }) {
  const { n } = scores;
  const left = parseFloat(getComputedStyle(canvas).getPropertyValue("--names"));
  setVars(canvas, { "--min-height": `${heightOf(nLayers)}px`, "--broad": `${broadOf(n, left)}px` });
  const [context, width, height] = fitCanvas(canvas);
  if (!width) return {};
  const places = layOut(width, height, left, { n, nLayers }, BESIDE);
  const layers = scores.layers.map((layer) => {
    const own = scores.of(layer).scores;
    return { layer, scores: own, off: own.map((_, expert) => isOff(layer, expert)) };
  });
  paint(context, canvas, layers, places);
  drawNames(context, { n, nLayers, left, hot }, places);
  for (const layer of layers) drawLayer(context, layer, places);
  drawBeside(context, layers, places);
  drawDense(context, { nLayers, having: new Set(scores.layers) }, places);
  const { x, y, wide, high } = places;
  context.strokeStyle = palette.lamp;
  context.lineWidth = 2;
  context.strokeRect(x(cell.expert) - 1, y(cell.layer) - 1, wide(cell.expert) + 2, high + 2);
  return { places, size: { n, nLayers } };
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {HTMLCanvasElement} canvas
 * @param {ScoredLayer[]} layers
 * @param {GridPlaces<ScoredLayer>} places
 */
function paint(context, canvas, layers, { x, y, wide, high }) {
  const image = context.createImageData(canvas.width, canvas.height);
  const painter = new CellPainter(image, canvas.width / canvas.clientWidth);
  for (const { layer, scores, off } of layers) {
    const most = Math.max(...scores) || 1;
    scores.forEach((score, expert) => {
      if (!off[expert]) painter.fill([x(expert), y(layer), wide(expert), high], intensity(score / most));
    });
  }
  context.putImageData(image, 0, 0);
}

/**
 * Hatch the experts that are off, and write the scores where they fit.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {ScoredLayer} layer
 * @param {GridPlaces<ScoredLayer>} places
 */
function drawLayer(context, { layer, scores, off }, { x, y, wide, high, worded }) {
  scores.forEach((score, expert) => {
    const box = /** @type {Rect} */ ([x(expert), y(layer), wide(expert), high]);
    if (off[expert]) clipped(context, () => context.rect(...box), () => hatch(context, ...box));
    rule(context, box[0], y(layer) + high, box[2], 1);
    if (worded) label(context, score ? figure(score) : "0", box[0] + 1, y(layer) + high + WORDS / 2, { colour: "ink-2" });
  });
}
