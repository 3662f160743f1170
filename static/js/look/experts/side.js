// Side of the experts instrument: load balance of one layer and of all layers.

import { expertChoice } from "../../turns/expert-use.js";
import { el, fitCanvas, one, setText } from "../../ui/dom.js";
import { count, plural } from "../../ui/format.js";
import { palette } from "../../ui/palette.js";
import { label, rule } from "../shared/chart.js";
import { addRow, newTable } from "../shared/table.js";

const TOP = 18;
/** Bars at least this wide (px) have gaps. */
const ROOMY = 4;

const ROWS = {
  evenness:
    "Entropy of how often each expert was chosen, divided by its maximum. 1: all equally often.",
  unused: "Experts that no token of the run chose.",
  busiest: "Choices of the most chosen expert, relative to the mean of its layer.",
};

export class ExpertSide {
  /** @param {HTMLElement} root */
  constructor(root) {
    const side = root.appendChild(el("div", "column ex-side"));
    this.head = side.appendChild(el("p", "ex-head"));
    this.canvas = side.appendChild(el("canvas", "ex-spread"));
    this.canvas.setAttribute("aria-hidden", "true");
    const table = newTable("ex-figures", "How evenly experts were used", ["", "layer", "all layers"]);
    side.append(table);
    this.name = one(table, "thead th");
    this.rows = Object.entries(ROWS).map(([name, what]) => {
      const [head, ...cells] = addRow(table, [name, "", ""]).cells;
      head.title = what;
      return cells.map((cell) => {
        const [figure, words] = [el("b"), el("small")];
        cell.append(figure, " ", words);
        return [figure, words];
      });
    });
  }

  /**
   * `layer`: one of `layersOf` (look/experts/figures.js); `total`: `totalOf` them; `stats`: those
   * of the focused token.
   *
   * @param {ExpertLayer} layer
   * @param {ExpertTotal} total
   * @param {Stats | null} stats
   */
  draw(layer, total, stats) {
    setText(this.head, headOf(layer));
    drawSpread(this.canvas, layer, new Set(expertChoice(stats, layer.layer)?.experts));
    setText(this.name, `layer ${layer.layer}`);
    figuresOf(layer, total).forEach((pair, i) =>
      pair.forEach((texts, j) => texts.forEach((text, k) => setText(this.rows[i][j][k], text))),
    );
  }
}

/** @param {ExpertLayer} layer */
function headOf({ layer, choices, tokens, given }) {
  const some = `${count(Math.round(choices / tokens))} of ${plural(given.length, "expert")}`;
  return `Layer ${layer}: ${some} per token, over ${plural(tokens, "token")}.`;
}

/**
 * Cells of ROWS: [[layer, all layers], …], each [figure, text].
 *
 * @param {ExpertLayer} layer
 * @param {ExpertTotal} total
 */
function figuresOf({ evenness, never, given, busiest, load }, total) {
  const even = (/** @type {number | null} */ value) => value?.toFixed(2) ?? "–";
  /** @param {number} value */
  const times = (value) => `${value.toFixed(1)} ×`;
  const { least, busiest: most } = total;
  return [
    [
      [even(evenness), ""],
      [even(total.evenness), `${even(least.evenness)} in layer ${least.layer}`],
    ],
    [
      [count(never.length), `of ${count(given.length)}`],
      [count(total.never), `of ${count(total.n)}`],
    ],
    [
      [times(load), `expert ${busiest}`],
      [times(most.load), `in layer ${most.layer}`],
    ],
  ];
}

/**
 * Draw a bar per expert, the busiest first, with a line at the mean.
 *
 * @param {HTMLCanvasElement} canvas
 * @param {ExpertLayer} layer
 * @param {Set<number>} chosen
 */
function drawSpread(canvas, { given, choices, load }, chosen) {
  const [context, width, height] = fitCanvas(canvas);
  if (!width) return;
  const order = given.map((times, expert) => ({ times, expert })).sort((a, b) => b.times - a.times);
  const n = given.length;
  const most = Math.max(load, 1.25);
  const foot = height - 1;
  /** @param {number} times */
  const high = (times) => ((times * n) / choices / most) * (foot - TOP);
  const room = width / n;
  order.forEach(({ times, expert }, i) => {
    const [x, end] = [Math.round(i * room), Math.round((i + 1) * room)];
    context.fillStyle = chosen.has(expert) ? palette.lamp : palette.data;
    const tall = times ? Math.max(1, high(times)) : 0;
    context.fillRect(x, foot - tall, Math.max(1, end - x - (room < ROOMY ? 0 : 1)), tall);
  });
  rule(context, 0, foot, width, 1, "edge");
  const mean = foot - (foot - TOP) / most;
  rule(context, 0, mean, width, 1, "ink");
  label(context, "mean", width, mean - 8, { align: "end", colour: "ink-2" });
  label(context, `${load.toFixed(1)} ×`, 0, TOP / 2 - 1, { colour: "ink-2" });
}
