// A long strip of columns, kept in tiles: each column is painted once, then only copied.

const TILE_COLUMNS = 128;
const MOST_TILES = 40;

export class Tape {
  /** `paint(context, index, x, width)` paints column `index` in device pixels. */
  constructor(paint) {
    this.paint = paint;
    this.tiles = new Map();
    this.width = 0;
    this.height = 0;
  }

  /** Forget all tiles; columns are `width` and the strip `height` device pixels. */
  reset(width, height) {
    this.tiles.clear();
    this.width = width;
    this.height = height;
  }

  /** Copy columns of [0, count) that fall into [0, right) to `context`; column 0 is at `x`. */
  draw(context, count, x, y, right) {
    const span = TILE_COLUMNS * this.width;
    const first = Math.max(0, Math.floor(-x / span));
    const last = Math.min(Math.ceil(count / TILE_COLUMNS), Math.ceil((right - x) / span));
    for (let i = first; i < last; i += 1) {
      context.drawImage(this.#tile(i, Math.min(count, (i + 1) * TILE_COLUMNS)), x + i * span, y);
    }
  }

  /** The tile with its columns painted up to `end`. */
  #tile(i, end) {
    let tile = this.tiles.get(i);
    if (tile)
      this.tiles.delete(i); // put back below: the map is in order of use
    else tile = this.#fresh(i);
    this.tiles.set(i, tile);
    if (this.tiles.size > MOST_TILES) this.tiles.delete(this.tiles.keys().next().value);
    for (; tile.painted < end; tile.painted += 1) {
      this.paint(
        tile.context,
        tile.painted,
        (tile.painted - i * TILE_COLUMNS) * this.width,
        this.width,
      );
    }
    return tile.canvas;
  }

  #fresh(i) {
    const canvas = document.createElement("canvas");
    canvas.width = TILE_COLUMNS * this.width;
    canvas.height = this.height;
    return { canvas, context: canvas.getContext("2d"), painted: i * TILE_COLUMNS };
  }
}
