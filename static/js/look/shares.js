// The colour of a share of a whole, on the same scale in every instrument that shows shares.

import { clamp, el } from "../dom.js";
import { shade } from "../palette.js";

/** How strong a share is shown, 0 to 1: by its square root, so that 1 % is seen beside 100 %. */
export const strength = (share) => Math.sqrt(clamp(share, 0, 1));

export const shareColour = (share) => shade(strength(share));

const NAMED = ["1", "10", "50"];

/** The scale, for people. */
export function shareLegend() {
  const box = el("p", "shares");
  const ramp = el("span", "ramp");
  ramp.append(...NAMED.map((percent) => el("b", "", percent)));
  box.append(el("span", "", "0 %"), ramp, el("span", "", "100 %"));
  return box;
}
