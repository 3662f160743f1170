// Hardware needs: parameters, bytes and bounds of a model on a device, from its config alone, and
// beside the bounds what was measured in the focused run.

import { tokensPerSecond } from "../../chat/status-line.js";
import { ask } from "../../net/ask.js";
import { hasServer } from "../../net/connection.js";
import { changed, state } from "../../state.js";
import { el, newButton, setText, setVars } from "../../ui/dom.js";
import { bytes, count, figure, percent, sentence } from "../../ui/format.js";
import { costsOf, knownPeaks } from "../plan/roofline-costs.js";
import { Missing, whyOtherModel } from "../shared/context.js";
import { addRow, clearRows, newTable, shareBar } from "../shared/table.js";
import {
  BOUND_BY,
  aboutCache,
  aboutDevice,
  aboutMemory,
  howMany,
  kvRows,
  kvWords,
  ladder,
  multiplied,
  rowsOf,
  time,
} from "./figures.js";
import { NeedsForm, THIS } from "./form.js";

/** @typedef {Answers.SizingAnswer} SizingAnswer */

const SOURCE =
  "Computed from the model’s config and the devices’ data sheets: limits, not predictions. Only a device whose cache holds the whole model can beat them.";

/** @type {NeedsForm} */
let form;
/** Elements of the sections. */
const at = {
  head: el("p", "nd-head"),
  problem: el("p", "nd-problem optional"),
  parts: table("Parameters by part", ["part", "parameters", "", "bytes", "read for a token"]),
  memory: el("div", "nd-bar"),
  memoryWords: el("p", "sub"),
  kv: table("Keys and values of a token", ["attention", "", "", "bytes"]),
  kvWords: el("p", "sub"),
  devices: table("Devices", ["device", "needed", "users that fit", "first token", "tokens/s each", "bound by", ""]),
  source: el("p", "sub"),
  ladder: table("A step on the device", ["level", "amount", "rate", "time", ""]),
  ladderWords: el("p", "sub"),
};
/** Answers by query, and the `hello` of the running model, which a query need not name. @type {Map<string, Promise<SizingAnswer>>} */
const answers = new Map();
/** @type {ToPage.Hello | null} */
let hello = null;
/** @type {SizingAnswer | null} */
let now = null;

/** @type {Instrument} */
export const needs = {
  needs: "nothing",

  setUp(root) {
    form = new NeedsForm(root, () => changed("look"));
    const page = root.appendChild(el("div", "nd-page"));
    at.problem.setAttribute("role", "status");
    page.append(
      at.head,
      at.problem,
      section("Devices", at.devices, at.source),
      section("A step on the device", at.ladder, at.ladderWords),
      section("Memory", at.memory, at.memoryWords),
      section("Keys and values of a token", at.kv, at.kvWords),
      section("Parameters by part", at.parts),
    );
  },

  async show(context) {
    if (!hasServer)
      throw new Missing("Only a server computes this, and this page has none. The command tokenglass plan prints the same.");
    try {
      now = await answerOf(form.query.toString());
      setText(at.problem, "");
    } catch (error) {
      const { code, message } = /** @type {Problem} */ (error);
      if (!code || !now) throw error;
      setText(at.problem, sentence(message));
    }
    draw(now, context);
    return SOURCE;
  },

  table: () => ({ columns: ["of", "figure", "value", "unit"], rows: now ? rowsOf(now.sizing) : [] }),
};

/** @param {string} query @returns {Promise<SizingAnswer>} */
function answerOf(query) {
  if (state.hello !== hello) answers.clear();
  hello = state.hello;
  const known = answers.get(query) ?? ask(`api/sizing?${query}`);
  answers.set(query, known);
  known.catch(() => answers.delete(query));
  return known;
}

/** @param {string} title @param {HTMLElement[]} inside */
function section(title, ...inside) {
  const box = el("section");
  box.append(el("h3", "", title), ...inside);
  return box;
}

/** @param {string} caption @param {string[]} columns */
function table(caption, columns) {
  return newTable("nd-table", caption, columns);
}

/**
 * Add a row; a number is drawn as a bar.
 *
 * @param {HTMLTableElement} to
 * @param {(string | number | HTMLElement)[]} cells
 * @param {boolean} [here]
 */
function row(to, cells, here = false) {
  const line = addRow(to, cells.map((cell) => (typeof cell === "number" ? shareBar(cell) : cell)));
  line.classList.toggle("here", here);
}

/** @param {SizingAnswer} answer @param {Focus} context */
function draw(answer, context) {
  const { sizing } = answer;
  form.draw(answer);
  const chosen = sizing.devices.find(({ device }) => device.name === form.device);
  const { product, each } = multiplied(sizing);
  at.head.replaceChildren(el("b", "", product), ` ${each}; with keys and values ${bytes(sizing.bytes_per_s)}/s.`);
  drawParts(sizing);
  drawMemory(sizing, chosen);
  const most = Math.max(...kvRows(sizing).map(({ n }) => n));
  clearRows(at.kv);
  for (const { name, what, n, here } of kvRows(sizing)) row(at.kv, [name, what, n / most, bytes(n)], here);
  setText(at.kvWords, kvWords(sizing));
  drawDevices(sizing);
  setText(at.source, chosen ? aboutDevice(chosen) : "");
  drawLadder(sizing, chosen, context);
}

/** @param {Answers.Sizing} sizing */
function drawParts({ parts }) {
  const most = Math.max(...parts.map(({ n_bytes }) => n_bytes));
  clearRows(at.parts);
  for (const { name, parameters, n_bytes, token_bytes } of parts)
    row(at.parts, [
      name,
      parameters || !token_bytes ? count(parameters) : "= W_E",
      n_bytes / most,
      bytes(n_bytes),
      bytes(token_bytes),
    ]);
}

/** @param {Answers.Sizing} sizing @param {Answers.DeviceBounds | undefined} chosen */
function drawMemory(sizing, chosen) {
  const { parts, words } = aboutMemory(sizing);
  const room = chosen?.device.memory_bytes ?? 0;
  const whole = Math.max(room, sizing.need.total);
  at.memory.replaceChildren(
    ...parts.map(({ name, n }) => {
      const part = setVars(el("i", "", ""), { "--p": n / whole });
      part.title = `${name} ${bytes(n)}`;
      return part;
    }),
  );
  const split = parts.map(({ name, n }) => `${bytes(n)} of ${name}`).join(", ");
  const fit = room ? `; ${chosen?.device.name} has ${bytes(room)}${chosen?.fits ? "" : ", which is too little"}` : "";
  setText(at.memoryWords, `${words}: ${split}${fit}.`);
}

/** @param {Answers.Sizing} sizing */
function drawDevices({ devices }) {
  const most = Math.max(...devices.map(({ tokens_per_s }) => tokens_per_s));
  clearRows(at.devices);
  for (const bounds of devices) {
    const { device, users, first_token: first, decode, tokens_per_s: rate } = bounds;
    const isChosen = device.name === form.device;
    const choose = newButton(device.name, () => {
      form.device = device.name;
      changed("look");
    });
    choose.setAttribute("aria-pressed", String(isChosen));
    const cells = [
      choose,
      howMany(bounds),
      users === null ? "unknown" : count(users),
      first ? time(first.seconds) : "unknown",
      figure(rate),
      BOUND_BY[decode.by],
      rate / most,
    ];
    row(at.devices, cells, isChosen);
  }
}

// ---- a step ----------------------------------------------------------------------------------

/** @param {Answers.Sizing} sizing @param {Answers.DeviceBounds | undefined} chosen @param {Focus} context */
function drawLadder(sizing, chosen, context) {
  clearRows(at.ladder);
  if (!chosen) {
    setText(at.ladderWords, `The rates of ${form.device.toLowerCase()} are not known yet.`);
    return;
  }
  const { device } = chosen;
  const focused = device.name === THIS && isLoaded(sizing) ? focusedStep(context) : null;
  const step = focused?.cost ?? sizing.decode;
  const rows = ladder(step, device);
  const measured = focused?.ms ?? 0;
  const most = Math.max(...rows.map(({ seconds }) => seconds ?? 0), measured / 1000);
  for (const { level, amount, rate, seconds } of rows)
    row(at.ladder, [level, amount, rate, seconds === null ? "" : time(seconds), (seconds ?? 0) / most]);
  if (measured) row(at.ladder, ["measured", "", "", time(measured / 1000), measured / 1000 / most], true);
  setText(at.ladderWords, `${focused ? wordsOfRun(focused, rows) : wordsOfStep(sizing)} ${aboutCache(step.n_bytes, device)}`);
}

/** Are these the figures of the loaded model, stored as it is? @param {Answers.Sizing} sizing */
function isLoaded({ model, dtype, kv }) {
  const loaded = state.hello?.model;
  return model === loaded?.name && dtype === loaded.dtype && kv.dtype === loaded.kv_dtype;
}

/** @param {Answers.Sizing} sizing */
function wordsOfStep({ users, context, decode, prefill }) {
  const whose = users > 1 ? `a token of each of ${count(users)} users` : "a token";
  return (
    `The step that writes ${whose} after ${count(context)} tokens: ${figure(decode.intensity)} operations per byte. ` +
    `Reading the prompt: ${figure(prefill.intensity)}.`
  );
}

/**
 * The focused step of the run: its cost by the plan, and its time on the GPU or between tokens.
 *
 * @param {Focus} context
 */
function focusedStep({ answer, token, index }) {
  const segment = token && "times" in token ? token.segment : null;
  if (whyOtherModel(segment)) return null;
  if (!answer || !segment || !token || !("times" in token) || index === null || !knownPeaks()?.flops_per_s) return null;
  const before = segment.prompt.length + index - segment.base - 1;
  const [cost] = costsOf([{ rows: 1, context: before }]) ?? [];
  if (!cost || index <= segment.first) return null;
  return {
    cost: { flops: cost.flops, n_bytes: cost.bytes, weight_bytes: cost.bytes },
    ms: token.times.gpu ?? token.times.interval,
    clock: token.times.gpu === null ? "between two tokens" : "by the GPU’s clock",
    index,
    segment,
    answer,
  };
}

/** @param {NonNullable<ReturnType<typeof focusedStep>>} focused @param {ReturnType<typeof ladder>} rows */
function wordsOfRun({ ms, clock, index, answer, segment }, rows) {
  const bound = Math.max(...rows.filter(({ level }) => !level.startsWith("bus")).map(({ seconds }) => seconds ?? 0));
  const speed = tokensPerSecond(answer, segment);
  const run = speed ? ` The run writes ${figure(speed)} tokens/s; the bound is ${figure(1 / bound)}.` : "";
  return (
    `The step of token ${count(index + 1)}, ${clock}: ${percent((1000 * bound) / ms)} % of the bound.${run}`
  );
}
