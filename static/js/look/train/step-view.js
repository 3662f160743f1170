// "One step": the five steps of training on a text: forward, loss, backpropagation, optimiser, repeat.

import { ask } from "../../net/ask.js";
import { changed } from "../../state.js";
import { el, newButton, setText, setVars } from "../../ui/dom.js";
import { figure, probability, sentence } from "../../ui/format.js";
import { newSegmented } from "../../ui/segmented.js";
import { drawLayerGrid } from "./layer-grid.js";

/** @typedef {Answers.StepAnswer} StepAnswer */

const SOURCE =
  "Computed by PyTorch on the server, in a process of its own: one step of a full fine-tune in float32, of which nothing is kept.";
const RATES = { adamw: "0.00001", sgd: "0.01" };
const text = Object.assign(el("textarea"), { value: "The capital of France is Paris.", rows: 2, spellcheck: false });
const rate = Object.assign(el("input"), { type: "number", step: "any", min: "0", value: RATES.adamw });
const says = el("p", "tr-says");
const tokens = el("ol", "tr-tokens");
const grid = el("div", "tr-matrices");
/** @type {keyof typeof RATES} */
let optimizer = "adamw";
/** @type {"gradient" | "change"} */
let quantity = "gradient";
/** @type {StepAnswer | null} */
let answer = null;
let problem = "";
let isRunning = false;
const button = newButton("Take one step", takeStep);

/** @type {InstrumentView<Focus>} */
export const stepView = {
  name: "step",
  label: "One step",

  setUp(root) {
    const form = el("form", "tr-step-form column");
    form.setAttribute("aria-label", "Text and optimiser of one step");
    form.addEventListener("submit", (event) => event.preventDefault());
    text.setAttribute("aria-label", "Text");
    const optimizers = newSegmented({
      legend: "Optimiser",
      name: "tr-optimizer",
      options: [["adamw", "AdamW"], ["sgd", "SGD"]],
      value: optimizer,
      onChange: (chosen) => {
        optimizer = chosen;
        rate.value = RATES[chosen];
      },
    });
    const label = el("label", "", "Learning rate ");
    label.append(rate);
    const bar = el("div", "controls");
    bar.append(optimizers, label, button);
    form.append(text, bar);
    says.setAttribute("role", "status");
    const quantities = newSegmented({
      legend: "Of each matrix",
      name: "tr-quantity",
      options: [["gradient", "3 Backpropagation: norm of the gradient"], ["change", "4 Optimiser: norm of ΔW"]],
      value: quantity,
      onChange: (chosen) => {
        quantity = chosen;
        draw();
      },
    });
    const left = el("div", "column");
    left.append(form, says, el("h3", "", "1 Forward, 2 Loss, 5 Again with the new weights"), tokens);
    const right = el("div", "column");
    Object.assign(grid, { tabIndex: 0, role: "group", ariaLabel: "Norms by layer and matrix" }); // it scrolls
    right.append(quantities, grid);
    root.append(left, right);
  },

  show() {
    draw();
    return SOURCE;
  },

  table: () => ({
    columns: ["layer", "matrix", "norm of the gradient", "norm of ΔW", "norm of W"],
    rows: answer?.step.matrices.map(({ layer, name, gradient, change, weight }) => [layer, name, gradient, change, weight]) ?? [],
  }),
};

async function takeStep() {
  isRunning = true;
  problem = "";
  draw();
  try {
    const body = { text: text.value, learning_rate: Number(rate.value), optimizer };
    answer = await ask("api/train/step", { method: "POST", body });
  } catch (error) {
    problem = sentence(/** @type {Problem} */ (error).message);
  }
  isRunning = false;
  changed("look");
}

function draw() {
  button.disabled = isRunning;
  says.classList.toggle("bad", !!problem);
  setText(says, problem || (isRunning ? "PyTorch loads the model and takes the step …" : answer ? words(answer) : ""));
  if (!answer) return;
  const { pieces, step } = answer;
  tokens.replaceChildren(...pieces.map((piece, i) => tokenOf(piece, i ? step.before[i - 1] : null, step.after[i - 1])));
  drawLayerGrid(
    grid,
    quantity === "gradient" ? "Norm of the gradient by layer and matrix" : "Norm of ΔW by layer and matrix",
    step.matrices.map(({ layer, name, [quantity]: value }) => ({ layer, name, value })),
  );
}

/** @param {StepAnswer} answer */
function words({ step: { before, after } }) {
  const loss = (/** @type {number[]} */ all) => figure(-all.reduce((sum, each) => sum + each, 0) / all.length);
  return `The mean loss is ${loss(before)} nats before the step, and ${loss(after)} after it.`;
}

/** @param {string} piece @param {number | null} before @param {number} after */
function tokenOf(piece, before, after) {
  const item = el("li");
  item.append(el("b", "", piece));
  if (before === null) item.append(el("span", "sub", "given"));
  else {
    setVars(item, { "--p": Math.min(1, -before / 10) });
    item.append(el("span", "", `loss ${figure(-before)}`));
    item.append(el("span", "sub", `${probability(Math.exp(before))} → ${probability(Math.exp(after))}`));
  }
  return item;
}
