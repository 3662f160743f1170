// Controls of the core sample: metric buttons, legend, row names, pointer and keys.

import { cellValue, onScale } from "./column.js";
import { cellUnder, core, follow, zoom } from "./core-sample.js";
import { all, byId, el, setText, setVars } from "../ui/dom.js";
import { ordinal, probability, tokenLabel, whyNoTimes } from "../ui/format.js";
import { grid, isNamed, namedEvery, rowTop } from "./grid.js";
import { METRIC_NAMES, METRICS, scales } from "../turns/metrics.js";
import { NOT_MEASURED } from "../turns/answer.js";
import { on, setState, state } from "../state.js";
import {
  focused,
  focusedRow,
  focusedToken,
  metric,
  numberOf,
  pin,
  point,
  promptLength,
  step,
  stepRow,
  view,
  written,
} from "../view.js";

const plot = byId("plot");
/** Tokens per PageUp or PageDown. */
const PAGE = 20;

export function setUpCoreControls() {
  for (const key of METRIC_NAMES) {
    const { name } = METRICS[key];
    const label = el("label");
    const input = Object.assign(el("input"), {
      type: "radio",
      name: "metric",
      value: key,
      checked: key === state.metric,
    });
    input.addEventListener("change", () => setMetric(key));
    label.append(input, name);
    byId("metrics").append(label);
  }
  byId("wider").addEventListener("click", () => zoom(1));
  byId("narrower").addEventListener("click", () => zoom(-1));
  byId("follow").addEventListener("click", () => {
    pin(null);
    follow();
  });
  plot.addEventListener("pointermove", onMove);
  plot.addEventListener("pointerleave", () => point(null));
  plot.addEventListener("click", onClick);
  plot.addEventListener("keydown", onKey);
  on("size hello metric theme", drawNames);
  on("focus tokens metric hello", describe);
  on("tokens metric hello turns", drawBlank);
}

/** @param {MetricName} key */
export function setMetric(key) {
  setState({ metric: key });
  for (const input of byId("metrics").querySelectorAll("input"))
    input.checked = input.value === key;
}

/** @param {PointerEvent} event */
function onMove(event) {
  if (event.pointerType === "touch") return;
  const at = cellUnder(event);
  point(at?.index ?? null, at?.row ?? null);
}

/** @param {MouseEvent} event */
function onClick(event) {
  const at = cellUnder(event);
  if (at) pin(at.index, at.row);
}

/**
 * Handle arrow keys in the core sample and the transcript; true when the key was used.
 *
 * @param {string} key
 * @param {boolean} rows
 */
export function moveFocus(key, rows) {
  /** @type {Record<string, number>} */
  const moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -PAGE, PageDown: PAGE };
  if (key in moves) step(moves[key]);
  else if (key === "Home") pin(0);
  else if (key === "End") {
    pin(null);
    follow();
  } else if (rows && key === "ArrowUp") stepRow(1);
  else if (rows && key === "ArrowDown") stepRow(-1);
  else return false;
  return true;
}

/** @param {KeyboardEvent} event */
function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  core.scrolledAway = false;
  if (moveFocus(event.key, true)) event.preventDefault();
}

/** Draw the row names left of the plot. */
function drawNames() {
  const narrow = core.width < 500;
  /** @type {HTMLElement[]} */
  const names = [];
  const every = namedEvery();
  /**
   * @param {string} text
   * @param {number} y
   * @param {number} [layer]
   */
  const add = (text, y, layer) => {
    const name = setVars(el("span", "", text), { "--y": `${y}px` });
    if (layer !== undefined) name.dataset.layer = String(layer);
    names.push(name);
  };
  for (let layer = 0; layer < grid.layers; layer += 1) {
    if (!isNamed(layer)) continue;
    add(
      narrow || every > 1 ? String(layer) : `layer ${layer}`,
      rowTop(layer) + grid.row / 2,
      layer,
    );
  }
  add(narrow ? "out" : "output", grid.top + grid.cap / 2);
  add(narrow ? "emb" : "embed", grid.bottom - grid.cap / 2);
  add(narrow ? "p" : "probability", grid.top - grid.prob / 2);
  if (!narrow) add("token", grid.bottom + 17);
  byId("gutter").replaceChildren(...names);
  describe();
}

/** Update the legend, the highlighted row name and the slider's aria text. */
function describe() {
  const token = focusedToken();
  const row = focusedRow();
  const { what, format, part } = metric();
  const scale = scales[state.metric];
  setText(byId("what"), what);
  setText(byId("lo"), scale ? format(scale.lo) : "");
  setText(byId("hi"), scale ? format(scale.hi) : "");
  const value = token && row ? cellValue(token.stats, row) : null;
  const name = row
    ? [`layer ${row.layer}`, part(Math.min(row.part, view.parts - 1), view.parts)]
        .filter(Boolean)
        .join(" ")
    : "";
  const number = value === null || value === undefined ? "not measured" : format(value);
  setText(byId("val"), token ? `${name} ${number}` : "");
  const at = onScale(value);
  setVars(byId("ramp"), { "--v": at ?? 0, "--on": at === null ? 0 : 1 });
  for (const label of all(byId("gutter"), "span"))
    label.classList.toggle("on", !!token && label.dataset.layer === String(row?.layer));
  byId("follow").setAttribute("aria-pressed", String(!core.scrolledAway && view.pinned === null));
  plot.setAttribute("aria-valuemin", String(1 - promptLength()));
  plot.setAttribute("aria-valuemax", String(Math.max(1, written())));
  plot.setAttribute("aria-valuenow", String((focused() ?? 0) + 1));
  plot.setAttribute("aria-valuetext", token ? inWords(token, `${name} ${number}`) : "No token yet");
}

/**
 * @param {Token | PromptToken} token
 * @param {string} cell
 */
const inWords = (token, cell) =>
  [
    token.prompt ? numberOf(token) : `token ${numberOf(token)}`,
    `“${tokenLabel(token.text, "end of text")}”`,
    ...(token.prompt !== undefined
      ? []
      : [
          `probability ${probability(Math.exp(token.logprob))}`,
          ...(token.rank === null ? [] : [`${ordinal(token.rank)} choice`]),
        ]),
    cell,
  ].join(", ");

/** Say why the plot is blank, if it is. */
function drawBlank() {
  const blank = byId("blank");
  const text = blankReason(view.answer);
  setText(blank, text);
  blank.hidden = text === "";
}

/** @param {Answer | null} answer */
function blankReason(answer) {
  if (!answer)
    return "One column per token appears here, from the embedding up to the output.";
  const newest = answer.tokens.findLast(({ stats }) => stats);
  const last = answer.tokens.at(-1);
  const gone = answer.segments.some(({ state: its, edited }) => its === "lost" && !edited);
  if (newest) {
    const [layer] = newest.stats?.layers ?? [];
    if (state.metric === "time" && state.hello && layer?.attention_ms == null)
      return `No GPU time per layer: ${whyNoTimes(state.hello.device)}.`;
    if (state.metric === "cosine" && layer?.attention_cosine == null)
      return "This replay was saved before cosines were measured.";
    return "";
  }
  if (answer.edited && !last) return NOT_MEASURED;
  if (gone || (last && answer.settingsAt(last).capture))
    return "Only the text of this answer is left, not its measurements.";
  return last ? "Capture was off, so no layers were measured." : "";
}
