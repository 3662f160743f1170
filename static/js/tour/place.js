// Placement of the card: beside the elements it is about, never on them.
//
// A box is {left, top, right, bottom} in CSS pixels of the window.

/** @typedef {"left" | "right" | "top" | "bottom"} Side */

const GAP = 12;
/** Cost of a pixel of distance; a covered square pixel of a `keep` box costs 1. */
const FAR = 40;
/** Costs of a covered square pixel of a marked box, and of the gap around it. */
const COVERED = 1000;
const TOUCHED = 20;
/** Cost of touching the window's edge. */
const AT_EDGE = 5000;

/** @param {WindowBox} box */
const area = ({ left, top, right, bottom }) =>
  Math.max(0, right - left) * Math.max(0, bottom - top);

/** Intersection of `a` and `b`; has no area if they are apart. @param {WindowBox} a @param {WindowBox} b */
export const overlap = (a, b) => ({
  left: Math.max(a.left, b.left),
  top: Math.max(a.top, b.top),
  right: Math.min(a.right, b.right),
  bottom: Math.min(a.bottom, b.bottom),
});

/** Bounding box of all. @param {WindowBox[]} boxes */
export const around = (boxes) => ({
  left: Math.min(...boxes.map(({ left }) => left)),
  top: Math.min(...boxes.map(({ top }) => top)),
  right: Math.max(...boxes.map(({ right }) => right)),
  bottom: Math.max(...boxes.map(({ bottom }) => bottom)),
});

/** @param {WindowBox} box */
const wider = ({ left, top, right, bottom }) => ({
  left: left - GAP,
  top: top - GAP,
  right: right + GAP,
  bottom: bottom + GAP,
});

/** @param {WindowBox} a @param {WindowBox} b */
function distance(a, b) {
  const x = Math.max(0, a.left - b.right, b.left - a.right);
  const y = Math.max(0, a.top - b.bottom, b.top - a.bottom);
  return Math.hypot(x, y);
}

/**
 * Candidate positions along one axis: the window's ends, and before, after and along each box.
 *
 * @param {WindowBox[]} boxes
 * @param {number} size
 * @param {Side[]} sides
 * @param {number[]} room
 */
function starts(boxes, size, [low, high], [from, to]) {
  const wanted = boxes.flatMap((box) => [
    box[low] - size - GAP,
    box[high] + GAP,
    box[low] - size,
    box[high],
    box[low],
    box[low] + GAP,
    box[high] - size,
    (box[low] + box[high] - size) / 2,
  ]);
  const most = Math.max(from, to - size);
  const all = [to - size - GAP, from + GAP, from, most, ...wanted];
  return all.map((at) => Math.min(most, Math.max(from, at)));
}

/**
 * Return {left, top} of a card of [width, height] within `room`: off the `marks`, covering as
 * little as possible of the `keep` boxes, and near the top of `home`, or near the marks if that is
 * null.
 *
 * @param {{room: WindowBox, size: number[], marks: WindowBox[], keep: WindowBox[], home?: WindowBox | null}} card
 */
export function placeOf({ room, size: [width, height], marks, keep, home = null }) {
  const boxes = [...marks, ...keep, ...(home ? [home] : [])];
  const corner = home && { left: home.left + GAP, top: home.top + GAP };
  const xs = starts(boxes, width, ["left", "right"], [room.left, room.right]);
  const ys = starts(boxes, height, ["top", "bottom"], [room.top, room.bottom]);
  let best = { left: 0, top: 0, cost: Infinity };
  for (const top of ys)
    for (const left of xs) {
      const card = { left, top, right: left + width, bottom: top + height };
      /** @param {WindowBox[]} some */
      const covered = (some) => some.reduce((sum, box) => sum + area(overlap(card, box)), 0);
      const far = corner
        ? Math.hypot(left - corner.left, top - corner.top)
        : Math.min(...marks.map((box) => distance(card, box)), marks.length ? Infinity : 0);
      const inside = overlap(wider(card), room);
      const edge = area(inside) < area(wider(card)) - 1 ? AT_EDGE : 0;
      const hidden = COVERED * covered(marks) + TOUCHED * covered(marks.map(wider));
      const cost = hidden + covered(keep) + FAR * far + edge;
      if (cost < best.cost) best = { left, top, cost };
    }
  return { left: Math.round(best.left), top: Math.round(best.top) };
}
