// Colour scales of shares and loads, common to all instruments.

import { clamp, el, fitCanvas, setVars } from "../../ui/dom.js";
import { palette, shade } from "../../ui/palette.js";

/**
 * Position of a share on the scale, in [0, 1]: its square root, so that 1 % is visible.
 *
 * @param {number} share
 */
export const intensity = (share) => Math.sqrt(clamp(share, 0, 1));

/** @param {number} share */
export const shareColour = (share) => shade(intensity(share));

/**
 * Position of a load on the scale, in [0, 1]: the mean is in the middle, and factors 2 and ½ are at
 * equal distances from it.
 *
 * @param {number} load
 */
export const loadIntensity = (load) => load / (1 + load);

/** Legend of a scale. Painted on a canvas, because exported pictures cannot contain gradients. */
class Legend {
  /**
   * `marks`: [text, position in [0, 1]], between the labels of the ends.
   *
   * @param {string} first
   * @param {[text: string, at: number][]} marks
   * @param {string} last
   */
  constructor(first, marks, last) {
    this.node = el("p", "shares");
    const ramp = el("span", "share-ramp");
    this.canvas = ramp.appendChild(el("canvas"));
    this.canvas.setAttribute("aria-hidden", "true");
    for (const [text, at] of marks)
      ramp.append(setVars(el("b", "", text), { "--at": `${100 * at}%` }));
    this.node.append(el("span", "", first), ramp, el("span", "", last));
    /** @type {string[] | null} */
    this.drawn = null;
  }

  draw() {
    if (this.drawn === palette.map) return;
    const [context, width, height] = fitCanvas(this.canvas);
    if (!width) return;
    this.drawn = palette.map;
    const step = width / palette.map.length;
    palette.map.forEach((colour, i) => {
      context.fillStyle = colour;
      context.fillRect(i * step, 0, step + 1, height);
    });
  }
}

export class ShareLegend extends Legend {
  constructor() {
    super("0 %", [1, 10, 50].map((percent) => [String(percent), intensity(percent / 100)]), "100 %");
  }
}

export class LoadLegend extends Legend {
  constructor() {
    const marks = new Map([["¼", 0.25], ["½", 0.5], ["1", 1], ["2", 2], ["4", 4]]);
    super("0", [...marks].map(([text, load]) => [text, loadIntensity(load)]), "× mean");
  }
}
