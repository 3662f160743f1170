// Where the card goes: beside what it speaks about, never on it.
//
// A box is {left, top, right, bottom} in CSS pixels of the window.

const GAP = 12;
/** A pixel of distance counts like so many square pixels of what had better stay visible. */
const FAR = 40;
/** And a square pixel of what is spoken about like so many of those, or of the gap around it. */
const COVERED = 1000;
const TOUCHED = 20;
/** What it counts to stand at the window's edge. */
const AT_EDGE = 5000;

const area = ({ left, top, right, bottom }) => Math.max(0, right - left) * Math.max(0, bottom - top);

/** The part of `a` that lies in `b`; without area when they lie apart. */
export const overlap = (a, b) => ({
  left: Math.max(a.left, b.left),
  top: Math.max(a.top, b.top),
  right: Math.min(a.right, b.right),
  bottom: Math.min(a.bottom, b.bottom),
});

/** The smallest box around all. */
export const around = (boxes) => ({
  left: Math.min(...boxes.map(({ left }) => left)),
  top: Math.min(...boxes.map(({ top }) => top)),
  right: Math.max(...boxes.map(({ right }) => right)),
  bottom: Math.max(...boxes.map(({ bottom }) => bottom)),
});

const wider = ({ left, top, right, bottom }) => ({
  left: left - GAP,
  top: top - GAP,
  right: right + GAP,
  bottom: bottom + GAP,
});

function distance(a, b) {
  const x = Math.max(0, a.left - b.right, b.left - a.right);
  const y = Math.max(0, a.top - b.bottom, b.top - a.bottom);
  return Math.hypot(x, y);
}

/** Where an edge may lie along one axis: at the window's ends, and before, behind and along each box. */
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
 * {left, top} of a card of [width, height] within `room`: off the `marks`, which it speaks about, as
 * little as can be on the boxes to `keep` visible, and then at the top of its `home`, or near the
 * marks where that is null.
 */
export function placeOf({ room, size: [width, height], marks, keep, home = null }) {
  const boxes = [...marks, ...keep, ...(home ? [home] : [])];
  const corner = home && { left: home.left + GAP, top: home.top + GAP };
  const xs = starts(boxes, width, ["left", "right"], [room.left, room.right]);
  const ys = starts(boxes, height, ["top", "bottom"], [room.top, room.bottom]);
  let best = null;
  for (const top of ys)
    for (const left of xs) {
      const card = { left, top, right: left + width, bottom: top + height };
      const covered = (some) => some.reduce((sum, box) => sum + area(overlap(card, box)), 0);
      const far = corner
        ? Math.hypot(left - corner.left, top - corner.top)
        : Math.min(...marks.map((box) => distance(card, box)), marks.length ? Infinity : 0);
      const inside = overlap(wider(card), room);
      const edge = area(inside) < area(wider(card)) - 1 ? AT_EDGE : 0;
      const cost =
        COVERED * covered(marks) + TOUCHED * covered(marks.map(wider)) + covered(keep) + FAR * far + edge;
      if (best === null || cost < best.cost) best = { left, top, cost };
    }
  return { left: Math.round(best.left), top: Math.round(best.top) };
}
