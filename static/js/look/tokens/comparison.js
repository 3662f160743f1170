// View of Tokens: the same texts in several tokenizers, and what a larger vocabulary costs.

import { withFiles } from "../../chat/attachments.js";
import { tokenize } from "../../net/inspect.js";
import { changed } from "../../state.js";
import { byId, el, setVars } from "../../ui/dom.js";
import { bytes, count } from "../../ui/format.js";
import { addRow, newTable } from "../shared/table.js";
import { FAMILIES, loadFamily, VOCAB_SIZE } from "./families.js";
import { SAMPLES } from "./samples.js";
import { drawTradeOff } from "./trade-off.js";

/** Bytes of a number of the embedding table, in 16 bits. */
const NUMBER_BYTES = 2;
const BYTES_NAME = "Bytes";
const COLUMNS = [
  "tokenizer",
  "vocabulary",
  "embedding table (bytes)",
  "text",
  "words",
  "tokens",
  "tokens per word",
  "price per million words",
];
const composer = byId("prompt");
const utf8 = new TextEncoder();

/** Tokens of the samples by the model, by its name. @type {Map<string, Promise<number>>} */
const counted = new Map();
/** @type {{texts: typeof SAMPLES, tokenizers: ComparedTokenizer[], dModel: number} | null} */
let found = null;
/** Tokens of all samples by byte-level BPE, by the size of its vocabulary. @type {[number, number][] | null} */
let curve = null;

/** Elements. */
const at = {
  price: el("input"),
  matrix: el("div", "tk-matrix"),
  chart: el("canvas", "tk-chart"),
};

/** @type {InstrumentView<Focus>} */
export const comparison = {
  name: "comparison",
  label: "Tokenizers",

  setUp(root) {
    const side = root.appendChild(el("div", "column tk-typed"));
    side.append(
      el(
        "p",
        "tk-how",
        "One short text in five languages, and some code. Four small tokenizers, one of each family, were " +
          "trained on other texts in these languages, each to 2,000 tokens.",
      ),
    );
    const label = el("label", "tk-field", "Price per million tokens");
    Object.assign(at.price, { type: "number", min: "0", step: "any", inputMode: "decimal", id: "tk-price" });
    label.append(at.price);
    at.price.addEventListener("input", () => changed("look"));
    side.append(label, el("p", "tk-how", "With a price, the table also gives that of a million words."));
    const main = root.appendChild(el("div", "tk-compared"));
    at.matrix.tabIndex = 0;
    at.matrix.setAttribute("role", "group");
    at.matrix.setAttribute("aria-label", "Tokens per word");
    at.chart.setAttribute("role", "img");
    main.append(at.matrix, at.chart);
  },

  async show({ hello: { model, limits } }) {
    const own = withFiles(composer.value.trim());
    const fits = own && JSON.stringify(own).length < 0.9 * limits.message_bytes;
    const texts = fits ? [...SAMPLES, { name: "Your prompt", text: own }] : SAMPLES;
    const tokenizers = await compare(model, texts);
    found = { texts, tokenizers, dModel: model.hidden_size };
    draw(found);
    curve ??= (await loadFamily("byte-level-bpe")).countsByVocabulary(SAMPLES.map(({ text }) => text));
    drawTradeOff(
      at.chart,
      tokenizers.map((one) => pointOf(one, model.hidden_size)),
      curve.map(([vocabSize, n]) => ({ tokens: n, bytes: tableBytes(vocabSize, model.hidden_size) })),
    );
    return (
      "Counted by the tokenizers themselves. A word ends at a space. Embedding table: vocabulary × " +
      `${count(model.hidden_size)} numbers (d_model of this model) × ${NUMBER_BYTES} bytes.`
    );
  },

  table() {
    if (!found) return { columns: COLUMNS, rows: [] };
    const { texts, tokenizers, dModel } = found;
    const rows = tokenizers.flatMap(({ name, vocabSize, counts }) =>
      texts.map(({ name: text, text: content }, i) => {
        const perWord = counts[i] / wordsOf(content);
        const size = tableBytes(vocabSize, dModel);
        return [name, vocabSize, size, text, wordsOf(content), counts[i], perWord, priceOf(perWord)];
      }),
    );
    return { columns: COLUMNS, rows };
  },
};

/** @param {string} text */
const wordsOf = (text) => text.split(/\s+/).filter(Boolean).length;

/** @param {number} vocabSize @param {number} dModel */
const tableBytes = (vocabSize, dModel) => vocabSize * dModel * NUMBER_BYTES;

/** Price of a million words; null unless a price of tokens is given. @param {number} perWord */
function priceOf(perWord) {
  const price = at.price.value === "" ? NaN : Number(at.price.value);
  return price >= 0 ? price * perWord : null;
}

/**
 * @param {ToPage.PageModelInfo} model
 * @param {typeof SAMPLES} texts
 * @returns {Promise<ComparedTokenizer[]>}
 */
async function compare(model, texts) {
  /** @type {ComparedTokenizer[]} */
  const compared = [
    { name: model.name, vocabSize: model.vocab_size, counts: [] },
    ...FAMILIES.map(({ title }) => ({ name: title, vocabSize: VOCAB_SIZE, counts: [] })),
    { name: BYTES_NAME, vocabSize: 256, counts: [] },
  ];
  for (const { text } of texts) {
    compared[0].counts.push(await countOfModel(model.name, text));
    for (const [i, { name }] of FAMILIES.entries()) {
      const tokenizer = await loadFamily(name);
      compared[i + 1].counts.push(tokenizer.encode(text, { bos: false, specials: false }).length);
    }
    compared[FAMILIES.length + 1].counts.push(utf8.encode(text).length);
  }
  return compared;
}

/**
 * Return the tokens of a text by the model; those of a sample are asked once.
 *
 * @param {string} model
 * @param {string} text
 */
function countOfModel(model, text) {
  const key = `${model}\n${text}`;
  const known = counted.get(key);
  if (known) return known;
  const asked = tokenize({ text }).then(({ plain }) => plain.n_tokens);
  if (SAMPLES.some((sample) => sample.text === text)) {
    counted.set(key, asked);
    asked.catch(() => counted.delete(key));
  }
  return asked;
}

/** The tokenizer as a point of the chart. @param {ComparedTokenizer} tokenizer @param {number} dModel */
const pointOf = ({ name, vocabSize, counts }, dModel) => ({
  name,
  tokens: counts.slice(0, SAMPLES.length).reduce((sum, n) => sum + n, 0),
  bytes: tableBytes(vocabSize, dModel),
});

/** @param {NonNullable<typeof found>} all */
function draw({ texts, tokenizers, dModel }) {
  const table = newTable("", "Tokens per word", [
    "Tokenizer",
    ...texts.map(({ name }) => /** @type {[string, string]} */ ([name, "tk-bar"])),
    "Vocabulary",
    "Embedding table",
  ]);
  const words = texts.map(({ text }) => wordsOf(text));
  const most = Math.max(...tokenizers.slice(0, -1).flatMap(({ counts }) => counts.map((n, i) => n / words[i])));
  for (const { name, vocabSize, counts } of tokenizers) {
    const perWord = counts.map((n, i) => n / words[i]);
    const stored = [count(vocabSize), bytes(tableBytes(vocabSize, dModel))];
    const row = addRow(table, [name, ...perWord.map(written), ...stored]);
    perWord.forEach((n, i) => setVars(row.cells[i + 1], { "--share": Math.min(1, n / most) }));
  }
  at.matrix.replaceChildren(table);
}

/** Tokens per word, and their price if one is known. @param {number} perWord */
function written(perWord) {
  const node = el("span", "", perWord.toFixed(2));
  const price = priceOf(perWord);
  if (price !== null) node.append(el("small", "", `${price.toFixed(2)} per M words`));
  return node;
}
