// Loss instrument: a text under teacher forcing, with the loss of each token given those before it.

import { el, newButton, setText } from "../../ui/dom.js";
import { count, duration, figure, plural } from "../../ui/format.js";
import { drawSegmented, newSegmented } from "../../ui/segmented.js";
import { changed } from "../../state.js";
import { pin, point } from "../../view.js";
import { indexAt } from "../shared/context.js";
import { addRow, newTable, numeric } from "../shared/table.js";
import { drawHistogram } from "./chart.js";
import { figuresOf, hardest } from "./reading.js";
import { continueReading, readAnswer, readText, Stopped, stopReading, Unreadable, Unwanted } from "./source.js";
import { LossText } from "./text.js";
import { LossToken } from "./token.js";

const TYPED_AFTER_MS = 400;
const ID = { name: "id", format: String };
const COLUMNS = ["token", ID, "text", "loss, nats", "p", "rank", "entropy, bits"];
const EXPECTED = [1, 2, 3, 4, 5].flatMap((n) => [`expected ${n}`, `p ${n}`]);
const WHILE_WRITING =
  "Generating: log-probabilities of the run itself. Losses of the prompt and alternatives follow " +
  "when it is complete.";

/** Selected text: "answer" or "own"; null: the answer, if there is one. @type {string | null} */
let wanted = null;
/** The user's text that was read last, as typed, and by which model. @type {{typed: string, by: string} | null} */
let read = null;
/** The typed text when the typing pause last started. */
let rested = "";
/** @type {Reading | null} */
let reading = null;
/** @type {Focus} */
let context;
/** Hovered and selected position in the text, or null. @type {number | null} */
let hovered = null;
/** @type {number | null} */
let chosen = null;

/** @type {HTMLTextAreaElement} */
let field;
/** @type {HTMLFieldSetElement} */
let choices;
/** @type {HTMLTableElement} */
let figures;
/** @type {HTMLCanvasElement} */
let canvas;
/** @type {LossText} */
let text;
/** @type {HTMLElement} */
let problem;
/** @type {LossToken} */
let one;
/** Progress of a reading that takes several questions. */
const wait = { box: el("div", "controls ls-wait"), bar: el("progress"), says: el("span", "sub"), go: newButton("Stop", stopOrContinue) };
let isStopped = false;

/** @type {Instrument} */
export const loss = {
  needs: "nothing",
  asks: true,

  setUp(root) {
    root.append(buildSide(), buildText(), buildToken());
  },

  async show(now) {
    context = now;
    const own = isOwn();
    drawChoice(own);
    try {
      if (own) await pauseWhileTyped(now.signal);
      const before = reading;
      const typed = field.value;
      const isWanted = () => !now.signal.aborted && isOwn() === own && (!own || field.value === typed);
      const task = { onProgress: drawProgress, isWanted };
      reading = own ? await readOwn(task) : await readAnswer(now, task);
      isStopped = false;
      if (!isSameText(before, reading)) hovered = chosen = null;
      setText(problem, "");
    } catch (error) {
      if (now.signal.aborted || error instanceof Unwanted) return "";
      const { code, message } = /** @type {Problem} */ (error);
      isStopped = error instanceof Stopped;
      drawProgress();
      if (!(error instanceof Unreadable) && !code) throw error;
      reading = null;
      setText(problem, message);
    }
    if (now.signal.aborted) return "";
    drawProgress();
    draw();
    return reading ? provenance(reading) : "";
  },

  hide() {
    hovered = null;
  },

  table() {
    return { columns: [...COLUMNS, ...EXPECTED], rows: (reading?.tokens ?? []).map(numbersOf) };
  },
};

/** @param {ScoredToken} token @param {number} i */
function numbersOf({ id, text: words, loss: nats, rank, bits, top }, i) {
  const p = nats === null ? null : Math.exp(-nats);
  const others = top ? top.flatMap((other) => [nameOf(other.id), other.p]) : [];
  const expected = EXPECTED.map((_, place) => others[place] ?? null);
  return [i + 1, id, words, nats, p, rank === null ? null : rank + 1, bits, ...expected];
}

/**
 * Is it the same text, or the same run with more tokens?
 *
 * @param {Reading | null} before
 * @param {Reading} reading
 */
const isSameText = (before, { segment, tokens }) =>
  before !== null && before.segment === segment && (segment !== null || before.tokens === tokens);

// ---- choice of text --------------------------------------------------------------------------

const hasAnswer = () => !!context.answer?.segments.some(({ accepted }) => accepted);
const isOwn = () => wanted === "own" || !hasAnswer();

/** Wait for a pause in typing. @param {AbortSignal} signal */
async function pauseWhileTyped(signal) {
  while (field.value !== rested) {
    rested = field.value;
    await new Promise((resolve) => {
      setTimeout(resolve, TYPED_AFTER_MS);
      signal.addEventListener("abort", () => resolve(undefined));
    });
  }
}

/** @param {import("./source.js").Task} task */
async function readOwn(task) {
  if (field.value.trim() === "")
    throw new Unreadable("Type or paste a text to see the loss of each token.");
  const typed = field.value;
  const { name, dtype } = context.hello.model;
  const by = `${name} ${dtype}`;
  if (read?.typed === typed && read.by === by && reading && !reading.segment) return reading;
  const found = await readText(typed, context, task);
  read = { typed, by };
  return found;
}

/** Show how much of a text is read; without numbers, whether that may be continued. @param {number} [done] @param {number} [total] */
function drawProgress(done = 0, total = 0) {
  wait.box.hidden = !total && !isStopped;
  wait.bar.hidden = !total;
  Object.assign(wait.bar, { max: total || 1, value: done });
  setText(wait.says, total ? `${count(done)} of ${plural(total, "token")}` : "");
  setText(wait.go, total ? "Stop" : "Continue");
}

function stopOrContinue() {
  if (isStopped) {
    isStopped = false;
    continueReading();
    changed("look");
  } else {
    stopReading();
    setText(wait.go, "Stopping …");
  }
}

/** @param {boolean} own */
function drawChoice(own) {
  drawSegmented(choices, own ? "own" : "answer", (value) => value === "answer" && !hasAnswer());
  field.hidden = !own;
}

/** @param {Reading} reading */
function provenance({ tokens, info, segment, cut, from }) {
  if (!info) return WHILE_WRITING;
  const time = info.ms === undefined ? "" : ` in ${duration(info.ms)}`;
  const forced = `Teacher forcing: ${plural(tokens.length, "token")} read by the engine${time}.`;
  if (cut) return `${forced} The text has ${count(cut)}; the rest exceeds the context.`;
  if (!segment) return forced;
  const all = context.answer?.tokens ?? [];
  const written = all.slice(segment.base, segment.base + segment.nTokens);
  const errors = written.map(({ logprob }, i) => Math.abs(logprob + (tokens[from + i].loss ?? NaN)));
  const off = Math.max(...errors, 0);
  const within = off ? off.toExponential(0) : "0";
  return `${forced} The answer's log-probabilities match the run within ${within}.`;
}

// ---- layout ----------------------------------------------------------------------------------

function buildSide() {
  const box = el("div", "column ls-side");
  choices = newSegmented({
    legend: "Text",
    name: "look-loss",
    options: [
      ["answer", "This answer"],
      ["own", "Any text"],
    ],
    onChange(value) {
      wanted = value;
      changed("look");
    },
  });
  box.append(choices);
  field = box.appendChild(el("textarea"));
  field.id = "loss-text";
  field.setAttribute("aria-label", "Text");
  field.placeholder = "Type or paste a text";
  field.addEventListener("input", () => changed("look"));
  figures = box.appendChild(el("table"));
  canvas = box.appendChild(el("canvas", "ls-chart"));
  canvas.setAttribute("role", "img");
  new ResizeObserver(() => changed("look")).observe(canvas);
  return box;
}

function buildText() {
  const box = el("div", "ls-read");
  const words = box.appendChild(el("p", "ls-text"));
  words.setAttribute("role", "group");
  words.setAttribute("aria-label", "Tokens by loss");
  problem = box.appendChild(el("p", "ls-problem optional"));
  problem.setAttribute("role", "status");
  wait.box.hidden = true;
  wait.bar.setAttribute("aria-label", "Tokens read");
  wait.box.append(wait.bar, wait.says, wait.go);
  box.append(wait.box);
  text = new LossText(words, look, choose);
  return box;
}

function buildToken() {
  const box = el("div", "ls-token");
  one = new LossToken(box, (i) => {
    choose(i);
    text.show(i);
  });
  return box;
}

// ---- focus -----------------------------------------------------------------------------------

/**
 * Number of the token in the core sample, which focuses it too; null if it is not there.
 *
 * @param {number} i
 */
function numberInCore(i) {
  const { answer } = context;
  const segment = reading?.segment;
  return answer && segment ? indexAt({ answer, segment }, i) : null;
}

/** @param {number | null} i */
function look(i) {
  if (i === hovered) return;
  hovered = i;
  const number = i === null ? null : numberInCore(i);
  if (i === null || number !== null) point(number);
  drawLooked();
}

/** @param {number} i */
function choose(i) {
  chosen = i;
  hovered = null;
  const number = numberInCore(i);
  if (number !== null) pin(number);
  drawLooked();
}

/** Position of the token whose details are shown. @param {Reading} reading */
function looked({ tokens, segment, from }) {
  const { index, token, answer } = context;
  if (hovered !== null) return hovered;
  const focused = token?.segment ?? answer?.promptSegment;
  if (segment && index !== null && focused === segment) {
    const at = index < 0 ? from + index : from + index - segment.base;
    if (chosen === null || numberInCore(chosen) !== null) return at;
  }
  return chosen ?? hardest(tokens, 0, 1)[0] ?? 0;
}

// ---- drawing ---------------------------------------------------------------------------------

function draw() {
  const tokens = reading?.tokens ?? [];
  text.draw(tokens);
  drawFigures();
  const from = reading?.from ?? 0;
  one.drawHardest(tokens, from, from ? "Highest loss in the answer" : "Highest loss");
  drawLooked();
}

function drawLooked() {
  const tokens = reading?.tokens ?? [];
  const at = reading ? Math.min(looked(reading), tokens.length - 1) : -1;
  text.mark(at);
  one.draw(tokens, at, { nameOf, vocabulary: context.hello.model.vocab_size });
  const mean = reading ? figuresOf(tokens).mean : NaN;
  const summary = reading ? `, mean ${mean.toFixed(2)} nats` : "";
  canvas.setAttribute("aria-label", `Histogram of losses${summary}`);
  drawHistogram(canvas, tokens, mean, tokens[at]?.loss ?? null);
}

/** @param {number} id */
function nameOf(id) {
  const own = reading?.tokens.find((token) => token.id === id)?.text;
  return reading?.texts[id] ?? own ?? `id ${id}`;
}

/** @param {number | null} value */
const thousandths = (value) => (value === null ? "–" : value.toFixed(3));
/** @type {[name: string, value: (figures: ReturnType<typeof figuresOf>) => string][]} */
const FIGURES = [
  ["tokens", ({ tokens }) => count(tokens)],
  ["mean loss, nats", ({ mean }) => thousandths(mean)],
  ["perplexity", ({ perplexity }) => figure(perplexity)],
  ["bits per byte", ({ perByte }) => thousandths(perByte)],
  ["bits per character", ({ perCharacter }) => thousandths(perCharacter)],
];

function drawFigures() {
  const { tokens = [], from = 0 } = reading ?? {};
  const whole = { all: tokens, prompt: tokens.slice(0, from), answer: tokens.slice(from) };
  const parts = from ? whole : { text: tokens };
  const columns = Object.entries(parts)
    .map(([name, some]) => ({ name, found: figuresOf(some) }))
    .filter(({ name, found }) => (reading?.info ? found.tokens : !from || name === "answer"));
  const table = newTable("ls-figures", "Loss by part", ["", ...numeric(columns.map(({ name }) => name))]);
  for (const [name, value] of FIGURES)
    addRow(table, [name, ...columns.map(({ found }) => (found.tokens ? value(found) : "–"))]);
  figures.replaceWith(table);
  figures = table;
}
