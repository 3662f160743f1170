// Chart of the timeline: tracks of spans on a time axis that can be zoomed and panned.

import { clamp, el, fitCanvas } from "../../ui/dom.js";
import { tokenLabel } from "../../ui/format.js";
import { grid } from "../../core-sample/grid.js";
import { round125 } from "../../turns/metrics.js";
import { palette } from "../../ui/palette.js";
import { clipped, hatch, label, rule, SERIF } from "../shared/chart.js";
import { TRACKS } from "./spans.js";

/** @typedef {{from: number, to: number}} TimeWindow */

/** Colours of parts, as names in tokens.css. @type {Record<string, PaletteName>} */
export const COLOURS = {
  gpu: "data",
  encode: "ink-2",
  wait: "edge",
  read: "data-2",
  pipe: "edge",
  socket: "data-2",
  page: "ink-3",
};
/** @type {Record<string, PaletteName>} */
const PART_COLOURS = {
  ...COLOURS,
  prefill: "data",
  decode: "data",
  "first sample": "data-2",
  template: "ink-2",
  "to the engine": "edge",
  queue: "line",
  draw: "ink-3",
};

/** Parts in which nothing is computed. */
const HATCHED = ["sending", "waiting"];

const WORDS = 20;
const RULER = 24;
const TRACK_HEIGHT = 34;
const MIN_WINDOW_MS = 0.5;
const ZOOM = 1.5;
const ZOOM_KEYS = new Map([["+", 1 / ZOOM], ["=", 1 / ZOOM], ["-", ZOOM]]);
/** Minimum width of a step (px) with its token written above. */
const MIN_WORD = 26;
/** Ends of the axis during a run: few, so that it seldom changes. */
const ENDS = [1, 1.5, 2, 3, 4, 5, 6, 8, 10];

/** Before the first run. @type {MeasuredRun} */
const NOTHING = { spans: [], steps: [], end: 0, live: false };

export class StepChart {
  /**
   * `acts`: look(step), choose(step), move(key); step is a number or null.
   *
   * @param {HTMLElement} root
   * @param {{look: (step: number | null) => void, choose: (step: number | null) => void, move: (key: string) => boolean}} acts
   */
  constructor(root, acts) {
    this.acts = acts;
    this.plot = root.appendChild(el("div", "tl-plot"));
    this.plot.tabIndex = 0;
    this.plot.setAttribute("role", "slider");
    this.plot.setAttribute("aria-label", "Token on the timeline");
    this.plot.title = "Wheel or + and − to zoom, drag to pan, 0 to show all";
    this.canvas = this.plot.appendChild(el("canvas"));
    this.canvas.setAttribute("aria-hidden", "true");
    /** In ms, or null for everything. @type {TimeWindow | null} */
    this.window = null;
    /** @type {{x: number, range: TimeWindow, moved: boolean} | null} */
    this.drag = null;
    this.measured = NOTHING;
    /** @type {Token[]} */
    this.tokens = [];
    /** Number of the focused step, or null. @type {number | null} */
    this.at = null;
    /** Places in px: left end and width of the axis, height of a track, foot of all tracks. */
    this.left = 0;
    this.room = 0;
    this.track = 0;
    this.foot = 0;
    this.#listen();
  }

  /** @param {string} text @param {number} at @param {number} most */
  describe(text, at, most) {
    /** @param {string} name @param {string | number} value */
    const say = (name, value) => this.plot.setAttribute(`aria-${name}`, String(value));
    say("valuemin", 0);
    say("valuemax", most);
    say("valuenow", at);
    say("valuetext", text);
  }

  /**
   * `at`: number of the focused step, or null.
   *
   * @param {MeasuredRun} measured
   * @param {Token[]} tokens
   * @param {number | null} at
   */
  draw(measured, tokens, at) {
    if (this.tokens[0] !== tokens[0]) this.window = null;
    Object.assign(this, { measured, tokens, at });
    this.#follow();
    this.#paint();
  }

  #listen() {
    const { plot } = this;
    plot.addEventListener("wheel", (event) => this.#onWheel(event), { passive: false });
    plot.addEventListener("pointerdown", (event) => this.#onDown(event));
    plot.addEventListener("pointermove", (event) => this.#onMove(event));
    plot.addEventListener("pointerup", (event) => this.#onUp(event));
    plot.addEventListener("pointerleave", () => this.drag || this.acts.look(null));
    plot.addEventListener("keydown", (event) => this.#onKey(event));
  }

  // ---- the axis ------------------------------------------------------------------------------

  get #range() {
    if (this.window) return this.window;
    const { end } = this.measured;
    if (!(end > 0)) return { from: 0, to: 1 };
    const power = 10 ** Math.floor(Math.log10(end));
    return { from: 0, to: power * (ENDS.find((step) => step * power >= end * 0.999) ?? NaN) };
  }

  /** @param {number} time */
  #x(time) {
    const { from, to } = this.#range;
    return this.left + ((time - from) / (to - from)) * this.room;
  }

  /** @param {number} x */
  #time(x) {
    const { from, to } = this.#range;
    return from + ((x - this.left) / this.room) * (to - from);
  }

  /** Number of the step at x; null before the first token. @param {number} x */
  #stepAt(x) {
    const time = this.#time(x);
    const { steps } = this.measured;
    if (!steps.length || time < steps[0].from) return null;
    const next = steps.findIndex(({ at }) => at >= time);
    return next < 0 ? steps.length - 1 : next;
  }

  /** When zoomed in, pan to keep the focused step in view. */
  #follow() {
    if (!this.window || this.drag || this.at === null) return;
    const { from, to } = this.window;
    const { at } = this.measured.steps[this.at];
    const size = to - from;
    if (at > to) this.window = { from: at - 0.3 * size, to: at + 0.7 * size };
    else if (at < from) this.window = { from: at - 0.7 * size, to: at + 0.3 * size };
  }

  /** Zoom by `factor` around `time`. @param {number} factor @param {number} time */
  #zoom(factor, time) {
    const { from, to } = this.#range;
    const full = this.measured.end;
    const size = clamp((to - from) * factor, MIN_WINDOW_MS, full * 1.05);
    if (size >= full) this.window = null;
    else {
      const start = time - ((time - from) / (to - from)) * size;
      this.window = this.#bounded(start, size);
    }
    this.#paint();
  }

  /** @param {number} from @param {number} size */
  #bounded(from, size) {
    const start = clamp(from, -0.02 * size, Math.max(0, this.measured.end - 0.8 * size));
    return { from: start, to: start + size };
  }

  // ---- pointer and keys ----------------------------------------------------------------------

  /** @param {WheelEvent} event */
  #onWheel(event) {
    if (this.measured === NOTHING || event.ctrlKey) return;
    event.preventDefault();
    const { from, to } = this.#range;
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      if (!this.window) return;
      this.window = this.#bounded(from + (event.deltaX / this.room) * (to - from), to - from);
      this.#paint();
    } else this.#zoom(ZOOM ** (event.deltaY / 100), this.#time(event.offsetX));
  }

  /** @param {PointerEvent} event */
  #onDown({ offsetX, pointerId, button }) {
    if (button) return;
    this.drag = { x: offsetX, range: this.#range, moved: false };
    this.plot.setPointerCapture(pointerId);
  }

  /** @param {PointerEvent} event */
  #onMove({ offsetX, pointerType }) {
    if (this.measured === NOTHING) return;
    const { drag } = this;
    if (!drag) {
      if (pointerType !== "touch") this.acts.look(this.#stepAt(offsetX));
      return;
    }
    const d = offsetX - drag.x;
    drag.moved ||= Math.abs(d) > 3;
    if (!drag.moved || !this.window) return;
    const { from, to } = drag.range;
    this.window = this.#bounded(from - (d / this.room) * (to - from), to - from);
    this.#paint();
  }

  /** @param {PointerEvent} event */
  #onUp({ offsetX }) {
    if (this.drag && !this.drag.moved) this.acts.choose(this.#stepAt(offsetX));
    this.drag = null;
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || this.measured === NOTHING) return;
    const { from, to } = this.#range;
    const time = this.at === null ? (from + to) / 2 : this.measured.steps[this.at].at;
    const zoom = ZOOM_KEYS.get(event.key);
    if (zoom) this.#zoom(zoom, clamp(time, from, to));
    else if (event.key === "0") this.#zoom(Infinity, time);
    else if (!this.acts.move(event.key)) return;
    event.preventDefault();
  }

  // ---- painting ------------------------------------------------------------------------------

  #paint() {
    const [context, width, height] = fitCanvas(this.canvas);
    if (!width || this.measured === NOTHING) return;
    this.left = parseFloat(getComputedStyle(this.canvas).getPropertyValue("--gutter"));
    this.room = width - this.left - 12;
    this.track = Math.min(TRACK_HEIGHT, (height - WORDS - RULER) / TRACKS.length);
    this.foot = WORDS + this.track * TRACKS.length;
    this.#paintGrid(context);
    clipped(
      context,
      () => context.rect(this.left, 0, this.room, height),
      () => {
        this.#paintFocus(context);
        for (const span of this.measured.spans) this.#paintSpan(context, span);
        this.#paintWords(context);
      },
    );
  }

  /** @param {CanvasRenderingContext2D} context */
  #paintGrid(context) {
    const { left, room, track, foot } = this;
    TRACKS.forEach((name, i) => {
      rule(context, left, WORDS + i * track, room, 1);
      label(context, name, left - 10, WORDS + (i + 0.5) * track, { align: "end" });
    });
    rule(context, left, foot, room, 1);
    const { from, to } = this.#range;
    const step = round125(((to - from) * 90) / room, 1);
    for (let t = Math.ceil(from / step) * step; t <= to; t += step) {
      const x = this.#x(t);
      rule(context, x, foot, 1, 5, "edge");
      const align = x > left + room - 16 ? "end" : "center";
      label(context, timeOf(t, step), align === "end" ? x + 10 : x, foot + 14, { align });
    }
  }

  /** @param {CanvasRenderingContext2D} context @param {Span} span */
  #paintSpan(context, { track, part, from, to }) {
    const x = this.#x(from);
    const end = this.#x(to);
    if (end < this.left || x > this.left + this.room) return;
    const y = WORDS + TRACKS.indexOf(track) * this.track + 5;
    const gap = end - x > 4 ? 1 : 0;
    const width = Math.max(0.75, end - x - gap);
    const height = this.track - 9;
    if (HATCHED.includes(part)) {
      const path = () => context.rect(x, y, width, height);
      clipped(context, path, () => hatch(context, x, y, width, height));
    } else {
      context.fillStyle = palette[PART_COLOURS[part]];
      context.fillRect(x, y, width, height);
    }
    if (track === "request" && height > 12) this.#name(context, part, x, end, y + height / 2);
  }

  /**
   * Draw the name of a part of the request, if it fits.
   *
   * @param {CanvasRenderingContext2D} context
   * @param {string} part
   * @param {number} x
   * @param {number} end
   * @param {number} y
   */
  #name(context, part, x, end, y) {
    const from = Math.max(x, this.left);
    label(context, "", 0, 0);
    if (end - from < context.measureText(part).width + 12) return;
    const dark = ["prefill", "decode", "first sample"].includes(part);
    label(context, part, from + 6, y + 0.5, { colour: dark ? "ground" : "ink-2", weight: 500 });
  }

  /** @param {CanvasRenderingContext2D} context */
  #paintFocus(context) {
    const step = this.at === null ? null : this.measured.steps[this.at];
    if (!step) return;
    const x = this.#x(step.from);
    context.fillStyle = palette["lamp-wash"];
    context.fillRect(x, WORDS, Math.max(2, this.#x(step.to) - x), this.foot - WORDS);
    rule(context, this.#x(step.at) - 0.5, WORDS - 4, 1.5, this.foot - WORDS + 8, "lamp");
  }

  /** @param {CanvasRenderingContext2D} context */
  #paintWords(context) {
    const { steps } = this.measured;
    let free = -Infinity;
    steps.forEach(({ at, from }, i) => {
      const x = Math.max(this.#x(from), this.left);
      const end = this.#x(at);
      if (end < this.left || x > this.left + this.room || x < free) return;
      if (end - x < MIN_WORD && i !== this.at) return;
      context.font = `400 ${grid.words}px ${SERIF}`;
      context.fillStyle = i === this.at ? palette.lamp : palette["ink-2"];
      context.textBaseline = "middle";
      const text = tokenLabel(this.tokens[i].text, "·");
      const width = context.measureText(text).width;
      context.fillText(text, Math.min(x, this.left + this.room - width), WORDS / 2 - 1);
      free = x + width + 4;
    });
  }
}

/**
 * Format a time on the axis, with as many digits as the ticks need.
 *
 * @param {number} ms
 * @param {number} step
 */
function timeOf(ms, step) {
  if (step >= 100) return `${(ms / 1000).toFixed(step >= 1000 ? 0 : 1)} s`;
  return `${ms.toFixed(step < 1 ? 1 : 0)} ms`;
}
