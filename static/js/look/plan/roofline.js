// Roofline: operations per second over operations per byte, below the device's peak rates
// (Williams, Waterman and Patterson 2009).

import { el, fitCanvas, setText } from "../../ui/dom.js";
import { bytes, count, percent, whyNoTimes } from "../../ui/format.js";
import { palette } from "../../ui/palette.js";
import { ready, state } from "../../state.js";
import { label, LabelRow, rule } from "../shared/chart.js";
import { whyOtherModel } from "../shared/context.js";
import {
  costsOf,
  costsError,
  isFault,
  isMeasuring,
  measurePeaks,
  knownPeaks,
  PEAK_FAULT,
} from "./roofline-costs.js";
import { quantile } from "../shared/quantile.js";

/** @typedef {{rows: number, context: number, ms: number, token: number | null}} TimedStep */
/** @typedef {TimedStep & {flops: number, bytes: number}} CostedStep */
/** @typedef {CostedStep & {x: number, y: number}} Point */
/** @typedef {ReturnType<typeof scaleOf>} Scale */

const FOOT = 20;
const TOP = 18;
/** Room for the rates at the left, and the least distances of two numbers on the axes, in px. */
const LEFT = 44;
const APART = { x: 30, y: 16 };
/** Margin left and right of the steps and the ridge, as a factor. */
const AROUND = 3;

/**
 * Return the GPU-timed steps of a run: {rows, context, ms, token}; `token` null: prefill.
 *
 * @param {Pick<Segment, "prompt" | "chunks"> & {nGiven?: number}} segment
 * @param {Token[]} tokens
 */
export function timedSteps({ prompt, nGiven = 0, chunks }, tokens) {
  let before = chunks[0]?.reused ?? 0;
  const steps = [];
  for (const { done, gpuMs } of chunks) {
    if (gpuMs !== null && done > before)
      steps.push({ rows: done - before, context: before, ms: gpuMs, token: null });
    before = done;
  }
  tokens.forEach(({ times }, i) => {
    if (i && times.gpu !== null)
      steps.push({ rows: 1, context: prompt.length + nGiven + i - 1, ms: times.gpu, token: i });
  });
  return steps;
}

export class Roofline {
  /** @param {HTMLElement} root */
  constructor(root) {
    this.box = root.appendChild(el("div", "tl-roof"));
    this.canvas = this.box.appendChild(el("canvas"));
    this.canvas.setAttribute("aria-hidden", "true");
    this.ask = this.box.appendChild(el("p", "sub"));
    this.button = el("button", "text", "Measure peak rates");
    this.button.type = "button";
    this.button.addEventListener("click", measurePeaks);
    this.text = el("span");
    this.ask.append(this.button, this.text);
    /** Timed steps with their costs once known. @type {CostedStep[]} */
    this.steps = [];
  }

  /**
   * `at`: number of the focused token in the run, or null.
   *
   * @param {Segment} segment
   * @param {Token[]} tokens
   * @param {number | null} at
   */
  draw(segment, tokens, at) {
    const peaks = knownPeaks();
    const timed = timedSteps(segment, tokens);
    const isOther = !!whyOtherModel(segment); // the plan is that of the loaded model
    const wanted = peaks?.flops_per_s && !segment.running && timed.length && !isOther;
    const costs = wanted ? costsOf(timed) : null;
    this.steps = costs ? timed.map((step, i) => ({ ...step, ...costs[i] })) : [];
    this.ask.hidden = !!costs;
    if (!costs) this.#say(peaks, segment, timed);
    if (peaks?.flops_per_s) this.#paint(peaks, at);
  }

  /** @param {KnownPeaks | null} peaks @param {Segment} segment @param {TimedStep[]} timed */
  #say(peaks, segment, timed) {
    const { hello } = state;
    const { running } = segment;
    const other = whyOtherModel(segment);
    this.button.hidden = peaks !== null || isMeasuring() || !!other;
    this.button.disabled = running || !ready();
    const why = other
      ? `No roofline: ${other}`
      : costsError
        ? `The roofline is missing: ${costsError}`
        : isMeasuring()
          ? "Measuring, about a second …"
          : peaks === null
            ? "to draw the roofline. Takes about a second."
            : !peaks.flops_per_s
              ? "No roofline: the engine does not run on a GPU."
              : running
                ? "The roofline is drawn after the run."
                : timed.length
                  ? "Computing the cost of each step …"
                  : `No roofline: ${hello ? whyNoTimes(hello.device, false) : ""}.`;
    setText(this.text, why);
  }

  /** @param {Peaks} peaks @param {number | null} at */
  #paint(peaks, at) {
    const [context, width, height] = fitCanvas(this.canvas);
    if (!width || !this.steps.length) return;
    const { flops_per_s: most, bytes_per_s: fast, read_bytes: read } = peaks;
    const points = this.steps.map((step) => ({
      ...step,
      x: step.flops / step.bytes,
      y: (1000 * step.flops) / step.ms,
    }));
    const scale = scaleOf(points, most, most / fast, width, height);
    paintAxes(context, scale, most, width);
    paintRoof(context, scale, most, fast, read, width);
    for (const point of points)
      paintPoint(context, scale, point, point.token === at && at !== null);
    /** @param {Point} point */
    const share = ({ x, y }) => y / Math.min(most, x * fast);
    /** @param {Point[]} some */
    const median = (some) => quantile(some.map(share).sort((a, b) => a - b), 0.5);
    /** @type {[name: string, share: number][]} */
    const parts = [];
    const steps = points.filter(({ token }) => token !== null);
    const chunks = points.filter(({ token }) => token === null);
    if (chunks.length) parts.push(["prompt", median(chunks)]);
    if (steps.length) parts.push(["steps", median(steps)]);
    label(context, ofTheRoof(parts), width, scale.foot - 9, { colour: "ink-2", align: "end" });
  }
}

/**
 * Return what the parts of a run, [name, share], reach: "prompt 12 %, steps 40 % of the roof".
 *
 * @param {[name: string, share: number][]} parts
 */
export function ofTheRoof(parts) {
  const above = parts.filter(([, share]) => isFault(share)).map(([name]) => name);
  if (above.length) return `${above.join(" and ")} above the roof: ${PEAK_FAULT}`;
  return `${parts.map(([name, share]) => `${name} ${percent(share)} %`).join(", ")} of the roof`;
}

/**
 * @param {Point[]} points
 * @param {number} most
 * @param {number} ridge
 * @param {number} width
 * @param {number} height
 */
function scaleOf(points, most, ridge, width, height) {
  const xs = [...points.map(({ x }) => x), ridge];
  const low = Math.min(...xs) / AROUND;
  const far = Math.max(...xs) * AROUND;
  const bottom = Math.min(...points.map(({ y }) => y), (most * low) / ridge) / 1.5;
  const foot = height - FOOT;
  return {
    low,
    far,
    foot,
    bottom,
    /** @param {number} value */
    x: (value) => LEFT + (Math.log(value / low) / Math.log(far / low)) * (width - LEFT),
    /** @param {number} value */
    y: (value) => foot - (Math.log(value / bottom) / Math.log(most / bottom)) * (foot - TOP),
  };
}

/**
 * Return 1, 2 and 5 times the powers of ten, or those alone, from `low` to `high`, which are
 * `room` px apart on a logarithmic axis: as many as stand `apart` px from each other.
 *
 * @param {number} low
 * @param {number} high
 * @param {number} room
 * @param {number} apart
 */
function logTicks(low, high, room, apart) {
  const decade = room / Math.log10(high / low);
  const steps = decade * Math.log10(2) >= apart ? [1, 2, 5] : [1];
  const every = Math.max(1, Math.ceil(apart / decade));
  const found = [];
  for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power += 1)
    if (power % every === 0)
      found.push(...steps.map((step) => step * 10 ** power).filter((n) => n >= low && n <= high));
  return found;
}

/** @param {number} flops */
const rate = (flops) => `${bytes(flops).replace(/B$/, "FLOP")}/s`;
/** A number of a logarithmic axis: "0.02", "500". @param {number} value */
const tick = (value) => (value < 1 ? String(Number(value.toPrecision(1))) : count(value));

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Scale} scale
 * @param {number} most
 * @param {number} width
 */
function paintAxes(context, { low, far, bottom, foot, x, y }, most, width) {
  rule(context, LEFT, foot, width - LEFT, 1);
  const below = new LabelRow(context, foot + 12, 0, width);
  below.add("operations per byte", [[width, "end"]]);
  for (const value of logTicks(low, far, width - LEFT, APART.x)) {
    rule(context, x(value), foot, 1, 4, "edge");
    below.add(tick(value), [[x(value), "center"]]);
  }
  for (const value of logTicks(bottom, most, foot - TOP, APART.y)) {
    if (foot - y(value) < APART.y / 2) continue;
    rule(context, LEFT, y(value), width - LEFT, 1);
    label(context, rate(value).replace(/\.0 |FLOP\/s| /g, ""), LEFT - 6, y(value), { align: "end" });
  }
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Scale} scale
 * @param {number} most
 * @param {number} fast
 * @param {number | undefined} read
 * @param {number} width
 */
function paintRoof(context, { low, far, x, y }, most, fast, read, width) {
  context.strokeStyle = palette["ink-2"];
  context.lineWidth = 1.25;
  context.beginPath();
  context.moveTo(x(low), y(low * fast));
  context.lineTo(x(most / fast), y(most));
  context.lineTo(x(far), y(most));
  context.stroke();
  const above = new LabelRow(context, TOP / 2 - 1, 0, width);
  above.add(`${rate(most)} multiply-adds`, [[width, "end"]]);
  above.add(`${bytes(fast)}/s ${read ? `reading ${bytes(read)}` : "copies"}`, [[0, "start"]]);
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Scale} scale
 * @param {Point} point
 * @param {boolean} focused
 */
function paintPoint(context, { x, y }, point, focused) {
  context.globalAlpha = focused || point.token === null ? 1 : 0.35;
  context.fillStyle = palette[focused ? "lamp" : point.token === null ? "ink-2" : "data"];
  context.beginPath();
  context.arc(x(point.x), y(point.y), focused ? 4 : 2.5, 0, 2 * Math.PI);
  context.fill();
  context.globalAlpha = 1;
}
