// View of Attention: one sentence in a decoder and in an encoder. Who may attend to whom, who attends to whom,
// what it costs and what is kept.

import { changed } from "../../state.js";
import { el, newButton, setText } from "../../ui/dom.js";
import { bytes, count, duration, plural, sentence } from "../../ui/format.js";
import { newSegmented } from "../../ui/segmented.js";
import { addRow, clearRows, newTable } from "../shared/table.js";
import { ShareLegend } from "../shared/share-colours.js";
import { Figure, rowsOf } from "./figure.js";
import { nPairs, readDecoder, readEncoder } from "./readings.js";

/** @typedef {import("./readings.js").Reading} Reading */

const EXAMPLE = "The animal didn't cross the street because it was too tired";
const NO_ENCODER = "To compare it with an encoder, press the model’s name at the top of the page, then “Change the model…”, and load an embedding model, or start the server with --embedding-model all-MiniLM-L6-v2.";

/** What the matrices show: the mask, or the weights. @type {"mask" | "weights"} */
let shows = "mask";
/** @type {Figure[]} */
let figures = [];
let running = false;
let problem = "";
/** The sentence that was read. */
let readText = "";
let leaving = new AbortController();

/** Elements. */
const at = {
  field: el("input"),
  go: newButton("Read", read, "send"),
  one: el("p", "mk-one"),
  table: newTable("mk-table", "What it takes", ["", ["decoder", "n"], ["encoder", "n"]]),
  legend: new ShareLegend(),
};

/** @type {InstrumentView<TokenFocus>} */
export const masks = {
  name: "masks",
  label: "Decoder and encoder",

  setUp(root) {
    figures = ["Decoder", "Encoder"].map((name) => {
      const id = name.toLowerCase();
      return new Figure({ id, name, label: `Attention of the ${id}`, look: draw });
    });
    const bar = root.appendChild(el("div", "mk-bar"));
    Object.assign(at.field, { value: EXAMPLE, maxLength: 200, spellcheck: false, ariaLabel: "Sentence" });
    at.field.addEventListener("keydown", (event) => {
      if (event.key === "Enter") read();
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
    bar.append(at.field, at.go, newSegmented({ legend: "Shown", name: "mk-shows", options, value: shows, onChange }), at.legend.node);
    const side = el("div", "mk-side");
    at.one.setAttribute("role", "status");
    side.append(at.one, at.table);
    root.append(...figures.map(({ node }) => node), side);
  },

  show({ hello }) {
    now = hello;
    draw();
    drawTable(hello);
    if (problem) return sentence(problem);
    if (!readText) return "Nothing is computed until you read a sentence.";
    return `Read by the loaded model one token at a time, by the encoder at once: “${readText}”`;
  },

  hide: () => leaving.abort(),

  table: () => ({
    columns: ["model", "from", "to", "may attend", "weight"],
    rows: figures.flatMap((figure) => rowsOf(figure, figure.reading?.model ?? "")),
  }),
};

/** @type {ToPage.Hello | null} */
let now = null;

/** Read the sentence, or stop. */
async function read() {
  const text = at.field.value.trim();
  if (!now || !text) return;
  if (running) return leaving.abort();
  leaving = new AbortController();
  running = true;
  problem = "";
  changed("look");
  try {
    const found = [await readDecoder(text, now, leaving.signal), now.embedding ? await readTimed(text) : null];
    figures.forEach((figure, i) => figure.set(found[i]));
    readText = text;
  } catch (error) {
    problem = leaving.signal.aborted ? "" : /** @type {Problem} */ (error).message;
  }
  running = false;
  changed("look");
}

/** Read the sentence in the encoder twice: the first pass of a length compiles its kernels. @param {string} text */
async function readTimed(text) {
  await readEncoder(text);
  return readEncoder(text);
}

function draw() {
  setText(at.go, running ? "Stop" : "Read");
  for (const figure of figures) figure.draw(shows === "mask", figure.reading?.model);
  at.legend.node.hidden = shows === "mask" || !readText;
  at.legend.draw();
  const words = figures.map((figure) => figure.words()).find((each) => each);
  setText(at.one, words ?? (now?.embedding || !readText ? HOW : `${HOW} ${NO_ENCODER}`));
}

const HOW =
  "Each row is a token that attends, each column one that is attended to. In a decoder a token sees those before it, " +
  "so that it can be trained to predict the next one; in an encoder all tokens see each other.";

/** @param {ToPage.Hello} hello */
function drawTable(hello) {
  const [decoder, encoder] = figures.map(({ reading }) => reading);
  clearRows(at.table);
  at.table.hidden = !decoder;
  if (!decoder) return;
  const n = decoder.tokens.length;
  const kept = (hello.model.kv_formats[hello.model.kv_dtype] / hello.limits.block_tokens) * n;
  const both = (/** @type {(reading: Reading) => string} */ value) => [value(decoder), encoder ? value(encoder) : "–"];
  addRow(at.table, ["tokens", ...both(({ tokens }) => count(tokens.length))]);
  addRow(at.table, ["pairs that may attend", ...both((reading) => count(nPairs(reading)))]);
  addRow(at.table, ["a text is read", "token by token as it is written; a prompt at once", "all at once"]);
  addRow(at.table, ["keys and values kept", bytes(kept), "none"]);
  addRow(at.table, ["one more token", `1 row, ${plural(n + 1, "pair")}`, encoder ? `all again, ${plural((encoder.tokens.length + 1) ** 2, "pair")}` : "all again"]);
  addRow(at.table, ["this text took", ...both(({ ms }) => duration(ms))]);
}
