// Drawing helpers shared by the canvas charts.

import { grid } from "../../core-sample/grid.js";
import { round125 } from "../../turns/metrics.js";
import { palette } from "../../ui/palette.js";

export const SANS = '"Plex Sans", sans-serif';
export const SERIF = '"Source Serif", serif';

/**
 * Return ticks 0, s, 2s … up to `most`, at least `apart` px apart on `room` px.
 *
 * @param {number} most
 * @param {number} room
 * @param {number} apart
 */
export function ticks(most, room, apart) {
  if (!(most > 0) || room <= 0) return [];
  const step = round125((most * apart) / room, 1);
  return Array.from({ length: Math.floor(most / step + 1e-9) + 1 }, (_, i) => i * step);
}

/**
 * Draw a small label. `align` as in canvas; `weight` 400 to 600.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {string} text
 * @param {number} x
 * @param {number} y
 * @param {LabelStyle} [style]
 */
export function label(context, text, x, y, style = {}) {
  const { colour = "ink-3", align = "start", weight = 400 } = style;
  context.font = `${weight} ${grid.small}px ${SANS}`;
  context.fillStyle = palette[colour];
  context.textAlign = align;
  context.textBaseline = "middle";
  context.fillText(text, x, y);
  context.textAlign = "start";
}

/** Width of a label of regular weight. @param {CanvasRenderingContext2D} context @param {string} text */
export function labelWidth(context, text) {
  context.font = `400 ${grid.small}px ${SANS}`;
  return context.measureText(text).width;
}

/** A row of labels between two x that keep 6 px from each other: what finds no room is left out. */
export class LabelRow {
  /** @param {CanvasRenderingContext2D} context @param {number} y @param {number} from @param {number} to */
  constructor(context, y, from, to) {
    this.context = context;
    this.y = y;
    this.from = from;
    this.to = to;
    /** @type {[left: number, right: number][]} */
    this.taken = [];
  }

  /**
   * Draw `text` at the first of `places`, each [x, align], that is free.
   *
   * @param {string} text
   * @param {LabelPlace[]} places
   * @param {LabelStyle} [style]
   */
  add(text, places, style = {}) {
    this.context.font = `${style.weight ?? 400} ${grid.small}px ${SANS}`;
    const { width } = this.context.measureText(text);
    for (const [x, align] of places) {
      const left = x - width * { start: 0, center: 0.5, end: 1 }[align];
      const right = left + width;
      if (left < this.from || right > this.to) continue;
      if (this.taken.some(([a, b]) => left < b + 6 && right > a - 6)) continue;
      this.taken.push([left, right]);
      label(this.context, text, x, this.y, { ...style, align });
      return;
    }
  }
}

/**
 * Draw a rectangle on whole pixels, usually a line.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {number} x
 * @param {number} y
 * @param {number} width
 * @param {number} height
 * @param {PaletteName} [colour]
 */
export function rule(context, x, y, width, height, colour = "line") {
  context.fillStyle = palette[colour];
  context.fillRect(Math.round(x), Math.round(y), Math.max(1, width), Math.max(1, height));
}

/**
 * Hatch the clipped area; marks what was not computed or not kept.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {number} x
 * @param {number} y
 * @param {number} width
 * @param {number} height
 */
export function hatch(context, x, y, width, height) {
  context.strokeStyle = palette.edge;
  context.lineWidth = 1;
  context.beginPath();
  for (let at = x - height; at < x + width; at += 6) {
    context.moveTo(at, y + height);
    context.lineTo(at + height, y);
  }
  context.stroke();
}

/**
 * Draw within a clip path.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {() => void} path
 * @param {() => void} draw
 */
export function clipped(context, path, draw) {
  context.save();
  context.beginPath();
  path();
  context.clip();
  draw();
  context.restore();
}
