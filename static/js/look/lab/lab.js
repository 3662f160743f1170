// Lab: measured experiments, each run by a click on the engine, along with whatever else it
// does, and drawn as it fills.

import { changed, on, ready, state } from "../../state.js";
import { el, newButton, setText } from "../../ui/dom.js";
import { sentence } from "../../ui/format.js";
import { drawSegmented, newSegmented } from "../../ui/segmented.js";
import { drawTable } from "../shared/table.js";
import { STOPPED, openBench, stopBench } from "./bench.js";
import { drawChart } from "./chart.js";
import { EXPERIMENTS } from "./experiments.js";

const RUNS = "Measured by the runs of this experiment: greedy, without capture, with prompts that are not in the cache.";

/** Rows of each experiment, by its name, and the model that they were measured on. @type {Map<string, LabRow[]>} */
const measured = new Map();
let model = "";
let selected = EXPERIMENTS[0];
/** The experiment that runs now, or null. @type {Experiment | null} */
let running = null;
let problem = "";

/** Elements. */
const at = {
  choices: newSegmented({
    legend: "Experiment",
    name: "lab",
    options: EXPERIMENTS.map(({ name, tab }) => [name, tab]),
    value: selected.name,
    onChange(wanted) {
      selected = EXPERIMENTS.find(({ name }) => name === wanted) ?? selected;
      changed("look");
    },
  }),
  what: el("p", "lb-what"),
  go: newButton("Run", onGo, "text"),
  says: el("p", "lb-says"),
  canvas: el("canvas", "lb-chart"),
  numbers: el("div", "lb-numbers"),
};

/** @type {Instrument} */
export const lab = {
  needs: "nothing",
  asks: true,

  setUp(root) {
    const bar = root.appendChild(el("div", "lb-bar"));
    at.canvas.setAttribute("role", "img");
    at.says.setAttribute("role", "status");
    const acts = el("p", "lb-acts");
    acts.append(at.go);
    bar.append(at.choices, at.what, acts, at.says);
    root.append(at.canvas, at.numbers);
    at.numbers.tabIndex = 0;
    at.numbers.setAttribute("role", "group");
    on("size", stopIfClosed);
  },

  show({ hello }) {
    const name = `${hello.model.name} ${hello.model.dtype} ${hello.device.name}`;
    if (name !== model) measured.clear();
    model = name;
    draw();
    return selected.source ?? RUNS;
  },

  table() {
    const rows = rowsOf(selected);
    const columns = selected.columns ?? Object.keys(rows[0] ?? {});
    return { columns, rows: rows.map((row) => columns.map((column) => row[String(column)] ?? null)) };
  },
};

/** @param {Experiment} experiment */
const rowsOf = ({ name }) => measured.get(name) ?? [];

/** Stop the experiment when the panel is closed; it goes on while another instrument is open. */
function stopIfClosed() {
  if (running && !document.body.hasAttribute("data-look")) stopBench();
}

async function onGo() {
  if (running) {
    stopBench();
    return;
  }
  const { hello } = state;
  if (!hello || !ready()) return;
  const experiment = selected;
  running = experiment;
  problem = "";
  measured.set(experiment.name, []);
  changed("look");
  try {
    const bench = await openBench(hello, (rows) => {
      measured.set(experiment.name, rows);
      changed("look");
    });
    await experiment.run(bench);
  } catch (error) {
    if (error !== STOPPED) {
      stopBench();
      problem = sentence(/** @type {Problem} */ (error).message);
    }
  }
  running = null;
  changed("look");
}

function draw() {
  const rows = rowsOf(selected);
  const isRunning = running === selected;
  at.what.replaceChildren(el("b", "", `${selected.title}.`), ` ${selected.what}`);
  setText(at.go, running ? "Stop" : rows.length ? "Run again" : "Run");
  at.go.disabled = !running && !ready();
  drawSegmented(at.choices, selected.name, () => !!running);
  const says = selected.says(rows);
  setText(at.says, problem || (isRunning ? `Running … ${says}` : says));
  const draws = selected.draw ?? (selected.lines.length ? drawChart : null);
  at.canvas.hidden = !draws || !rows.length;
  at.canvas.setAttribute("aria-label", `${selected.title}. ${says}`);
  if (!at.canvas.hidden) draws?.(at.canvas, selected, rows);
  at.numbers.setAttribute("aria-label", selected.title);
  at.numbers.replaceChildren(...(rows.length ? [drawTable(lab.table(), selected.title)] : []));
}
