// The columns of the sampling waterfall as words and numbers, around its picture.

import { el, setText } from "../dom.js";
import { count, percent } from "../format.js";
import { SLIDERS, writeNumber } from "../params.js";
import { DRAW, STAGES } from "./filtersflow.js";

const NAMES = ["raw logits", "penalties", "temperature", "top-k", "top-p", "min-p", "draw"];
/** What people on narrow screens read. */
const SHORT = ["logits", "penal.", "temp.", "top-k", "top-p", "min-p", "draw"];
/** The setting of each column. */
const SETTINGS = [null, "repetition_penalty", "temperature", "top_k", "top_p", "min_p", null];
const ROWS = [
  ["tokens left", "left"],
  ["mass cut, %", "cut, %"],
  ["entropy, bits", "bits"],
  ["share, %", ""],
];

/** A setting as a heading has it: "0.80", "off". */
export function heading(name, value) {
  const slider = SLIDERS.find((one) => one.name === name);
  if (value === slider.off) return name === "temperature" ? "greedy" : "off";
  return writeNumber(value, slider);
}

export class FlowFigures {
  /** Builds heads, `canvas` and rows of numbers in `root`. */
  constructor(root) {
    const box = root.appendChild(el("div", "wf-grid"));
    box.setAttribute("role", "table");
    box.setAttribute("aria-label", "Stages of sampling");
    this.heads = addRow(box, "wf-heads", "columnheader", [""]);
    this.heads.forEach((head, column) => head.append(...headOf(column)));
    box.querySelector(".wf-of").append(el("span", "vh", "Stage"));
    this.canvas = addPicture(box);
    this.rows = ROWS.map((names) => addRow(box, "wf-row", "cell", names));
  }

  /** Write what `FlowPlot` draws; `lit`: id of the token whose shares are told, null: the drawn. */
  draw(now, lit) {
    const { flow } = now;
    this.heads.forEach((head, column) => drawHead(head, column, now));
    const [left, cut, bits, share] = this.rows;
    const band = flow.byId.get(lit ?? now.token.id) ?? flow.byId.get(flow.chosen);
    for (let column = 0; column < DRAW; column += 1) {
      const { n_kept: n, removed, entropy } = flow.stages[column];
      setText(left[column], count(n));
      setText(cut[column], column < 3 ? "" : removed > 0 ? `−${percent(removed)}` : "0");
      setText(bits[column], entropy.toFixed(2));
    }
    setText(left[DRAW], "1");
    share.forEach((cell, column) => setText(cell, shareOf(band, column)));
    const row = share[0].parentNode;
    setText(row.firstChild, band ? now.nameOf(band) : "–");
    row.firstChild.title = "Its share in each column, in per cent";
    row.classList.toggle("picked", band?.id === now.token.id);
  }
}

function addRow(box, className, role, [name, short]) {
  const row = box.appendChild(el("div", className));
  row.setAttribute("role", "row");
  const head = row.appendChild(el("span", "wf-of"));
  head.setAttribute("role", "rowheader");
  head.append(...twice(name, short));
  const cells = NAMES.map(() => row.appendChild(el("span")));
  for (const cell of cells) cell.setAttribute("role", role);
  return cells;
}

/** The picture stands between heads and numbers, in the same columns. */
function addPicture(box) {
  const row = box.appendChild(el("div", "wf-middle"));
  row.setAttribute("role", "row");
  const cell = row.appendChild(el("div", "wf-picture"));
  cell.setAttribute("role", "cell");
  cell.setAttribute("aria-colspan", NAMES.length + 1);
  return cell.appendChild(el("canvas", "wf-flow"));
}

/** A name, and the one that stands in its place where there is less room. */
function twice(name, short) {
  if (!short) return [name];
  return [el("span", "wf-name", name), el("span", "wf-short", short)];
}

const headOf = (column) => [...twice(NAMES[column], SHORT[column]), el("b"), el("s")];

function drawHead(head, column, { used, wanted, flow, real }) {
  const [, , value, before] = head.children;
  const name = SETTINGS[column];
  const settings = real ? wanted : used;
  const changed = !!real && name !== null && used[name] !== wanted[name];
  if (column === DRAW) setText(value, flow.greedy ? "none" : flow.draw.toFixed(3));
  else setText(value, name === null ? "" : heading(name, settings[name]));
  setText(before, changed ? heading(name, used[name]) : "");
  head.classList.toggle("changed", changed);
  head.classList.toggle("off", name !== null && !acts(column, settings, flow));
}

/** Does the column's setting do anything? */
function acts(column, settings, { greedy }) {
  const name = SETTINGS[column];
  const { off } = SLIDERS.find((one) => one.name === name);
  if (name === "temperature") return settings.temperature !== 1;
  if (greedy && column > STAGES.indexOf("temperature")) return false;
  return settings[name] !== off;
}

function shareOf(band, column) {
  if (!band) return "";
  if (band.cut > 0 && column >= band.cut + 2) return column === band.cut + 2 ? "cut" : "";
  return percent(band.sizes[column]);
}
