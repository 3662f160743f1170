// The colour of a share of a whole, on the same scale in every instrument that shows shares.

import { clamp, el, fitCanvas, setVars } from "../dom.js";
import { palette, shade } from "../palette.js";

/** How strong a share is shown, 0 to 1: by its square root, so that 1 % is seen beside 100 %. */
export const strength = (share) => Math.sqrt(clamp(share, 0, 1));

export const shareColour = (share) => shade(strength(share));

/**
 * How strong a load is shown, 0 to 1: an equal share in the middle of the scale, and twice as much as
 * far above it as half as much is below.
 */
export const loadStrength = (load) => load / (1 + load);

/** A scale, for people. Painted, because pictures of the page have no gradients. */
class Legend {
  /** `marks`: [text, place from 0 to 1], between the words for its ends. */
  constructor(first, marks, last) {
    this.node = el("p", "shares");
    const ramp = el("span", "share-ramp");
    this.canvas = ramp.appendChild(el("canvas"));
    this.canvas.setAttribute("aria-hidden", "true");
    for (const [text, at] of marks)
      ramp.append(setVars(el("b", "", text), { "--at": `${100 * at}%` }));
    this.node.append(el("span", "", first), ramp, el("span", "", last));
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
    super("0 %", [1, 10, 50].map((percent) => [String(percent), strength(percent / 100)]), "100 %");
  }
}

export class LoadLegend extends Legend {
  constructor() {
    const marks = [["¼", 0.25], ["½", 0.5], ["1", 1], ["2", 2], ["4", 4]];
    super("0", marks.map(([text, load]) => [text, loadStrength(load)]), "× mean");
  }
}
