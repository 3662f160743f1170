// Compare instrument: one prompt under two to four settings, or several prompts, side by side, token
// by token.
//
// The controls of the page (sampling panel, adapters, Reach in) act on the selected column, also
// while it is written. The core sample and the panels beside it show its tokens.

import { el, newButton, setText } from "../../ui/dom.js";
import { movePace } from "../../chat/pace.js";
import { isSendKey } from "../../ui/enter-key.js";
import { percent, plural } from "../../ui/format.js";
import { growWithText } from "../../ui/grow.js";
import { changed, ready, state } from "../../state.js";
import { focused, point, view } from "../../view.js";
import { closePanel } from "../shared/panel.js";
import { Missing } from "../shared/context.js";
import { addRow, newTable, numeric } from "../shared/table.js";
import { firstDifference, groupsAt, longestOf } from "./alignment.js";
import { ColumnView } from "./column-view.js";
import {
  addColumn,
  allColumns,
  closeColumns,
  focusToken,
  isRemovable,
  isRunning,
  MAX_COLUMNS,
  openColumns,
  removeColumn,
  select,
  selectedNumber,
  settingOf,
  setColumns,
  settingsOf,
  stopAll,
  stopColumn,
} from "./columns.js";
import { explanationOf } from "./explain.js";
import { describePrompt, lastPrompt, runAll, takeOver, whyNotTakable } from "./run.js";
import { AlignmentStrip } from "./strip.js";
import { describeColumn, describeOwn, quoted, signed } from "./words.js";

/** @type {HTMLTextAreaElement} */
let field;
/** @type {HTMLElement} */
let note;
/** @type {HTMLButtonElement} */
let go;
/** @type {HTMLButtonElement} */
let add;
/** @type {AlignmentStrip} */
let strip;
/** @type {HTMLElement} */
let row;
/** @type {HTMLElement} */
let reason;
/** @type {ColumnView[]} */
let views = [];
/** Is the instrument shown? */
let isOpen = false;
/** Why the last start failed, or "". */
let problem = "";

/** @type {Instrument} */
export const compare = {
  needs: "nothing",

  setUp(root) {
    root.append(buildBar());
    strip = new AlignmentStrip(root, { point: pointAt, choose });
    row = root.appendChild(el("div", "cmp-columns"));
    reason = root.appendChild(el("div", "cmp-reason"));
    reason.setAttribute("role", "status");
    new ResizeObserver(() => changed("look")).observe(row);
  },

  show() {
    if (state.replay) {
      isOpen = false;
      movePace();
      throw new Missing("A comparison needs the engine, and a replay has none.");
    }
    if (!isOpen) open();
    movePace(go);
    draw();
    return sourceOf();
  },

  hide(isClosed) {
    isOpen = false;
    movePace();
    if (isClosed) closeColumns();
  },

  table() {
    const answers = answersNow();
    const columns = allColumns().flatMap(headsOf);
    const rows = Array.from({ length: longestOf(answers) }, (_, index) => {
      const groups = groupsAt(answers, index);
      const cells = answers.flatMap((answer) => {
        const token = answer?.tokens[index];
        return [token?.text ?? null, token ? Math.exp(token.logprob) : null];
      });
      return [index + 1, ...cells, groups.every((group) => group === 0) ? "yes" : "no"];
    });
    return { columns: ["token", ...columns, "same"], rows };
  },
};

/** @param {CompareColumn} column @param {number} i */
const headsOf = ({ prompt, asked }, i) => {
  const own = prompt && asked ? `, prompt “${asked.text}”` : "";
  return [`${"ABCD"[i]}${own}`, `p ${"ABCD"[i]}`];
};

const answersNow = () => allColumns().map(({ answer }) => answer);

function buildBar() {
  const bar = el("form", "cmp-bar");
  field = el("textarea");
  Object.assign(field, { rows: 1, placeholder: "Prompt for all columns", spellcheck: true });
  field.setAttribute("aria-label", "Prompt for all columns");
  note = el("span", "sub");
  add = newButton("Add column", () => addColumn());
  go = el("button", "send");
  field.addEventListener("input", () => {
    growWithText(field);
    changed("look");
  });
  field.addEventListener("keydown", (event) => {
    if (!isSendKey(event)) return;
    event.preventDefault();
    bar.requestSubmit();
  });
  bar.addEventListener("submit", (event) => {
    event.preventDefault();
    if (isRunning()) stopAll();
    else problem = runAll(field.value);
    changed("look");
  });
  bar.append(field, note, add, go);
  return bar;
}

function open() {
  isOpen = true;
  openColumns();
  if (!field.value) field.value = lastPrompt();
}

/**
 * Compare what the page's settings and `others`, see `setColumns`, make of a prompt.
 *
 * @param {string} text
 * @param {Parameters<typeof setColumns>[0]} others
 */
export function beginComparison(text, others) {
  if (isRunning()) return;
  if (!isOpen) open();
  setColumns(others);
  field.value = text;
  growWithText(field);
  problem = runAll(text);
  changed("look");
}

// ---- drawing -----------------------------------------------------------------------------------

function draw() {
  const columns = allColumns();
  const answers = answersNow();
  const partings = answers.map((answer, i) => (i ? firstDifference(answers[0], answer) : null));
  drawBar(columns);
  if (views.length !== columns.length) buildColumns(columns.length);
  const focus = answers.includes(view.answer) ? focused() : null;
  const at = focus !== null && focus >= 0 ? focus : null;
  strip.node.hidden = !answers.some(Boolean);
  strip.draw({ answers, partings, focus: at, selected: selectedNumber() });
  columns.forEach((column, i) => {
    views[i].draw(column, {
      words: wordsOf(column, i),
      prompt: i ? column.prompt : field.value,
      selected: i === selectedNumber(),
      parting: partings[i]?.index ?? null,
      focus: at,
      whyNotTake: whyNotTakable(column),
      removable: isRemovable(i) && !column.answer?.running,
    });
  });
  drawReason(partings, answers);
}

/** @param {CompareColumn[]} columns */
function drawBar(columns) {
  const running = isRunning();
  setText(go, running ? "Stop all" : "Compare");
  go.disabled = !running && (!ready() || field.value.trim() === "");
  add.disabled = running || columns.length === MAX_COLUMNS;
  setText(note, describePrompt(field.value));
}

/** @param {CompareColumn} column @param {number} i */
function wordsOf(column, i) {
  /** @param {CompareColumn} one @returns {[Settings, Setting]} */
  const of = (one) => [settingsOf(one), settingOf(one)];
  return i ? describeColumn(of(column), of(allColumns()[0]), column.prompt) : describeOwn(settingsOf(column));
}

/** @param {number} n */
function buildColumns(n) {
  /** @type {ConstructorParameters<typeof ColumnView>[1]} */
  const on = {
    select,
    /** @param {number} i */
    stop: (i) => stopColumn(allColumns()[i]),
    /** @param {number} i */
    takeOver(i) {
      takeOver(allColumns()[i]);
      closePanel();
    },
    remove: removeColumn,
    write(i, prompt) {
      allColumns()[i].prompt = prompt;
      changed("look");
    },
    send: () => go.form?.requestSubmit(),
    point: pointAt,
    choose,
  };
  views = Array.from({ length: n }, (_, i) => new ColumnView(i, on));
  row.replaceChildren(...views.map(({ node }) => node));
}

/**
 * Explain the first difference of the selected column, or of the column that parts first.
 *
 * @param {(Parting | null)[]} partings
 * @param {(Answer | null)[]} answers
 */
function drawReason(partings, answers) {
  const at = selectedNumber() || earliest(partings);
  const parting = partings[at];
  if (problem || !parting) {
    const running = isRunning();
    const same = answers.every(Boolean) && longestOf(answers) > 0;
    setText(reason, problem || (same ? `All the same${running ? " so far" : ""}.` : HOW));
    return;
  }
  const names = ["A", "ABCD"[at]];
  const where = `${names[1]} differs from A from token ${parting.index + 1} on`;
  const [a, b] = parting.sides;
  if (!a || !b) {
    setText(reason, `${where}: A has ${quoted(a)}, ${names[1]} has ${quoted(b)}.`);
    return;
  }
  const [first, other] = [answers[0], answers[at]];
  if (!first || !other) return;
  const pair = { index: parting.index, sides: [a, b], answers: [first, other], names };
  const { found, error } = explanationOf(pair);
  const head = `${where}: ${quoted(b)} instead of ${quoted(a)}.`;
  const rest = found?.text ?? error?.message ?? "Asking the engine …";
  const key = `${head} ${rest}`;
  if (reason.dataset.key === key && reason.childElementCount) return;
  reason.dataset.key = key;
  const words = el("p");
  words.append(el("b", "", head), ` ${rest}`);
  reason.replaceChildren(words, ...(found ? [tableOf(found.rows, names)] : []));
}

const HOW =
  "Select a column, change its settings with the sliders or in Reach in, or write a prompt of its " +
  "own above its text, then press Compare. The " +
  "runs share the steps of the engine, and the sliders act while they are written.";

/** @param {(Parting | null)[]} partings */
const earliest = (partings) =>
  partings.reduce(
    (best, one, i) => (one && (!partings[best] || one.index < partings[best].index) ? i : best),
    0,
  );

/**
 * The two tokens with their logits and shares in both columns.
 *
 * @param {Explanation["rows"]} rows
 * @param {string[]} names
 */
function tableOf(rows, names) {
  const columns = [...names.map((name) => `logit ${name}`), "moved", ...names.map((name) => `% ${name}`)];
  const table = newTable("cmp-moves", "Why they differ", ["token", ...numeric(columns)]);
  for (const { token, logits, shares } of rows)
    addRow(table, [
      quoted(token),
      ...logits.map((logit) => logit.toFixed(2)),
      logits[0] === logits[1] ? "0" : signed(logits[1] - logits[0]),
      ...shares.map(percent),
    ]);
  return table;
}

/** Say how many rows the steps had, which is measured. */
function sourceOf() {
  const [first] = answersNow();
  const rows = first?.tokens.at(-1)?.stats?.n_rows;
  if (!first?.segment) return "One prompt and one seed, unless a column has its own.";
  const share = rows ? ` The newest token of A was computed in a step of ${plural(rows, "row")}.` : "";
  return `Sent together.${share} Bars: probability of each token before temperature and filters.`;
}

// ---- pointer -----------------------------------------------------------------------------------

/** @param {number} number @param {number | null} index */
function pointAt(number, index) {
  if (index === null || allColumns()[number]?.answer === view.answer) point(index);
}

/** @param {number} number @param {number | null} index */
function choose(number, index) {
  if (index === null) return select(number);
  focusToken(number, index);
  requestAnimationFrame(() => views.forEach((each) => each.showFocus()));
  return undefined;
}
