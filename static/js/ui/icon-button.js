// A button with a picture of the sprite (templates/_partials/icons.html) and a name.

import { el } from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";

/**
 * @param {string} icon
 * @param {string} label
 * @param {() => void} act
 */
export function newIconButton(icon, label, act) {
  const button = el("button", "quiet");
  button.type = "button";
  button.title = label;
  button.setAttribute("aria-label", label);
  const picture = document.createElementNS(SVG, "svg");
  picture.setAttribute("class", "ic");
  picture.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `#i-${icon}`);
  picture.append(use);
  button.append(picture);
  button.addEventListener("click", act);
  return button;
}
