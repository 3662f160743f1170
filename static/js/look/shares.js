// The colour of a share of a whole, on the same scale in every instrument that shows shares.

import { clamp, el, fitCanvas } from "../dom.js";
import { palette, shade } from "../palette.js";

/** How strong a share is shown, 0 to 1: by its square root, so that 1 % is seen beside 100 %. */
export const strength = (share) => Math.sqrt(clamp(share, 0, 1));

export const shareColour = (share) => shade(strength(share));

const NAMED = ["1", "10", "50"];

/** The scale, for people. Painted, because pictures of the page have no gradients. */
export class ShareLegend {
  constructor() {
    this.node = el("p", "shares");
    const ramp = el("span", "share-ramp");
    this.canvas = ramp.appendChild(el("canvas"));
    this.canvas.setAttribute("aria-hidden", "true");
    ramp.append(...NAMED.map((percent) => el("b", "", percent)));
    this.node.append(el("span", "", "0 %"), ramp, el("span", "", "100 %"));
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
