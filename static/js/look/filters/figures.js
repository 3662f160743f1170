// Headings and numbers of the sampling waterfall, above and below its picture.

import { all, el, one, setText } from "../../ui/dom.js";
import { count, percent } from "../../ui/format.js";
import {
  FILTERS,
  PENALTIES,
  SETTING_BY_NAME,
  WATERMARK,
  writeNumber,
} from "../../settings/sampling-settings.js";
import { BEFORE_FILTERS, DRAW, MARKED, STAGES } from "./flow.js";

const FILTER_LABELS = FILTERS.map(({ label }) => label);
const NAMES = ["raw logits", "penalties", "temperature", ...FILTER_LABELS, "watermark", "draw"];
/** Names for narrow screens. */
const SHORT = ["logits", "pen.", "temp", ...FILTER_LABELS, "mark", "draw"];
/** The settings of each column. @type {SamplingSetting[][]} */
const SETTINGS = [
  [],
  PENALTIES,
  [SETTING_BY_NAME.temperature],
  ...FILTERS.map((filter) => [filter]),
  WATERMARK.slice(0, 1),
  [],
];
const ROWS = [
  ["tokens left", "left"],
  ["mass cut, %", "cut, %"],
  ["entropy, bits", "bits"],
  ["share, %", ""],
];

const SHARE = 3;

/** Write a value as a heading: "0.80", "off". @param {string} name @param {number} value */
export function heading(name, value) {
  const setting = SETTING_BY_NAME[name];
  if (value === setting.off?.value) return name === "temperature" ? setting.off.words : "off";
  return writeNumber(value, setting);
}

/**
 * Write the values of a column's settings: those that change something, else the first.
 *
 * @param {SamplingSetting[]} settings
 * @param {StageSettings} values
 */
function columnHeading(settings, values) {
  const acting = settings.filter(({ name, neutral }) => values[name] !== neutral);
  const shown = acting.length ? acting : settings.slice(0, 1);
  return shown.map(({ name }) => heading(name, values[name])).join(", ");
}

export class FlowFigures {
  /** Builds heads, `canvas` and rows of numbers in `root`. @param {HTMLElement} root */
  constructor(root) {
    const box = root.appendChild(el("div", "wf-grid"));
    box.setAttribute("role", "table");
    box.setAttribute("aria-label", "Stages of sampling");
    this.heads = addRow(box, "wf-heads", "columnheader", [""]);
    this.heads.forEach((head, column) => head.append(...headOf(column)));
    one(box, ".wf-of").append(el("span", "vh", "Stage"));
    this.canvas = addPicture(box);
    this.rows = ROWS.map((names) => addRow(box, "wf-row", "cell", names));
    this.shareOf = all(box, ".wf-row .wf-of")[SHARE];
  }

  /**
   * Write the numbers of what `FlowPlot` draws; `lit`: id of the token whose shares are shown,
   * null: the drawn one.
   *
   * @param {FlowNow} now
   * @param {number | null} lit
   */
  draw(now, lit) {
    const { flow } = now;
    this.heads.forEach((head, column) => drawHead(head, column, now));
    const [left, cut, bits, share] = this.rows;
    const band = flow.byId.get(lit ?? now.token.id) ?? flow.byId.get(flow.chosen);
    for (let column = 0; column < DRAW; column += 1) {
      const { n_kept: n, removed, entropy } = flow.stages[column];
      const short = n >= 10_000 ? `${count(Math.round(n / 1000))}k` : "";
      left[column].replaceChildren(...twice(count(n), short));
      const lost = percent(Math.max(0, removed));
      const loss = /^[1-9]|^0\../.test(lost) ? `−${lost}` : lost; // not of "0" and "<0.1"
      setText(cut[column], column > BEFORE_FILTERS && column < MARKED ? loss : "");
      setText(bits[column], entropy.toFixed(2));
    }
    setText(left[DRAW], "1");
    share.forEach((cell, column) => setText(cell, shareOf(band, column)));
    setText(this.shareOf, band ? now.nameOf(band) : "–");
    this.shareOf.title = "Its share in each column, in per cent";
    this.shareOf.parentElement?.classList.toggle("picked", band?.id === now.token.id);
  }
}

/** @param {HTMLElement} box @param {string} className @param {string} role @param {string[]} names */
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

/** Add the canvas between heads and numbers, in the same columns. @param {HTMLElement} box */
function addPicture(box) {
  const row = box.appendChild(el("div", "wf-middle"));
  row.setAttribute("role", "row");
  const cell = row.appendChild(el("div", "wf-picture"));
  cell.setAttribute("role", "cell");
  cell.setAttribute("aria-colspan", String(NAMES.length + 1));
  return cell.appendChild(el("canvas", "wf-flow"));
}

/**
 * A name or number, and a short one for narrow screens.
 *
 * @param {string} name
 * @param {string | undefined} short
 * @returns {(string | HTMLElement)[]}
 */
function twice(name, short) {
  if (!short) return [name];
  return [el("span", "wf-name", name), el("span", "wf-short", short)];
}

/** @param {number} column */
const headOf = (column) => [...twice(NAMES[column], SHORT[column]), el("b"), el("s")];

/** @param {HTMLElement} head @param {number} column @param {FlowNow} now */
function drawHead(head, column, { used, wanted, flow, real }) {
  const [, , value, before] = head.children;
  const settings = SETTINGS[column];
  const values = real ? wanted : used;
  const changed = !!real && settings.some(({ name }) => used[name] !== wanted[name]);
  if (column === DRAW) setText(value, flow.greedy ? "none" : flow.draw.toFixed(3));
  else setText(value, columnHeading(settings, values));
  setText(before, changed ? columnHeading(settings, used) : "");
  head.classList.toggle("changed", changed);
  head.classList.toggle("off", settings.length > 0 && !columnActs(column, values, flow));
}

/**
 * Do the column's settings change anything?
 *
 * @param {number} column
 * @param {StageSettings} values
 * @param {Flow} flow
 */
function columnActs(column, values, { greedy }) {
  if (greedy && column > STAGES.indexOf("temperature") && column < MARKED) return false;
  return SETTINGS[column].some(({ name, neutral }) => values[name] !== neutral);
}

/** @param {Band | undefined} band @param {number} column */
function shareOf(band, column) {
  if (!band) return "";
  const end = band.cut > 0 ? band.cut + BEFORE_FILTERS : DRAW + 1;
  if (column >= end) return column === end ? "cut" : "";
  return percent(band.sizes[column]);
}
