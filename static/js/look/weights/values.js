// Values of one tensor: description, histogram and largest values.

import { drawPairs, el, fitCanvas, setText } from "../../ui/dom.js";
import { bytes, count, percent } from "../../ui/format.js";
import { palette } from "../../ui/palette.js";
import { label, rule } from "../shared/chart.js";
import { addRow, clearRows, newTable, numeric } from "../shared/table.js";

const FOOT = 18;
const TOP = 24;
const SHOWN_OUTLIERS = 6;
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
/** @param {number | null} value */
const number = (value) => (value === null ? "–" : short.format(value).replace("-", "−"));

/**
 * Return lower edge, upper edge and count of every bin.
 *
 * @param {Pick<Answers.TensorSummary, "counts" | "reach">} summary
 */
export function binsOf({ counts, reach }) {
  const width = (2 * (reach || 1)) / counts.length;
  return counts.map((n, i) => [-(reach || 1) + i * width, -(reach || 1) + (i + 1) * width, n]);
}

export class WeightsValues {
  /** @param {HTMLElement} root */
  constructor(root) {
    this.root = root.appendChild(el("div", "wt-values"));
    this.root.tabIndex = 0;
    this.root.setAttribute("role", "region");
    this.root.setAttribute("aria-label", "Selected tensor");
    this.name = this.root.appendChild(el("h3"));
    this.what = this.root.appendChild(el("p", "wt-what"));
    this.missing = this.root.appendChild(el("p", "wt-hint"));
    this.bars = this.root.appendChild(el("canvas", "wt-bars"));
    this.bars.setAttribute("aria-hidden", "true");
    this.figures = this.root.appendChild(el("dl", "figures wt-figures"));
    /** @type {Answers.TensorSummary | null} */
    this.drawn = null;
    this.largest = newTable("wt-largest", "Largest values, with distance from the mean", ["", ...numeric(["", ""])], "");
    this.root.append(this.largest);
  }

  /**
   * `summary`: null while unknown, or if it cannot be had; `why` says why not, else "".
   *
   * @param {Answers.TensorEntry} tensor
   * @param {Answers.TensorSummary | null} summary
   * @param {string} why
   */
  draw(tensor, summary, why) {
    setText(this.name, tensor.name);
    setText(this.what, describe(tensor));
    setText(this.missing, why);
    this.missing.hidden = !why;
    for (const part of [this.bars, this.figures, this.largest]) part.hidden = !summary;
    if (!summary) return;
    drawBars(this.bars, summary);
    if (summary === this.drawn) return;
    this.drawn = summary;
    this.#figures(summary);
    this.#largest(summary);
  }

  /** @param {Answers.TensorSummary} summary */
  #figures(summary) {
    const { n, n_nan: nan, n_inf: inf, zeros } = summary;
    drawPairs(this.figures, [
      ["mean", number(summary.mean)],
      ["std", number(summary.std)],
      ["min", number(summary.min)],
      ["max", number(summary.max)],
      ["kurtosis", number(summary.kurtosis)],
      ["zeros", zeros === null ? "–" : `${percent(zeros)} %`],
      ["values", count(n)],
      ["not finite", nan + inf ? `${count(nan)} NaN, ${count(inf)} infinite` : "none"],
    ]);
  }

  /** @param {Answers.TensorSummary} summary */
  #largest({ outliers }) {
    clearRows(this.largest);
    for (const { index, value, deviations } of outliers.slice(0, SHOWN_OUTLIERS)) {
      const sigmas = deviations?.toFixed(1).replace("-", "−");
      addRow(this.largest, [`[${index.join(", ")}]`, number(value), deviations === null ? "" : `${sigmas} σ`]);
    }
  }
}

/** @param {Answers.TensorEntry} tensor */
function describe(tensor) {
  const shape = tensor.shape.length ? tensor.shape.join(" × ") : "one number";
  if (tensor.tied_to) return `${shape}. Tied to ${tensor.tied_to}, stored once.`;
  const parts = [`${shape}, saved as ${tensor.dtype} in ${bytes(tensor.n_bytes)}`];
  if (tensor.device_dtype)
    parts.push(`on the device ${tensor.device_dtype}, ${bytes(tensor.device_bytes ?? NaN)}`);
  if (tensor.read_by.length) parts.push(`read by ${tensor.read_by.join(" and ")}`);
  else parts.push("unused by the engine");
  return `${parts.join("; ")}.`;
}

/** @param {HTMLCanvasElement} canvas @param {Answers.TensorSummary} summary */
function drawBars(canvas, { counts, reach, mean, std }) {
  const [context, width, height] = fitCanvas(canvas);
  if (!width) return;
  const foot = height - FOOT;
  const top = Math.log1p(Math.max(1, ...counts));
  const pitch = width / counts.length;
  counts.forEach((n, i) => {
    const tall = n ? Math.max(1.5, (Math.log1p(n) / top) * (foot - TOP)) : 0;
    context.fillStyle = palette.data;
    context.fillRect(i * pitch, foot - tall, Math.max(1, pitch - 1), tall);
  });
  rule(context, 0, foot, width, 1);
  /** @param {number} value */
  const x = (value) => ((value / (reach || 1) + 1) / 2) * width;
  if (mean !== null && std !== null) {
    rule(context, x(mean), TOP - 7, 1, foot - TOP + 7, "ink");
    const wide = Math.min(width, x(mean + std)) - Math.max(0, x(mean - std));
    rule(context, Math.max(0, x(mean - std)), TOP - 7, wide, 1, "ink");
  }
  label(context, "values per bin (log scale), mean ± σ", 0, 6);
  label(context, number(-(reach || 1)), 0, foot + 10);
  label(context, "0", width / 2, foot + 10, { align: "center" });
  label(context, number(reach || 1), width, foot + 10, { align: "end" });
}
