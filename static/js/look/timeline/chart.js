// @ts-nocheck
// Chart of the timeline: tracks of spans on a time axis that can be zoomed and panned.

import { clamp, el, fitCanvas } from "../../ui/dom.js";
import { tokenLabel } from "../../ui/format.js";
import { grid } from "../../core-sample/grid.js";
import { round125 } from "../../turns/metrics.js";
import { palette } from "../../ui/palette.js";
import { clipped, hatch, label, rule, SERIF } from "../shared/chart.js";
import { TRACKS } from "./spans.js";

/** Colours of parts, as names in tokens.css. */
export const COLOURS = {
  gpu: "data",
  encode: "ink-2",
  wait: "edge",
  read: "data-2",
  pipe: "edge",
  socket: "data-2",
  page: "ink-3",
};
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
/** Minimum width of a step (px) with its token written above. */
const MIN_WORD = 26;
/** Ends of the axis during a run: few, so that it seldom changes. */
const ENDS = [1, 1.5, 2, 3, 4, 5, 6, 8, 10];

export class StepChart {
  /** `acts`: look(step), choose(step), move(key); step is a number or null. */
  constructor(root, acts) {
    this.acts = acts;
    this.plot = root.appendChild(el("div", "tl-plot"));
    this.plot.tabIndex = 0;
    this.plot.setAttribute("role", "slider");
    this.plot.setAttribute("aria-label", "Token on the timeline");
    this.plot.title = "Wheel or + and − to zoom, drag to pan, 0 to show all";
    this.canvas = this.plot.appendChild(el("canvas"));
    this.canvas.setAttribute("aria-hidden", "true");
    /** {from, to} in ms, or null for everything. */
    this.window = null;
    this.drag = null;
    this.measured = null;
    this.#listen();
  }

  describe(text, at, most) {
    const say = (name, value) => this.plot.setAttribute(`aria-${name}`, value);
    say("valuemin", 0);
    say("valuemax", most);
    say("valuenow", at);
    say("valuetext", text);
  }

  /** `at`: number of the focused step, or null. `running`: is the run active? */
  draw(measured, tokens, at, running) {
    if (this.answer !== tokens[0]) this.window = null;
    this.answer = tokens[0];
    Object.assign(this, { measured, tokens, at, running });
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
    return { from: 0, to: power * ENDS.find((step) => step * power >= end * 0.999) };
  }

  #x(time) {
    const { from, to } = this.#range;
    return this.left + ((time - from) / (to - from)) * this.room;
  }

  #time(x) {
    const { from, to } = this.#range;
    return from + ((x - this.left) / this.room) * (to - from);
  }

  /** Number of the step at x; null before the first token. */
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

  /** Zoom by `factor` around `time`. */
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

  #bounded(from, size) {
    const start = clamp(from, -0.02 * size, Math.max(0, this.measured.end - 0.8 * size));
    return { from: start, to: start + size };
  }

  // ---- pointer and keys ----------------------------------------------------------------------

  #onWheel(event) {
    if (!this.measured || event.ctrlKey) return;
    event.preventDefault();
    const { from, to } = this.#range;
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      if (!this.window) return;
      this.window = this.#bounded(from + (event.deltaX / this.room) * (to - from), to - from);
      this.#paint();
    } else this.#zoom(ZOOM ** (event.deltaY / 100), this.#time(event.offsetX));
  }

  #onDown({ offsetX, pointerId, button }) {
    if (button) return;
    this.drag = { x: offsetX, range: this.#range, moved: false };
    this.plot.setPointerCapture(pointerId);
  }

  #onMove({ offsetX, pointerType }) {
    if (!this.measured) return;
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

  #onUp({ offsetX }) {
    if (this.drag && !this.drag.moved) this.acts.choose(this.#stepAt(offsetX));
    this.drag = null;
  }

  #onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.measured) return;
    const { from, to } = this.#range;
    const time = this.at === null ? (from + to) / 2 : this.measured.steps[this.at].at;
    const zoom = { "+": 1 / ZOOM, "=": 1 / ZOOM, "-": ZOOM }[event.key];
    if (zoom) this.#zoom(zoom, clamp(time, from, to));
    else if (event.key === "0") this.#zoom(Infinity, time);
    else if (!this.acts.move(event.key)) return;
    event.preventDefault();
  }

  // ---- painting ------------------------------------------------------------------------------

  #paint() {
    const [context, width, height] = fitCanvas(this.canvas);
    if (!width || !this.measured) return;
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

  /** Draw the name of a part of the request, if it fits. */
  #name(context, part, x, end, y) {
    const from = Math.max(x, this.left);
    label(context, "", 0, 0);
    if (end - from < context.measureText(part).width + 12) return;
    const dark = ["prefill", "decode", "first sample"].includes(part);
    label(context, part, from + 6, y + 0.5, { colour: dark ? "ground" : "ink-2", weight: 500 });
  }

  #paintFocus(context) {
    const step = this.at === null ? null : this.measured.steps[this.at];
    if (!step) return;
    const x = this.#x(step.from);
    context.fillStyle = palette["lamp-wash"];
    context.fillRect(x, WORDS, Math.max(2, this.#x(step.to) - x), this.foot - WORDS);
    rule(context, this.#x(step.at) - 0.5, WORDS - 4, 1.5, this.foot - WORDS + 8, "lamp");
  }

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

/** Format a time on the axis, with as many digits as the ticks need. */
function timeOf(ms, step) {
  if (step >= 100) return `${(ms / 1000).toFixed(step >= 1000 ? 0 : 1)} s`;
  return `${ms.toFixed(step < 1 ? 1 : 0)} ms`;
}
