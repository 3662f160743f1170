// Strip over the columns of a comparison: a row per column, a bar per token as high as its
// probability, pale where it is the first column's token.

import { clamp, el, fitCanvas, setVars } from "../../ui/dom.js";
import { probability } from "../../ui/format.js";
import { palette } from "../../ui/palette.js";
import { label, rule } from "../shared/chart.js";
import { groupsAt, longestOf } from "./alignment.js";
import { quoted } from "./words.js";

/**
 * @typedef {{answers: (Answer | null)[], partings: (Parting | null)[], focus: number | null,
 *   selected: number}} Comparison
 */

const ROW = 14;
const GAP = 3;
const LEFT = 40;
const RIGHT = 24;
const MIN_BAR = 3;
const MAX_PITCH = 12;
const MIN_PITCH = 3;
/** Tokens that fit at least. */
const MIN_TOKENS = 48;
/**
 * Colours of the tokens of the first column, and of those that other columns had first.
 *
 * @type {PaletteName[]}
 */
const COLOURS = ["edge", "data", "ink-2", "data-2"];

export class AlignmentStrip {
  /**
   * `on`: {point(column, index | null), choose(column, index)}.
   *
   * @param {HTMLElement} root
   * @param {{point: (column: number, index: number | null) => void, choose: (column: number, index: number | null) => void}} on
   */
  constructor(root, on) {
    this.on = on;
    this.node = root.appendChild(el("div", "cmp-strip"));
    Object.assign(this.node, { tabIndex: 0, role: "slider" });
    this.node.setAttribute("aria-label", "Token in the comparison");
    this.node.setAttribute("aria-valuemin", "1");
    this.canvas = this.node.appendChild(el("canvas"));
    this.canvas.setAttribute("aria-hidden", "true");
    /** @type {Comparison | null} */
    this.now = null;
    /** Tokens that are shown, from `first` to before `end`, each `pitch` px wide. */
    this.first = 0;
    this.end = 0;
    this.pitch = MIN_PITCH;
    const { node } = this;
    node.addEventListener("pointermove", (event) => {
      if (event.pointerType !== "touch") on.point(...this.#at(event));
    });
    node.addEventListener("pointerleave", () => on.point(0, null));
    node.addEventListener("click", (event) => on.choose(...this.#at(event)));
    node.addEventListener("keydown", (event) => this.#onKey(event));
  }

  /**
   * `answers` of the columns; `partings`: first difference of each from the first, or null;
   * `focus`: number of the focused token; `selected`: that of the column.
   *
   * @param {Comparison} now
   */
  draw(now) {
    this.now = now;
    const n = now.answers.length;
    setVars(this.node, { "--strip": `${n * (ROW + GAP)}px` });
    const [context, width] = fitCanvas(this.canvas);
    if (!width) return;
    this.#fit(now, width - LEFT - RIGHT);
    for (let row = 0; row < n; row += 1) this.#drawName(context, row, row === now.selected);
    for (let index = this.first; index < this.end; index += 1)
      this.#drawTokens(context, now.answers, index);
    now.partings.forEach((parting, row) => this.#drawParting(context, parting, row));
    this.#drawFocus(context, now.focus, n);
    this.#tell(now);
  }

  /**
   * Choose which tokens are shown, and how wide: the newest, if not all fit.
   *
   * @param {Comparison} now
   * @param {number} room
   */
  #fit({ answers, focus }, room) {
    const longest = longestOf(answers);
    this.pitch = clamp(Math.floor(room / Math.max(longest, MIN_TOKENS)), MIN_PITCH, MAX_PITCH);
    const fit = Math.floor(room / this.pitch);
    this.end = longest;
    const follows = focus === null || focus >= longest - fit;
    this.first = Math.max(0, follows ? longest - fit : Math.min(focus, longest - fit));
    this.end = Math.min(longest, this.first + fit);
  }

  /** @param {number} index */
  #x = (index) => LEFT + (index - this.first) * this.pitch;

  /** @param {CanvasRenderingContext2D} context @param {number} row @param {boolean} on */
  #drawName(context, row, on) {
    const y = row * (ROW + GAP) + ROW;
    /** @type {LabelStyle} */
    const style = { align: "end", colour: on ? "ink" : "ink-3", weight: on ? 600 : 400 };
    label(context, "ABCD"[row], LEFT - 10, y - ROW / 2 + 1, style);
    rule(context, LEFT, y, context.canvas.clientWidth - LEFT - RIGHT, 1);
  }

  /** @param {CanvasRenderingContext2D} context @param {(Answer | null)[]} answers @param {number} index */
  #drawTokens(context, answers, index) {
    groupsAt(answers, index).forEach((group, row) => {
      if (group === null) return;
      const p = Math.exp(answers[row]?.tokens[index].logprob ?? NaN);
      const high = MIN_BAR + (Number.isFinite(p) ? p : 0) * (ROW - MIN_BAR);
      context.fillStyle = palette[COLOURS[group]];
      context.globalAlpha = group ? 1 : 0.45;
      const y = row * (ROW + GAP) + ROW;
      context.fillRect(this.#x(index), y - high, this.pitch - 1, high);
    });
    context.globalAlpha = 1;
  }

  /** @param {CanvasRenderingContext2D} context @param {Parting | null} parting @param {number} row */
  #drawParting(context, parting, row) {
    if (!parting || parting.index < this.first || parting.index > this.end) return;
    rule(context, this.#x(parting.index) - 1, row * (ROW + GAP), 2, ROW + 1, "ink");
  }

  /** @param {CanvasRenderingContext2D} context @param {number | null} focus @param {number} n */
  #drawFocus(context, focus, n) {
    if (focus === null || focus < this.first || focus >= this.end) return;
    const high = n * (ROW + GAP) - GAP + 1;
    rule(context, this.#x(focus) - 1.5, 0, 1.5, high, "lamp");
    rule(context, this.#x(focus) + this.pitch - 1, 0, 1.5, high, "lamp");
  }

  /** @param {Comparison} now */
  #tell({ answers, focus, selected }) {
    this.node.setAttribute("aria-valuemax", String(Math.max(1, longestOf(answers))));
    this.node.setAttribute("aria-valuenow", String((focus ?? 0) + 1));
    this.node.setAttribute("aria-valuetext", this.#describe(answers, focus, selected));
  }

  /** @param {(Answer | null)[]} answers @param {number | null} focus @param {number} selected */
  #describe(answers, focus, selected) {
    if (focus === null) return "no token yet";
    const groups = groupsAt(answers, focus);
    const words = answers.map((answer, i) => {
      const token = answer?.tokens[focus];
      if (!token) return `${"ABCD"[i]} nothing`;
      const same = i && groups[i] !== i ? `, as ${"ABCD"[groups[i] ?? 0]}` : "";
      return `${"ABCD"[i]} ${quoted(token)} ${probability(Math.exp(token.logprob))}${same}`;
    });
    return `token ${focus + 1}, column ${"ABCD"[selected]}: ${words.join("; ")}`;
  }

  /** @param {MouseEvent} event @returns {[column: number, index: number | null]} */
  #at({ offsetX, offsetY }) {
    const { answers } = this.now ?? { answers: [] };
    const row = clamp(Math.floor(offsetY / (ROW + GAP)), 0, answers.length - 1);
    const index = this.first + Math.floor((offsetX - LEFT) / this.pitch);
    const known = index >= 0 && index < (answers[row]?.tokens.length ?? 0) && offsetX >= LEFT;
    return [row, known ? index : null];
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.now) return;
    const { answers, focus, selected } = this.now;
    const n = answers[selected]?.tokens.length ?? 0;
    const own = focus ?? n - 1;
    /** Row and token that a key leads to. @type {Record<string, [row: number, index: number]>} */
    const keys = {
      ArrowLeft: [selected, own - 1],
      ArrowRight: [selected, own + 1],
      ArrowUp: [selected - 1, own],
      ArrowDown: [selected + 1, own],
      Home: [selected, 0],
      End: [selected, n - 1],
    };
    if (!(event.key in keys)) return;
    const [row, index] = keys[event.key];
    event.preventDefault();
    const at = clamp(row, 0, answers.length - 1);
    const last = (answers[at]?.tokens.length ?? 0) - 1;
    if (last >= 0) this.on.choose(at, clamp(index, 0, last));
  }
}
