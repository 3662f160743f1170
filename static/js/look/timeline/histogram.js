// Histogram of the intervals between tokens.

import { el, fitCanvas } from "../../ui/dom.js";
import { count, duration } from "../../ui/format.js";
import { palette } from "../../ui/palette.js";
import { label, rule, ticks } from "../shared/chart.js";
import { histogram, quantile } from "./spans.js";

const BINS = 48;
const FOOT = 20;
const TOP = 18;
const RIGHT = 12;

export class Histogram {
  constructor(root) {
    this.canvas = root.appendChild(el("canvas", "tl-bars"));
    this.canvas.setAttribute("aria-hidden", "true");
  }

  /** `sorted` intervals in ms; `focused`: the focused token's, or null. */
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
    const x = (ms) => (ms / bin) * pitch;
    for (const ms of ticks(bin * BINS, width - RIGHT, 80).slice(1))
      label(context, duration(ms), x(ms), foot + 11, { align: "center" });
    const what = `${count(sorted.length)} intervals between tokens`;
    label(context, what, width - RIGHT, TOP / 2, { align: "end" });
    this.#mark(context, "p50", x(quantile(sorted, 0.5)), foot, "end");
    this.#mark(context, "p95", x(quantile(sorted, 0.95)), foot, "start");
  }

  #mark(context, name, x, foot, align) {
    rule(context, x, 2, 1, foot - 2, "ink");
    label(context, name, x + (align === "end" ? -4 : 5), TOP / 2, { align, colour: "ink-2" });
  }
}
