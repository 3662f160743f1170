// "Train an adapter": a LoRA adapter trained on the user's lines by the server, what it takes beside a full
// fine-tune, and its losses as they come. When done, the adapter is loaded into the running model.

import { setLora } from "../../interventions/intervention-store.js";
import { ask } from "../../net/ask.js";
import { changed, state } from "../../state.js";
import { el, newButton, setText } from "../../ui/dom.js";
import { bytes, count, plural, sentence } from "../../ui/format.js";
import { Missing } from "../shared/context.js";
import { addRow, clearRows, newTable } from "../shared/table.js";
import { drawLosses } from "./chart.js";
import { TrainForm } from "./form.js";
import { costs } from "./sizes.js";

/** @typedef {Answers.TrainOffer} TrainOffer */
/** @typedef {Answers.TrainRun} TrainRun */

const PATH = "api/train";
const POLL_MS = 500;
const ACTIVE = ["starting", "training", "loading"];
const SOURCE =
  "Measured by PEFT and PyTorch on the server, in a process of its own. A step is one line; its loss is the mean over the line’s tokens, before the step.";

/** @type {TrainForm} */
let form;
/** @type {HTMLCanvasElement} */
let chart;
const says = el("p", "tr-says");
const start = newButton("Train", begin);
const missing = el("p", "sub optional");
const cancel = newButton("Cancel", () => asked({ method: "DELETE" }));
const sizes = newTable("tr-sizes", "Memory for the weights, without activations", ["", "this adapter", "full fine-tune"]);
/** @type {TrainOffer | null} */
let offer = null;
/** Name of the adapter that this page began to train: it is switched on once it is loaded. @type {string | null} */
let own = null;
let problem = "";
/** @type {number | undefined} */
let timer;

/** @type {InstrumentView<Focus>} */
export const adapterView = {
  name: "adapter",
  label: "Train an adapter",

  setUp(root) {
    form = new TrainForm(root, drawForm);
    form.acts.append(start, cancel, missing);
    missing.setAttribute("aria-live", "polite");
    const page = root.appendChild(el("div", "tr-page column"));
    says.setAttribute("role", "status");
    chart = el("canvas", "tr-chart");
    page.append(says, chart, sizes);
  },

  async show() {
    clearTimeout(timer);
    offer = /** @type {TrainOffer} */ (await ask(PATH));
    if (offer.why_not) throw new Missing(sentence(offer.why_not));
    form.draw(offer);
    drawForm();
    drawRun(offer.run);
    if (offer.run && ACTIVE.includes(offer.run.state)) timer = setTimeout(() => changed("look"), POLL_MS);
    return SOURCE;
  },

  hide() {
    clearTimeout(timer);
  },

  table: () => ({
    columns: ["step", "loss", "held-out loss"],
    rows: rowsOf(offer?.run ?? null),
  }),
};

/** @param {TrainRun | null} run @returns {unknown[][]} */
function rowsOf(run) {
  if (!run) return [];
  const losses = new Map(run.losses);
  const heldOut = new Map(run.held_out);
  const steps = new Set([...losses.keys(), ...heldOut.keys()]);
  return [...steps].sort((a, b) => a - b).map((step) => [step, losses.get(step) ?? "", heldOut.get(step) ?? ""]);
}

async function begin() {
  if (form.isWithoutTargets) {
    problem = "Choose at least one matrix to adapt.";
    return changed("look");
  }
  const { request } = form;
  if (await asked({ method: "POST", body: request })) own = request.name; // or a refusal would switch it on
  return undefined;
}

/** Send a request, and show what is wrong with it; return whether it was accepted. @param {Parameters<typeof ask>[1]} options */
async function asked(options) {
  problem = "";
  try {
    await ask(PATH, options);
  } catch (error) {
    problem = sentence(/** @type {Problem} */ (error).message);
  }
  changed("look");
  return !problem;
}

/** Show what the form lacks and takes. */
function drawForm() {
  setText(missing, form.isEmpty ? "Type your lines first; the grey ones are an example." : "");
  if (offer) drawSizes(offer);
}

/** @param {TrainOffer} offer */
function drawSizes(offer) {
  clearRows(sizes);
  const { rows, trained } = costs(offer, form.settings);
  addRow(sizes, ["numbers trained", count(trained), count(offer.parameters)]);
  for (const { name, adapter, full } of rows) addRow(sizes, [name, bytes(adapter), bytes(full)]);
}

/** @param {TrainRun | null} run */
function drawRun(run) {
  const isActive = !!run && ACTIVE.includes(run.state);
  start.disabled = isActive;
  cancel.hidden = !isActive || run?.state === "loading";
  says.classList.toggle("bad", !!problem || run?.state === "failed");
  setText(says, problem || (run ? words(run) : "Nothing has been trained yet."));
  chart.hidden = !run;
  drawLosses(chart, run);
  if (run?.state === "done" && run.name === own && isLoaded(own)) {
    setLora(own, 1);
    own = null;
  }
}

/** @param {string} name */
const isLoaded = (name) => !!state.hello?.model.loras?.some((lora) => lora.name === name);

/** @param {TrainRun} run */
function words(run) {
  const { name, steps, message, losses, seconds_left: left, folder } = run;
  switch (run.state) {
    case "starting":
      return `${name}: PyTorch loads the model …`;
    case "training":
      return `${name}: step ${count(losses.length)} of ${count(steps)}${left === null ? "" : `, about ${count(Math.ceil(left))} s left`}.`;
    case "loading":
      return `${name} is trained. The model is loaded again with it …`;
    case "done":
      return `${name} is loaded after ${plural(losses.length, "step")}; its slider is below the sampling settings. It is in ${folder}.`;
    case "cancelled":
      if (folder) return `${name} is trained and in ${folder}, but loading it was cancelled.`;
      return `${name} was cancelled after ${plural(losses.length, "step")}; nothing is kept of it.`;
    default:
      return `${name} failed: ${message}.${folder ? ` The adapter is in ${folder}.` : ""}`;
  }
}
