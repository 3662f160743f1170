// Tile cache of the core sample's columns: each is painted once, one pixel wide, and scaled when
// drawn.

import { contextOf } from "../ui/dom.js";

const TILE_COLUMNS = 128;
const MAX_TILES = 40;

/**
 * @typedef {(pixels: Uint32Array, stride: number, x: number, index: number) => void} Paint
 * @typedef {{canvas: HTMLCanvasElement, context: CanvasRenderingContext2D, painted: number}} Tile
 * @typedef {{x: number, y: number, right: number, column: number, gap: number}} Columns
 */

export class ColumnCache {
  /** @type {Map<number, Tile>} */
  #tiles = new Map();
  #height = 0;
  /** Scratch image: columns are painted here, then copied to a tile's canvas. */
  #image = new ImageData(TILE_COLUMNS, 1);

  /**
   * `paint(pixels, stride, x, index)` paints column `index` into every `stride`th pixel from `x`.
   *
   * @param {Paint} paint
   */
  constructor(paint) {
    this.paint = paint;
  }

  /** Drop all tiles; the strip is `height` device pixels high. @param {number} height */
  reset(height) {
    this.#tiles.clear();
    this.#height = height;
    this.#image = new ImageData(TILE_COLUMNS, Math.max(1, height));
  }

  /**
   * Draw the columns of [0, count) within [0, right). Column 0 is at `x`; each is `column` wide, of
   * which the last `gap` is left untouched. In device pixels.
   *
   * @param {CanvasRenderingContext2D} context
   * @param {number} count
   * @param {Columns} options
   */
  draw(context, count, { x, y, right, column, gap }) {
    const span = TILE_COLUMNS * column;
    const first = Math.max(0, Math.floor(-x / span));
    const last = Math.min(Math.ceil(count / TILE_COLUMNS), Math.ceil((right - x) / span));
    context.imageSmoothingEnabled = false;
    for (let i = first; i < last; i += 1) {
      const n = Math.min(TILE_COLUMNS, count - i * TILE_COLUMNS);
      const tile = this.#tile(i, n);
      const left = x + i * span;
      if (!gap) context.drawImage(tile, 0, 0, n, this.#height, left, y, n * column, this.#height);
      else this.#drawApart(context, tile, n, { left, y, right, column, gap });
    }
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {HTMLCanvasElement} tile
   * @param {number} n
   * @param {{left: number, y: number, right: number, column: number, gap: number}} options
   */
  #drawApart(context, tile, n, { left, y, right, column, gap }) {
    const h = this.#height;
    const first = Math.max(0, Math.floor(-left / column));
    const last = Math.min(n, Math.ceil((right - left) / column));
    for (let k = first; k < last; k += 1)
      context.drawImage(tile, k, 0, 1, h, left + k * column, y, column - gap, h);
  }

  /**
   * Return the canvas of tile `i` with `n` of its columns painted.
   *
   * @param {number} i
   * @param {number} n
   */
  #tile(i, n) {
    let tile = this.#tiles.get(i);
    if (tile)
      this.#tiles.delete(i); // put back below: the map is in order of use
    else tile = this.#fresh();
    this.#tiles.set(i, tile);
    if (this.#tiles.size > MAX_TILES) this.#tiles.delete(this.#tiles.keys().next().value ?? i);
    if (tile.painted < n) this.#extend(tile, i * TILE_COLUMNS, n);
    return tile.canvas;
  }

  /**
   * @param {Tile} tile
   * @param {number} first
   * @param {number} n
   */
  #extend(tile, first, n) {
    const { data, width, height } = this.#image;
    const pixels = new Uint32Array(data.buffer);
    const from = tile.painted;
    for (let k = from; k < n; k += 1) this.paint(pixels, width, k, first + k);
    tile.context.putImageData(this.#image, 0, 0, from, 0, n - from, height);
    tile.painted = n;
  }

  #fresh() {
    const canvas = document.createElement("canvas");
    canvas.width = TILE_COLUMNS;
    canvas.height = Math.max(1, this.#height);
    return { canvas, context: contextOf(canvas), painted: 0 };
  }
}
