// Cells of a map painted as pixels, in the colours of the page.

import { clamp } from "../dom.js";
import { palette, pixelOf } from "../palette.js";
import { strength } from "./shares.js";

/** Paints cells into the pixels of an image: thousands of rectangles would take longer. */
export class CellPainter {
  /** `image`: ImageData, with `ratio` pixels for each of the page, which boxes are given in. */
  constructor(image, ratio) {
    this.pixels = new Uint32Array(image.data.buffer);
    this.width = image.width;
    this.height = image.height;
    this.ratio = ratio;
    this.map = palette.pixels;
    this.blank = pixelOf(palette.plate);
  }

  /** One colour; the paper's for null. */
  fill(box, value) {
    const [left, top, right, bottom] = this.#edges(box);
    const colour = value === null ? this.blank : this.#colour(value);
    for (let y = top; y < bottom; y += 1)
      this.pixels.fill(colour, y * this.width + left, y * this.width + right);
  }

  /** A context from left to right, `line` times `by`; of several tokens at a pixel the greatest. */
  strip(box, line, by) {
    const [left, top, right, bottom] = this.#edges(box);
    if (right <= left || bottom <= top) return;
    const n = line.length;
    const wide = right - left;
    const start = top * this.width + left;
    for (let k = 0; k < wide; k += 1) {
      const first = Math.floor((k * n) / wide);
      const end = Math.max(first + 1, Math.floor(((k + 1) * n) / wide));
      let most = line[first];
      for (let j = first + 1; j < end; j += 1) if (line[j] > most) most = line[j];
      this.pixels[start + k] = Number.isNaN(most) ? this.blank : this.#colour(strength(most * by));
    }
    for (let y = top + 1; y < bottom; y += 1)
      this.pixels.copyWithin(y * this.width + left, start, start + wide);
  }

  #colour(value) {
    return this.map[Math.round(clamp(value, 0, 1) * (this.map.length - 1))];
  }

  #edges([x, y, width, height]) {
    const at = (value, most) => clamp(Math.round(value * this.ratio), 0, most);
    return [
      at(x, this.width),
      at(y, this.height),
      at(x + width, this.width),
      at(y + height, this.height),
    ];
  }
}
