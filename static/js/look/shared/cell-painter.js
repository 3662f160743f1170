// Pixel painter for maps with many cells.

import { clamp } from "../../ui/dom.js";
import { palette, pixelOf } from "../../ui/palette.js";
import { intensity } from "./share-colours.js";

/** Paints cells into the pixels of an image: thousands of canvas rectangles would be slower. */
export class CellPainter {
  /**
   * `image`: ImageData with `ratio` pixels per CSS pixel; boxes are in CSS pixels.
   *
   * @param {ImageData} image
   * @param {number} ratio
   */
  constructor(image, ratio) {
    this.pixels = new Uint32Array(image.data.buffer);
    this.width = image.width;
    this.height = image.height;
    this.ratio = ratio;
    this.map = palette.pixels;
    this.blank = pixelOf(palette.plate);
  }

  /**
   * Fill a box with the colour of a value; null is the background.
   *
   * @param {Rect} box
   * @param {number | null} value
   */
  fill(box, value) {
    const [left, top, right, bottom] = this.#edges(box);
    const colour = value === null ? this.blank : this.#colour(value);
    for (let y = top; y < bottom; y += 1)
      this.pixels.fill(colour, y * this.width + left, y * this.width + right);
  }

  /**
   * Paint `line` × `by` from left to right; a pixel that covers several tokens shows the maximum.
   *
   * @param {Rect} box
   * @param {Float32Array} line
   * @param {number} by
   */
  strip(box, line, by) {
    const [left, top, right, bottom] = this.#edges(box);
    if (right <= left || bottom <= top) return;
    const n = line.length;
    const wide = right - left;
    const start = top * this.width + left;
    for (let k = 0; k < wide; k += 1) {
      const first = Math.floor((k * n) / wide);
      const end = Math.max(first + 1, Math.floor(((k + 1) * n) / wide));
      let largest = line[first];
      for (let j = first + 1; j < end; j += 1) if (line[j] > largest) largest = line[j];
      const unknown = Number.isNaN(largest);
      this.pixels[start + k] = unknown ? this.blank : this.#colour(intensity(largest * by));
    }
    for (let y = top + 1; y < bottom; y += 1)
      this.pixels.copyWithin(y * this.width + left, start, start + wide);
  }

  /** @param {number} value */
  #colour(value) {
    return this.map[Math.round(clamp(value, 0, 1) * (this.map.length - 1))];
  }

  /** @param {Rect} rect */
  #edges([x, y, width, height]) {
    /** @param {number} value @param {number} largest */
    const at = (value, largest) => clamp(Math.round(value * this.ratio), 0, largest);
    return [
      at(x, this.width),
      at(y, this.height),
      at(x + width, this.width),
      at(y + height, this.height),
    ];
  }
}
