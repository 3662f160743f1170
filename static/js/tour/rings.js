// Outlines around the elements or text ranges that the tour is about.

import { byId, el, setVars } from "../ui/dom.js";
import { around, overlap } from "./place.js";

/** Padding of an outline (CSS px). */
const ROOM = 4;
/** Scroll containers; an outline is clipped to them. */
const CLIPS = ".at-words, .ln-plate, .tk-list, .instrument, .sheet, .look-stage";
/** Elements up to this height (px) are scrolled to the middle. */
const SMALL = 100;
/** Maximum number of outlines. */
const MAX_RINGS = 6;

/** Table cells touch: keep the outline off the next cell's number. */
const CELL_GAP = 12;

/** @param {Outlined} node @returns {WindowBox} */
export const boxOf = (node) => {
  const { left, top, right, bottom } = node.getBoundingClientRect();
  const isCell = node instanceof HTMLTableCellElement && node.tagName === "TD";
  return { left, top, right: isCell ? right - CELL_GAP : right, bottom };
};

/** @param {Outlined} node @returns {Element} */
function elementOf(node) {
  if (node instanceof Element) return node;
  const { startContainer } = node;
  return startContainer instanceof Element ? startContainer : document.body;
}

/** @param {Outlined} node */
const seen = (node) =>
  elementOf(node).checkVisibility?.({ visibilityProperty: true, opacityProperty: true }) ?? true;

const windowBox = () => ({ left: 0, top: 0, right: innerWidth, bottom: innerHeight });

/** @param {Outlined} node */
function clipped(node) {
  let box = overlap(boxOf(node), windowBox());
  let clip = elementOf(node).parentElement?.closest(CLIPS);
  for (; clip; clip = clip.parentElement?.closest(CLIPS)) box = overlap(box, boxOf(clip));
  return box;
}

/** Scroll the first outlined element into view. @param {Outlined[][]} groups */
export function bringIntoView([first]) {
  const node = first?.find(seen);
  if (!node) return;
  const box = boxOf(node);
  const inside = clipped(node);
  const high = Math.min(box.bottom - box.top, innerHeight / 2);
  if (inside.right > inside.left && inside.bottom - inside.top >= high - 1) return;
  const block = high < SMALL ? "center" : "nearest";
  elementOf(node).scrollIntoView({ block, inline: "nearest" });
}

/** Return the visible boxes of `groups` of elements. @param {Outlined[][]} groups */
export function boxesOf(groups) {
  return groups
    .map((nodes) => nodes.filter(seen).map(clipped))
    .map((boxes) => boxes.filter(({ left, top, right, bottom }) => right > left && bottom > top))
    .filter((boxes) => boxes.length)
    .slice(0, MAX_RINGS)
    .map(around);
}

/** @type {HTMLElement[]} */
const rings = [];

/** Draw an outline around each box and remove all others. @param {WindowBox[]} boxes */
export function drawRings(boxes) {
  const holder = byId("tour-rings");
  for (const ring of rings.splice(boxes.length)) ring.remove();
  while (rings.length < boxes.length) rings.push(holder.appendChild(el("i")));
  boxes.forEach((box, i) => {
    const left = Math.max(0, Math.round(box.left - ROOM));
    const right = Math.min(innerWidth, Math.round(box.right + ROOM));
    const top = Math.round(box.top - ROOM);
    const bottom = Math.round(box.bottom + ROOM);
    setVars(rings[i], {
      "--x": `${left}px`,
      "--y": `${top}px`,
      "--w": `${right - left}px`,
      "--h": `${bottom - top}px`,
    });
  });
}
