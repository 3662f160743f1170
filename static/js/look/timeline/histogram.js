// Histogram of the intervals between tokens.

import { el, fitCanvas } from "../../ui/dom.js";
import { count, duration } from "../../ui/format.js";
import { palette } from "../../ui/palette.js";
import { label, LabelRow, rule, ticks } from "../shared/chart.js";
import { quantile } from "../shared/quantile.js";
import { histogram } from "./spans.js";

const BINS = 48;
const FOOT = 20;
const TOP = 18;
const RIGHT = 12;

export class Histogram {
  /** @param {HTMLElement} root */
  constructor(root) {
    this.canvas = root.appendChild(el("canvas", "tl-bars"));
    this.canvas.setAttribute("aria-hidden", "true");
  }

  /**
   * `sorted` intervals in ms; `focused`: the focused token's, or null.
   *
   * @param {number[]} sorted
   * @param {number | null} focused
   */
  draw(sorted, focused) {
    const [context, width, height] = fitCanvas(this.canvas);
    if (!width) return;
    const foot = height - FOOT;
    rule(context, 0, foot, width - RIGHT, 1);
    if (sorted.length < 2) {
      label(context, "time between tokens", 0, TOP / 2);
      return;
    }
    const { width: bin, counts } = histogram(sorted, BINS);
    const largest = Math.max(...counts);
    const pitch = (width - RIGHT) / BINS;
    const hot = focused === null ? -1 : Math.min(BINS - 1, Math.floor(focused / bin));
    counts.forEach((n, i) => {
      const tall = n ? Math.max(1.5, (n / largest) * (foot - TOP - 4)) : 0;
      context.fillStyle = i === hot ? palette.lamp : palette.data;
      context.fillRect(i * pitch, foot - tall, pitch - 1, tall);
    });
    /** @param {number} ms */
    const x = (ms) => (ms / bin) * pitch;
    const below = new LabelRow(context, foot + 11, 0, width);
    for (const ms of ticks(bin * BINS, width - RIGHT, 80).slice(1))
      below.add(duration(ms), [[x(ms), "center"]]);
    const above = new LabelRow(context, TOP / 2, 0, width);
    const [p50, p95] = [0.5, 0.95].map((share) => x(quantile(sorted, share)));
    for (const at of [p50, p95]) rule(context, at, 2, 1, foot - 2, "ink");
    /** @param {number} at @returns {LabelPlace[]} */
    const beside = (at) => [[at - 4, "end"], [at + 5, "start"]];
    above.add("p50", beside(p50), { colour: "ink-2" });
    above.add("p95", beside(p95).reverse(), { colour: "ink-2" });
    // The lines are taken too: the number of intervals stands before, between or after them.
    above.taken.push([p50, p50], [p95, p95]);
    /** @type {LabelPlace[]} */
    const gaps = [[width - RIGHT, "end"], [(p50 + p95) / 2, "center"], [0, "start"]];
    above.add(`${count(sorted.length)} intervals`, gaps);
  }
}
