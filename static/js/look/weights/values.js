// The numbers of one tensor: what it is, how they are spread, and the largest of them.

import { el, fitCanvas, setText } from "../dom.js";
import { bytes, count, percent } from "../format.js";
import { palette } from "../palette.js";
import { label, rule } from "./chart.js";

const FOOT = 18;
const TOP = 24;
const SHOWN_OUTLIERS = 6;
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
const number = (value) => (value === null ? "–" : short.format(value).replace("-", "−"));

/** Lower edge, upper edge and count of every bin. */
export function binsOf({ counts, reach }) {
  const width = (2 * (reach || 1)) / counts.length;
  return counts.map((n, i) => [-(reach || 1) + i * width, -(reach || 1) + (i + 1) * width, n]);
}

export class WeightsValues {
  constructor(root) {
    this.root = root.appendChild(el("div", "wt-values"));
    this.root.tabIndex = 0;
    this.root.setAttribute("role", "region");
    this.root.setAttribute("aria-label", "The chosen tensor");
    this.name = this.root.appendChild(el("h3"));
    this.what = this.root.appendChild(el("p", "wt-what"));
    this.bars = this.root.appendChild(el("canvas", "wt-bars"));
    this.bars.setAttribute("aria-hidden", "true");
    this.figures = this.root.appendChild(el("dl", "wt-figures"));
    this.drawn = null;
    this.largest = this.root.appendChild(el("table", "wt-largest"));
  }

  /** `summary`: null while it is not known. */
  draw(tensor, summary) {
    setText(this.name, tensor.name);
    setText(this.what, describe(tensor));
    for (const part of [this.bars, this.figures, this.largest]) part.hidden = !summary;
    if (!summary) return;
    drawBars(this.bars, summary);
    if (summary === this.drawn) return;
    this.drawn = summary;
    this.#figures(summary);
    this.#largest(summary);
  }

  #figures(summary) {
    const { n, n_nan: nan, n_inf: inf, zeros } = summary;
    const rows = [
      ["mean", number(summary.mean)],
      ["std", number(summary.std)],
      ["least", number(summary.min)],
      ["most", number(summary.max)],
      ["kurtosis", number(summary.kurtosis)],
      ["zeros", zeros === null ? "–" : `${percent(zeros)} %`],
      ["values", count(n)],
      ["not finite", nan + inf ? `${count(nan)} NaN, ${count(inf)} infinite` : "none"],
    ];
    this.figures.replaceChildren(
      ...rows.map(([name, value]) => {
        const row = el("div");
        row.append(el("dt", "", name), el("dd", "", value));
        return row;
      }),
    );
  }

  #largest({ outliers }) {
    this.largest.replaceChildren(el("caption", "", "Largest values, and how far they are from the mean"));
    for (const { index, value, deviations } of outliers.slice(0, SHOWN_OUTLIERS)) {
      const row = this.largest.insertRow();
      row.insertCell().textContent = `[${index.join(", ")}]`;
      row.insertCell().textContent = number(value);
      row.insertCell().textContent = deviations === null ? "" : `${deviations.toFixed(1).replace("-", "−")} σ`;
    }
  }
}

function describe(tensor) {
  const shape = tensor.shape.length ? tensor.shape.join(" × ") : "one number";
  if (tensor.tied_to) return `${shape}. The same numbers as ${tensor.tied_to}, kept once.`;
  const parts = [`${shape}, saved as ${tensor.dtype} in ${bytes(tensor.n_bytes)}`];
  if (tensor.device_dtype) parts.push(`on the device ${tensor.device_dtype}, ${bytes(tensor.device_bytes)}`);
  if (tensor.read_by.length) parts.push(`read by ${tensor.read_by.join(" and ")}`);
  else parts.push("not read by the engine");
  return `${parts.join("; ")}.`;
}

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
  const x = (value) => ((value / (reach || 1) + 1) / 2) * width;
  if (mean !== null) {
    rule(context, x(mean), TOP - 7, 1, foot - TOP + 7, "ink");
    const wide = Math.min(width, x(mean + std)) - Math.max(0, x(mean - std));
    rule(context, Math.max(0, x(mean - std)), TOP - 7, wide, 1, "ink");
  }
  label(context, "values in a bin, log scale; mean ± σ", 0, 6);
  label(context, number(-(reach || 1)), 0, foot + 10);
  label(context, "0", width / 2, foot + 10, { align: "center" });
  label(context, number(reach || 1), width, foot + 10, { align: "end" });
}
