// Outlines around what the walk speaks about, elements or ranges of text, and the boxes they lie in.

import { byId, el, setVars } from "../dom.js";
import { around, overlap } from "./place.js";

/** Around what is ringed, in CSS pixels. */
const ROOM = 4;
/** What scrolls in itself: a ring does not stick out of it. */
const CLIPS = ".at-words, .ln-plate, .tk-list, .instrument, .sheet, .look-stage";
/** What is no higher than this is brought to the middle, with what is around it. */
const SMALL = 100;
/** More than these would ring the whole picture. */
const MOST = 6;

/** Cells stand wall to wall: rings stay off the number of the next. */
const CELL_GAP = 12;

export const boxOf = (node) => {
  const { left, top, right, bottom } = node.getBoundingClientRect();
  return { left, top, right: node.tagName === "TD" ? right - CELL_GAP : right, bottom };
};

const elementOf = (node) => node.startContainer ?? node;

const seen = (node) =>
  elementOf(node).checkVisibility?.({ visibilityProperty: true, opacityProperty: true }) ?? true;

const windowBox = () => ({ left: 0, top: 0, right: innerWidth, bottom: innerHeight });

function clipped(node) {
  let box = overlap(boxOf(node), windowBox());
  let clip = elementOf(node).parentElement?.closest(CLIPS);
  for (; clip; clip = clip.parentElement.closest(CLIPS)) box = overlap(box, boxOf(clip));
  return box;
}

/** Bring what is ringed first into view where it was scrolled away. */
export function bringIntoView([first]) {
  const node = first?.find(seen);
  if (!node) return;
  const box = boxOf(node);
  const inside = clipped(node);
  const high = Math.min(box.bottom - box.top, innerHeight / 2);
  if (inside.right <= inside.left || inside.bottom - inside.top < high - 1)
    elementOf(node).scrollIntoView({ block: high < SMALL ? "center" : "nearest", inline: "nearest" });
}

/** The boxes of `groups` of elements in the window, without what is not on it. */
export function boxesOf(groups) {
  return groups
    .map((nodes) => nodes.filter(seen).map(clipped))
    .map((boxes) => boxes.filter(({ left, top, right, bottom }) => right > left && bottom > top))
    .filter((boxes) => boxes.length)
    .slice(0, MOST)
    .map(around);
}

/** Draw a ring around each box; none takes them away. */
export function drawRings(boxes) {
  const holder = byId("tour-rings");
  while (holder.children.length > boxes.length) holder.lastElementChild.remove();
  while (holder.children.length < boxes.length) holder.append(el("i"));
  boxes.forEach((box, i) => {
    const left = Math.max(0, Math.round(box.left - ROOM));
    const right = Math.min(innerWidth, Math.round(box.right + ROOM));
    const top = Math.round(box.top - ROOM);
    const bottom = Math.round(box.bottom + ROOM);
    setVars(holder.children[i], {
      "--x": `${left}px`,
      "--y": `${top}px`,
      "--w": `${right - left}px`,
      "--h": `${bottom - top}px`,
    });
  });
}
