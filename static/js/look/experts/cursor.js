// The selected expert of a grid: its layer is that of the core sample.

import { changed } from "../../state.js";
import { focusRow, view } from "../../view.js";

/** Layers that have experts, lowest first, and how many each has. @typedef {{layers: number[], n: number}} Grid */

export class ExpertCursor {
  /** Selected expert; null: the one that the view selects. @type {number | null} */
  expert = null;
  /** The cell under the pointer, or null. @type {ExpertCell | null} */
  hovered = null;

  /**
   * `grid`: of the last drawing, null before; `first`: the expert of a layer that is selected at
   * first; `act`: called with the selected cell on Enter or Space.
   *
   * @param {() => Grid | null} grid
   * @param {(layer: number) => number} first
   * @param {(cell: ExpertCell) => void} [act]
   */
  constructor(grid, first, act) {
    this.grid = grid;
    this.first = first;
    this.act = act;
    this.hover = this.hover.bind(this);
    this.choose = this.choose.bind(this);
    this.key = this.key.bind(this);
  }

  /** The selected cell where the layer looked at is `looked`. @param {number} [looked] @returns {ExpertCell} */
  cell(looked) {
    const layer = layerAt(this.grid()?.layers ?? [], looked);
    const last = (this.grid()?.n ?? 1) - 1;
    return { layer, expert: Math.min(this.expert ?? this.first(layer), last) };
  }

  /** @param {ExpertCell | null} cell */
  hover(cell) {
    if (cell?.layer === this.hovered?.layer && cell?.expert === this.hovered?.expert) return;
    this.hovered = cell;
    changed("look");
  }

  /**
   * Select a cell and focus its layer in the core sample, on the MLP row if there is one.
   *
   * @param {ExpertCell} cell
   */
  choose(cell) {
    this.expert = cell.expert;
    this.hovered = null;
    focusRow({ layer: cell.layer, part: view.parts === 2 ? 1 : 0 });
    changed("look");
  }

  /**
   * Move by a key, starting from the core sample's layer, not from the one drawn: keys repeat faster
   * than frames.
   *
   * @param {KeyboardEvent} event
   */
  key(event) {
    const grid = this.grid();
    if (!grid || event.ctrlKey || event.metaKey || event.altKey) return;
    const cell = this.cell(view.row?.layer);
    if (this.act && (event.key === "Enter" || event.key === " ")) {
      event.preventDefault();
      return void this.act(cell);
    }
    const to = moved(event.key, cell, grid);
    if (!to) return;
    event.preventDefault();
    if (to.expert >= 0 && to.expert < grid.n && to.layer !== undefined)
      this.choose({ layer: to.layer, expert: to.expert });
  }
}

/** Return the layer looked at, or the next lower one of `layers`. @param {number[]} layers @param {number} [looked] */
export const layerAt = (layers, looked = 0) =>
  layers.findLast((layer) => layer <= looked) ?? layers[0] ?? 0;

/**
 * Return the cell a key leads to, possibly out of range; null for other keys.
 *
 * @param {string} key
 * @param {ExpertCell} from
 * @param {Grid} grid
 * @returns {{layer: number | undefined, expert: number} | null}
 */
function moved(key, { layer, expert }, { layers, n }) {
  /** @type {Record<string, number>} */
  const keys = { ArrowRight: expert + 1, ArrowLeft: expert - 1, Home: 0, End: n - 1 };
  if (key in keys) return { layer, expert: keys[key] };
  const step = key === "ArrowUp" ? 1 : key === "ArrowDown" ? -1 : 0;
  return step ? { layer: layers[layers.indexOf(layer) + step], expert } : null;
}
