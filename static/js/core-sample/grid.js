// Row heights shared by core sample and layer table, from tokens.css and the number of layers shown.

import { chosenLayers } from "../ui/divider.js";
import { clamp } from "../ui/dom.js";
import { layersShown } from "../view.js";

const MIN_ROW = 3;
const GOOD_ROW = 5;
const MAX_ROW = 100;
/** Least height of all layers, and the border above them. */
const MIN_LAYERS = 24;
const BORDER = 1;
/** Share of the window that models may take whose layers do not fit at GOOD_ROW. */
const MAX_OF_WINDOW = 0.3;
/** Table rows lower than this many times the font size have no text. */
const MIN_LINES = 1.6;

/** In CSS pixels from the top of the plot; set by `measureGrid`. */
export const grid = {
  flag: 0,
  text: 0,
  prob: 0,
  cap: 0,
  row: 0,
  ruler: 0,
  small: 0,
  words: 0,
  layers: 8,
  top: 0,
  body: 0,
  bottom: 0,
};

/** Read the sizes again after the window or the model changed. */
export function measureGrid() {
  const root = document.documentElement;
  for (const name of ["--h-layers", "--h-prob"]) root.style.removeProperty(name);
  const style = getComputedStyle(root);
  /** @param {string} name */
  const px = (name) => parseFloat(style.getPropertyValue(name));
  const n = layersShown();
  const chosen = chosenLayers(besideLayers(px), Math.max(MIN_LAYERS, n * MIN_ROW));
  let height = chosen ?? px("--h-layers");
  let row = Math.min(MAX_ROW, Math.floor(height / n));
  if (chosen !== null) {
    // Whole pixels for every row; what is left over makes the probabilities higher.
    root.style.setProperty("--h-prob", `${px("--h-prob") + height - n * row}px`);
    root.style.setProperty("--h-layers", `${n * row}px`);
  } else if (row < GOOD_ROW) {
    row = clamp(Math.floor((innerHeight * MAX_OF_WINDOW) / n), MIN_ROW, GOOD_ROW);
    height = Math.max(height, n * row);
    root.style.setProperty("--h-layers", `${height}px`);
  }
  root.style.setProperty("--row", `${row}px`);
  Object.assign(grid, {
    flag: px("--h-flag"),
    text: px("--h-text"),
    prob: px("--h-prob"),
    cap: px("--cap"),
    ruler: px("--h-ruler"),
    small: px("--t1"),
    words: px("--t2"),
    row,
    layers: n,
  });
  grid.top = grid.flag + grid.text + grid.prob;
  grid.body = grid.top + grid.cap;
  grid.bottom = grid.body + n * row + grid.cap;
}

/**
 * Return the height (px) of all rows of the page but those of transcript and layers.
 *
 * @param {(name: string) => number} px
 */
function besideLayers(px) {
  const core = ["--h-head", "--h-flag", "--h-text", "--h-prob", "--h-ruler", "--h-bar"];
  const all = [...core, "--cap", "--cap", "--h-run"].map(px);
  return BORDER + all.reduce((sum, height) => sum + height, 0);
}

/** Is a row of this height too low for text? @param {number} height */
export const isDense = (height) => height < MIN_LINES * grid.words;

/** Every n-th layer has its name next to it: names need 14 px. */
export const namedEvery = () => [1, 2, 4, 5, 10, 20].find((n) => n * grid.row >= 14) ?? 20;

/** Least distance between names (px). */
const NAME_HEIGHT = 13;

/** Does a layer's row have a name? The first has none if it would touch that of the embedding. @param {number} layer */
export const isNamed = (layer) =>
  layer % namedEvery() === 0 && (layer > 0 || grid.row + grid.cap >= 2 * NAME_HEIGHT);

/** Top of a layer's row. @param {number} layer */
export const rowTop = (layer) => grid.body + (grid.layers - 1 - layer) * grid.row;
