// The sampling waterfall on a canvas: bars of mass in columns, ribbons between them.

import { clamp, fitCanvas } from "../../ui/dom.js";
import { percent } from "../../ui/format.js";
import { grid } from "../../core-sample/grid.js";
import { palette } from "../../ui/palette.js";
import { clipped, hatch, label, rule, SANS, SERIF } from "../shared/chart.js";
import { DRAW, extendsTo, removedIn } from "./flow.js";

/**
 * @typedef {{flow: Flow, real: Flow | null, picked: number, lit: number | null,
 *   nameOf: FlowNow["nameOf"]}} Picture
 * @typedef {ReturnType<typeof scaleOf>} Scale
 */

/** A name beside a column, of a band whose middle is `at`; `must`: it is shown at any size. */
/** @typedef {{band: Band, at: number, size: number, must: boolean}} BandName */

const COLUMNS = DRAW + 1;
const TOP = 7;
const FOOT = 5;
/** Width of a bar as a part of its column's, and its smallest and largest width in pixels. */
const BAR = [0.22, 8, 20];
/** Smallest height of a band with a name beside it. */
const MIN_NAMED = 9;
/** Smallest height of a band with a hairline below it. */
const MIN_DIVIDED = 3;

export class FlowPicture {
  /** @param {HTMLCanvasElement} canvas */
  constructor(canvas) {
    this.canvas = canvas;
    /** @type {Scale | null} */
    this.scale = null;
  }

  /**
   * flow    the filled bands (look/filters/flow.js)
   * real    the run, outlined over a preview; null when `flow` is the run
   * picked  id of the run's token, in amber
   * lit     id of the highlighted token, or null
   * nameOf(band)  text of a band
   *
   * @param {Picture} picture
   */
  draw({ flow, real, picked, lit, nameOf }) {
    const [context, width, height] = fitCanvas(this.canvas);
    if (!width || !height) return;
    this.scale = scaleOf(this.canvas, width, height);
    const look = { picked, lit, preview: real ? flow.chosen : null };
    const painter = new FlowPainter(context, this.scale, look);
    painter.guides();
    flow.bands.forEach((band, i) => painter.ribbons(band, i));
    flow.bands.forEach((band, i) => painter.bars(band, i));
    if (real) painter.outline(real, picked);
    painter.tick(flow);
    painter.names(flow, 0, nameOf);
    painter.names(flow, DRAW, nameOf);
  }

  /**
   * Return {column, share} at a point of the canvas, or null.
   *
   * @param {number} offsetX
   * @param {number} offsetY
   */
  at(offsetX, offsetY) {
    if (!this.scale) return null;
    const { left, pitch, y0, tall } = this.scale;
    const column = Math.floor((offsetX - left) / pitch);
    const share = (offsetY - y0) / tall;
    if (column < -1 || column > COLUMNS || share < 0 || share > 1) return null;
    return { column: clamp(column, 0, DRAW), share };
  }
}

/** Paints one picture. */
class FlowPainter {
  /**
   * @param {CanvasRenderingContext2D} context
   * @param {Scale} scale
   * @param {{picked: number, lit: number | null, preview: number | null}} look
   */
  constructor(context, scale, look) {
    this.context = context;
    this.scale = scale;
    this.look = look;
  }

  /** Draw lines at the top and the bottom of the mass. */
  guides() {
    const { left, pitch, y0, tall } = this.scale;
    for (const y of [y0 - 1, y0 + tall])
      rule(this.context, left + pitch / 2, y, DRAW * pitch, 1);
  }

  /**
   * @param {Band} band
   * @param {number} i
   * @returns {{bar: string, alpha: number, ribbon: [colour: string, alpha: number]}}
   */
  colour(band, i) {
    const { picked, lit, preview } = this.look;
    if (band.id === picked) return { bar: palette.lamp, alpha: 1, ribbon: [palette.lamp, 0.34] };
    const { data, "data-2": plain } = palette;
    if (band.id === null) return { bar: plain, alpha: 0.4, ribbon: [plain, 0.12] };
    if (band.id === preview) return { bar: data, alpha: 1, ribbon: [data, 0.42] };
    if (band.id === lit) return { bar: data, alpha: 1, ribbon: [data, 0.55] };
    const odd = i % 2 === 1;
    return { bar: plain, alpha: odd ? 0.78 : 1, ribbon: [plain, odd ? 0.2 : 0.28] };
  }

  /** @param {Band} band @param {number} i */
  ribbons(band, i) {
    const { context } = this;
    const [colour, alpha] = this.colour(band, i).ribbon;
    context.fillStyle = colour;
    context.globalAlpha = alpha;
    for (let column = 0; column < DRAW && extendsTo(band, column + 1); column += 1) {
      context.beginPath();
      this.ribbon(band, column);
      context.fill();
    }
    context.globalAlpha = 1;
  }

  /** Add the path of a band from one column to the next. @param {Band} band @param {number} column */
  ribbon({ tops, sizes }, column) {
    const { context } = this;
    const { x, bar, y } = this.scale;
    const [from, to] = [x(column) + bar, x(column + 1)];
    const middle = (from + to) / 2;
    const [a, b] = [tops[column], tops[column + 1]];
    const [c, d] = [a + sizes[column], b + sizes[column + 1]];
    context.moveTo(from, y(a));
    context.bezierCurveTo(middle, y(a), middle, y(b), to, y(b));
    context.lineTo(to, y(d));
    context.bezierCurveTo(middle, y(d), middle, y(c), from, y(c));
  }

  /** @param {Band} band @param {number} i */
  bars(band, i) {
    const { context } = this;
    const { bar: colour, alpha } = this.colour(band, i);
    const { x, bar, y, tall } = this.scale;
    for (let column = 0; column <= DRAW; column += 1) {
      const size = band.sizes[column] * tall;
      if (size <= 0) continue;
      const top = y(band.tops[column]);
      if (removedIn(band, column)) {
        this.removed(x(column), top, bar, size, band.id === this.look.picked);
        continue;
      }
      context.globalAlpha = alpha;
      context.fillStyle = colour;
      const hairline = size >= MIN_DIVIDED && band.id !== null ? 1 : 0;
      context.fillRect(x(column), top, bar, size - hairline);
    }
    context.globalAlpha = 1;
  }

  /**
   * @param {number} x
   * @param {number} y
   * @param {number} width
   * @param {number} height
   * @param {boolean} picked
   */
  removed(x, y, width, height, picked) {
    const { context } = this;
    const path = () => context.rect(x, y, width, height);
    clipped(context, path, () => {
      context.fillStyle = palette.ground;
      context.fillRect(x, y, width, height);
      hatch(context, x, y, width, height);
      if (picked) {
        context.fillStyle = palette.lamp;
        context.globalAlpha = 0.5;
        context.fillRect(x, y, width, height);
      }
    });
  }

  /**
   * Outline the run: what it kept in each column, and the path of its token.
   *
   * @param {Flow} real
   * @param {number} picked
   */
  outline(real, picked) {
    const { context } = this;
    const { x, bar, y, tall } = this.scale;
    context.lineWidth = 1;
    context.strokeStyle = palette["ink-2"];
    for (let column = 0; column <= DRAW; column += 1) {
      const kept = column === DRAW ? 1 : (real.stages[column]?.kept ?? 1);
      const height = Math.round(kept * tall);
      context.strokeRect(x(column) - 2.5, Math.round(y(0)) - 0.5, bar + 5, height + 1);
    }
    const token = real.byId.get(picked);
    if (!token) return;
    context.strokeStyle = palette.lamp;
    context.setLineDash([3, 3]);
    context.beginPath();
    for (let column = 0; column < DRAW; column += 1) {
      this.ribbon(token, column);
      context.closePath();
    }
    context.stroke();
    context.setLineDash([]);
  }

  /** Mark the random number. @param {Flow} flow */
  tick({ draw_at: draw, greedy }) {
    if (greedy) return;
    const { x, bar, y } = this.scale;
    const at = Math.round(y(draw)) - 1;
    rule(this.context, x(DRAW) - 6, at - 1, bar + 12, 4, "ground");
    rule(this.context, x(DRAW) - 6, at, bar + 12, 2, "lamp");
  }

  // ---- names beside the first and the last column ---------------------------------------------

  /** @param {Flow} flow @param {number} column @param {FlowNow["nameOf"]} nameOf */
  names(flow, column, nameOf) {
    const { x, bar, left, right, pitch, y, tall, y0 } = this.scale;
    const first = column === 0;
    const rightRoom = right + pitch - bar - (pitch - bar) / 2 - 12;
    const room = first ? x(0) - 8 - Math.min(8, left / 4) : rightRoom;
    if (room < 30) return;
    const wanted = flow.bands
      .map((band) => ({
        band,
        at: y(band.tops[column] + band.sizes[column] / 2),
        size: band.sizes[column] * tall,
        must: this.mustName(band, column),
      }))
      .filter(({ size, must }) => must || size >= MIN_NAMED);
    const edge = first ? x(0) - 8 : x(DRAW) + bar + 9;
    for (const { band, at } of placed(wanted, y0 + 5, y0 + tall - 4))
      this.name(band, nameOf(band), edge, at, { first, room, share: band.sizes[column] });
  }

  /** @param {Band} band @param {number} column */
  mustName({ id, sizes }, column) {
    const { picked, lit, preview } = this.look;
    if (id === null || sizes[column] === 0) return false;
    return id === picked || id === lit || id === preview;
  }

  /**
   * @param {Band} band
   * @param {string} text
   * @param {number} edge
   * @param {number} at
   * @param {{first: boolean, room: number, share: number}} options
   */
  name(band, text, edge, at, { first, room, share }) {
    const { context } = this;
    const { picked, lit, preview } = this.look;
    const strong = band.id !== null && [picked, lit, preview].includes(band.id);
    const colour = band.id === picked ? "lamp" : strong ? "ink" : "ink-2";
    const number = percent(share);
    context.font = `400 ${grid.small}px ${SANS}`;
    const figure = context.measureText(number).width;
    const words = fit(context, text, room - figure - 6, band, strong);
    const wide = context.measureText(words).width;
    context.fillStyle = palette[band.id === null ? "ink-3" : colour];
    context.textBaseline = "middle";
    context.fillText(words, first ? edge - figure - 6 - wide : edge, at);
    label(context, number, first ? edge : edge + wide + 6, at, {
      align: first ? "end" : "start",
      colour: band.id === picked ? "lamp" : "ink-3",
    });
  }
}

/**
 * Return positions in pixels: `x` of columns, `y` of shares of the mass.
 *
 * @param {HTMLCanvasElement} canvas
 * @param {number} width
 * @param {number} height
 */
function scaleOf(canvas, width, height) {
  const style = getComputedStyle(canvas);
  /** @param {string} name */
  const px = (name) => parseFloat(style.getPropertyValue(name));
  const [left, right] = [px("--wf-left"), px("--wf-right")];
  const pitch = (width - left - right) / COLUMNS;
  const bar = Math.round(clamp(pitch * BAR[0], BAR[1], BAR[2]));
  const tall = height - TOP - FOOT;
  return {
    left,
    right,
    pitch,
    bar,
    y0: TOP,
    tall,
    /** @param {number} column */
    x: (column) => Math.round(left + (column + 0.5) * pitch - bar / 2),
    /** @param {number} share */
    y: (share) => TOP + share * tall,
  };
}

/**
 * Choose the names that fit, the largest bands first, and move them apart.
 *
 * @param {BandName[]} wanted
 * @param {number} top
 * @param {number} bottom
 */
function placed(wanted, top, bottom) {
  const between = Math.round(1.15 * grid.words);
  const most = Math.floor((bottom - top) / between) + 1;
  const chosen = wanted
    .toSorted((a, b) => Number(b.must) - Number(a.must) || b.size - a.size)
    .slice(0, Math.max(0, most))
    .filter((one, i, all) => one.must || !all.slice(0, i).some((other) => crowds(one, other)))
    .sort((a, b) => a.at - b.at);
  let free = top;
  for (const one of chosen) {
    one.at = Math.max(free, one.at);
    free = one.at + between;
  }
  let last = bottom;
  for (const one of chosen.toReversed()) {
    one.at = Math.min(last, one.at);
    last = one.at - between;
  }
  return chosen;
}

/** @param {BandName} a @param {BandName} b */
const crowds = (a, b) => Math.abs(a.at - b.at) < MIN_NAMED;

/**
 * Set the font (of words, or of numbers for a part of the rest); cut `text` to `room` pixels.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {string} text
 * @param {number} room
 * @param {Band} band
 * @param {boolean} strong
 */
function fit(context, text, room, { id }, strong) {
  const { small, words } = grid;
  const weight = strong ? 600 : 400;
  context.font = id === null ? `400 ${small}px ${SANS}` : `${weight} ${words + 1}px ${SERIF}`;
  if (context.measureText(text).width <= room) return text;
  if (id === null) return "rest";
  let short = text;
  while (short && context.measureText(`${short}…`).width > room) short = short.slice(0, -1);
  return short && `${short}…`;
}

