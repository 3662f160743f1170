// A grid of layers and experts that pointer and keyboard move in: a canvas in a slider.

import { clamp, el } from "../../ui/dom.js";
import { TOP } from "./grid.js";

export class GridField {
  /** Places of the last drawing. @type {Pick<GridPlaces<unknown>, "column" | "row" | "foot" | "right" | "x"> | null} */
  places = null;
  /** @type {{n: number, nLayers: number}} */
  size = { n: 0, nLayers: 0 };

  /**
   * @param {HTMLElement} root
   * @param {import("./cursor.js").ExpertCursor} cursor
   * @param {{id: string, how: string}} help
   */
  constructor(root, cursor, { id, how }) {
    this.node = root.appendChild(el("div", "ex-map"));
    this.canvas = this.node.appendChild(el("canvas"));
    this.canvas.setAttribute("aria-hidden", "true");
    const text = this.node.appendChild(el("p", "vh", how));
    text.id = id;
    this.node.tabIndex = 0;
    this.node.setAttribute("role", "slider");
    this.node.setAttribute("aria-label", "Expert");
    this.node.setAttribute("aria-describedby", id);
    this.node.setAttribute("aria-valuemin", "0");
    this.node.addEventListener("keydown", cursor.key);
    this.#listen(cursor);
  }

  /** @param {import("./cursor.js").ExpertCursor} cursor */
  #listen(cursor) {
    const { canvas } = this;
    canvas.addEventListener("pointermove", (event) => {
      if (event.pointerType !== "touch") cursor.hover(this.#under(event));
    });
    canvas.addEventListener("pointerleave", () => cursor.hover(null));
    canvas.addEventListener("click", (event) => {
      const cell = this.#under(event);
      if (cell) cursor.choose(cell);
    });
    canvas.addEventListener("dblclick", (event) => {
      const cell = this.#under(event);
      if (cell) cursor.act?.(cell);
    });
  }

  /**
   * Set the aria text of the selected cell.
   *
   * @param {ExpertCell} cell
   * @param {string} words
   */
  describe({ layer, expert }, words) {
    const { n, nLayers } = this.size;
    this.node.setAttribute("aria-valuemax", String(n * nLayers - 1));
    this.node.setAttribute("aria-valuenow", String(layer * n + expert));
    this.node.setAttribute("aria-valuetext", words);
  }

  /** @param {MouseEvent} event @returns {ExpertCell | null} */
  #under({ offsetX, offsetY }) {
    if (!this.places) return null;
    const { n, nLayers } = this.size;
    const { column, row, foot, right, x } = this.places;
    if (offsetX < x(0) || offsetX >= right || offsetY < TOP || offsetY >= foot) return null;
    const layer = nLayers - 1 - Math.floor((offsetY - TOP) / row);
    return { layer, expert: clamp(Math.floor((offsetX - x(0)) / column), 0, n - 1) };
  }
}
