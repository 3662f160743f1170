// View of Attention: a text that an encoder-decoder writes about another one. What it wrote, what each token looked at
// in the text, the three masks, and what each attention costs and keeps.

import { changed } from "../../state.js";
import { el, newButton, setText, setVars } from "../../ui/dom.js";
import { bytes, count, duration, plural, probability, sentence, tokenLabel } from "../../ui/format.js";
import { newSegmented } from "../../ui/segmented.js";
import { shareColour, ShareLegend } from "../shared/share-colours.js";
import { addRow, clearRows, newTable } from "../shared/table.js";
import { Figure, rowsOf } from "./figure.js";
import { nPairs, readingsOf, weightsOf, writeText } from "./readings.js";

/** @typedef {NonNullable<ToPage.Hello["encoder_decoder"]>} ModelInfo */

const EXAMPLE = "translate English to German: The house is wonderful.";
const NO_MODEL =
  "There is no encoder-decoder on this server. Start it with --encoder-decoder-model FOLDER, the folder of a T5, " +
  "Flan-T5, mT5 or UMT5.";
const HOW =
  "The encoder reads the whole text at once. The decoder writes one token at a time: it attends to the tokens before, " +
  "and by cross-attention to the text. Point at a written token, or tap it, to see what it looked at.";

/** What the matrices show: the mask, or the weights. @type {"mask" | "weights"} */
let shows = "weights";
/** @type {Answers.Seq2SeqAnswer | null} */
let answer = null;
/** The text that `answer` is about. */
let readText = "";
let running = false;
let problem = "";
/** Head of cross-attention that is shown; null: the mean of all. @type {number | null} */
let head = null;
/** Written token whose attention to the text is shown. */
let chosen = 0;
/** @type {Record<"encoder" | "decoder" | "cross", Figure>} */
let figures;
/** @type {ModelInfo | null} */
let model = null;

/** Elements. */
const at = {
  none: el("p", "ed-none", NO_MODEL),
  field: el("input"),
  go: newButton("Write", write, "send"),
  legend: new ShareLegend(),
  bar: el("div", "mk-bar"),
  side: el("div", "mk-side ed-side"),
  texts: el("div", "ed-texts"),
  source: el("p", "ed-tokens"),
  written: el("p", "ed-tokens"),
  one: el("p", "mk-one"),
  heads: el("select"),
  table: newTable("mk-table", "What each attention takes", ["", ["encoder", "n"], ["decoder", "n"], ["cross-attention", "n"]]),
};

/** @type {InstrumentView<TokenFocus>} */
export const encoderDecoder = {
  name: "encoder-decoder",
  label: "Encoder–decoder",

  setUp(root) {
    figures = {
      encoder: newFigure("encoder", "Encoder", "Attention of the encoder"),
      cross: newFigure("cross", "Cross-attention", "Cross-attention"),
      decoder: newFigure("decoder", "Decoder", "Attention of the decoder"),
    };
    at.heads.setAttribute("aria-label", "Head of the cross-attention");
    at.heads.addEventListener("change", () => {
      head = at.heads.value === "" ? null : Number(at.heads.value);
      showCross();
      changed("look");
    });
    const choices = el("p", "ed-choices");
    choices.append(figures.cross.choice, at.heads);
    for (const [name, line] of /** @type {const} */ ([["Text", at.source], ["Written", at.written], ["Attends in", choices]]))
      at.texts.append(el("h3", "", name), line);
    at.one.setAttribute("role", "status");
    Object.assign(at.side, { tabIndex: 0, role: "group", ariaLabel: "What was written" });
    at.side.append(at.texts, at.one, at.table);
    root.append(at.none, at.bar, at.side, ...Object.values(figures).map(({ node }) => node));
    setUpBar();
  },

  show({ hello }) {
    model = hello.encoder_decoder;
    draw();
    if (!model) return "";
    drawTable(model);
    if (problem) return sentence(problem);
    if (!answer) return "Nothing is computed until you have a text written.";
    const end = answer.ended ? "" : ", as many as it may write";
    return `Written by ${answer.model}, always the most likely token${end}, about: “${readText}”`;
  },

  table: () => ({
    columns: ["attention", "from", "to", "may attend", "weight"],
    rows: Object.values(figures).flatMap((figure) => rowsOf(figure, figure.name.toLowerCase())),
  }),
};

/** Fill the bar: the text field, the button and what the matrices show. */
function setUpBar() {
  Object.assign(at.field, { value: EXAMPLE, maxLength: 400, spellcheck: false, ariaLabel: "Text to write about" });
  at.field.addEventListener("keydown", (event) => {
    if (event.key === "Enter") write();
  });
  /** @type {["mask" | "weights", string][]} */
  const options = [
    ["mask", "May attend"],
    ["weights", "Attends"],
  ];
  const onChange = (/** @type {"mask" | "weights"} */ value) => {
    shows = value;
    changed("look");
  };
  at.bar.append(at.field, at.go, newSegmented({ legend: "Shown", name: "ed-shows", options, value: shows, onChange }), at.legend.node);
}

/** Have the text written. One token is written first, so that no time that is shown includes compiling kernels. */
async function write() {
  const text = at.field.value.trim();
  if (!model || !text || running) return;
  running = true;
  problem = "";
  changed("look");
  try {
    await writeText(text, 1);
    answer = await writeText(text, null);
    readText = text;
    chosen = 0;
    head = null;
    const options = [new Option("all heads", "")];
    for (let i = 0; i < model.n_heads; i += 1) options.push(new Option(`head ${i}`, String(i)));
    at.heads.replaceChildren(...options);
    const found = readingsOf(answer, model.n_heads, head);
    for (const name of /** @type {const} */ (["encoder", "decoder", "cross"])) figures[name].set(found[name]);
    drawTokens(answer);
  } catch (error) {
    problem = /** @type {Problem} */ (error).message;
  }
  running = false;
  changed("look");
}

/** Show cross-attention of the chosen head, in the layer that is shown already. */
function showCross() {
  const { cross } = figures;
  if (!answer || !model) return;
  cross.reading = readingsOf(answer, model.n_heads, head).cross;
}

/** Create a matrix. A pair in one takes the place of that in another. @param {"encoder" | "decoder" | "cross"} id @param {string} name @param {string} label */
function newFigure(id, name, label) {
  const look = () => {
    const { pair } = figures[id];
    for (const figure of Object.values(figures)) if (figure !== figures[id]) figure.pair = null;
    if (id === "cross" && pair) chosen = pair.from;
    draw();
  };
  return new Figure({ id: `ed-${id}`, name, label, look });
}

/** Make an element of each token. @param {Answers.Seq2SeqAnswer} answer */
function drawTokens({ tokens, written }) {
  at.source.replaceChildren(...tokens.map(({ piece }) => el("span", "ed-token", tokenLabel(piece, "·"))));
  at.written.replaceChildren(
    ...written.map(({ piece }, i) => {
      const choose = () => {
        chosen = i;
        for (const figure of Object.values(figures)) figure.pair = null;
        draw();
      };
      const button = newButton(tokenLabel(piece, "·"), choose, "ed-token");
      button.addEventListener("pointerenter", choose);
      button.addEventListener("focus", choose);
      return button;
    }),
  );
}

function draw() {
  at.none.hidden = Boolean(model);
  at.bar.hidden = at.side.hidden = !model;
  at.texts.hidden = at.legend.node.hidden = !answer;
  at.go.disabled = running;
  setText(at.go, running ? "Writing …" : "Write");
  for (const figure of Object.values(figures)) figure.draw(shows === "mask");
  figures.cross.choice.hidden = false; // of the tokens, too
  at.legend.draw();
  setText(at.one, figures.encoder.words() || figures.decoder.words() || figures.cross.words() || wordsOfChosen() || HOW);
  const { reading, layer } = figures.cross;
  if (!reading) return;
  const weights = weightsOf(reading, layer);
  [...at.source.children].forEach((node, i) =>
    setVars(/** @type {HTMLElement} */ (node), { "--share": shareColour(weights[chosen * reading.keys.length + i]) }),
  );
  [...at.written.children].forEach((node, i) => node.setAttribute("aria-pressed", String(i === chosen)));
}

/** What was measured of the chosen token, and which token of the text it looked at most. */
function wordsOfChosen() {
  const token = answer?.written[chosen];
  const { reading, layer } = figures.cross;
  if (!token || !reading) return "";
  const row = weightsOf(reading, layer).slice(chosen * reading.keys.length, (chosen + 1) * reading.keys.length);
  const most = tokenLabel(reading.keys[row.indexOf(Math.max(...row))], "·");
  const name = tokenLabel(token.piece, "·");
  return `“${name}” was written with probability ${probability(token.probability)} in ${duration(token.ms)}. It looked at “${most}” most.`;
}

/** @param {ModelInfo} info */
function drawTable(info) {
  const { encoder, decoder, cross } = figures;
  clearRows(at.table);
  at.table.hidden = !answer;
  if (!answer || !encoder.reading || !decoder.reading || !cross.reading) return;
  const [n, m] = [answer.tokens.length, answer.written.length];
  const times = answer.written.map(({ ms }) => ms).sort((a, b) => a - b);
  const rows = [
    ["layers", count(info.n_layers), count(info.n_decoder_layers), count(info.n_decoder_layers)],
    ["tokens", count(n), count(m), ""],
    ["pairs that may attend", ...[encoder, decoder, cross].map(({ reading }) => (reading ? count(nPairs(reading)) : ""))],
    ["computed", "at once", "token by token", "with each token; keys and values once"],
    ["keys and values kept", "none", bytes(info.kv_token_bytes * m), bytes(info.kv_token_bytes * n)],
    ["one more token", `all again, ${plural((n + 1) ** 2, "pair")}`, `1 row, ${plural(m + 1, "pair")}`, `1 row, ${plural(n, "pair")}`],
    ["this text took", duration(answer.encode_ms), `${duration(times[Math.floor(m / 2)])} a token`, "part of the decoder’s"],
  ];
  for (const row of rows) addRow(at.table, row);
}
