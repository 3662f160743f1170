// View of Tokens: vectors of whole texts, how close they are, and the plane in which they differ most.

import { ask } from "../../net/ask.js";
import { isLocal } from "../../net/connection.js";
import { latest } from "../../net/inspect.js";
import { changed } from "../../state.js";
import { el, newButton, setVars } from "../../ui/dom.js";
import { plural } from "../../ui/format.js";
import { drawSegmented, newSegmented } from "../../ui/segmented.js";
import { Missing } from "../shared/context.js";
import { cosine, drawPlane, planeOf } from "./plane.js";

/** Most lines that are compared: the matrix stays readable. */
const MAX_LINES = 16;
const EXAMPLES = {
  Sentences: "The cat is asleep on the windowsill.\nA feline naps by the window.\nStock prices fell sharply on Monday.",
  Words: "king\nqueen\nman\nwoman\nParis\nFrance\nBerlin\nGermany\napple\nbanana",
};
const NO_SERVER =
  "The engine in the browser cannot compute vectors of whole texts. Open the page of a server that runs the model.";

/** @type {ComparedTexts | null} */
let found = null;
let answered = "";
/** Which model was chosen. @type {"encoder" | "decoder"} */
let chosen = "encoder";

/** Elements. */
const at = {
  field: el("textarea"),
  choice: newSegmented({
    legend: "Model",
    name: "tokens-embedding-model",
    options: [
      ["encoder", "Embedding model"],
      ["decoder", "Language model"],
    ],
    value: chosen,
    onChange: (wanted) => {
      chosen = wanted;
      changed("look");
    },
  }),
  how: el("p", "tk-how"),
  matrix: el("div", "tk-matrix tk-cosines"),
  plane: el("canvas", "tk-plane"),
};

/** @type {InstrumentView<Focus>} */
export const embeddings = {
  name: "embeddings",
  label: "Embeddings",

  setUp(root) {
    const side = root.appendChild(el("div", "column tk-typed"));
    const label = el("label", "tk-field tk-texts", "Texts, one on each line");
    Object.assign(at.field, { value: EXAMPLES.Sentences, spellcheck: false, id: "tk-texts" });
    at.field.addEventListener("input", () => changed("look"));
    label.append(at.field);
    const examples = el("p", "tk-examples");
    for (const [name, lines] of Object.entries(EXAMPLES))
      examples.append(
        newButton(name, () => {
          at.field.value = lines;
          changed("look");
        }),
      );
    side.append(at.choice, label, examples, at.how);
    const main = root.appendChild(el("div", "tk-compared"));
    at.matrix.tabIndex = 0;
    at.matrix.setAttribute("role", "group");
    at.matrix.setAttribute("aria-label", "Cosines");
    at.plane.setAttribute("role", "img");
    main.append(at.matrix, at.plane);
  },

  async show({ hello }) {
    const encoder = hello.embedding ?? null;
    at.choice.hidden = !encoder;
    drawSegmented(at.choice, chosen);
    if (isLocal()) throw new Missing(NO_SERVER);
    const lines = at.field.value.split("\n").flatMap((line) => line.trim() || []);
    if (!lines.length) throw new Missing("Write a text to see how close it is to others.");
    const texts = lines.slice(0, MAX_LINES);
    const usesEncoder = encoder !== null && chosen === "encoder";
    at.how.textContent =
      (lines.length > MAX_LINES ? `The first ${MAX_LINES} lines are compared. ` : "") +
      (usesEncoder ? `${encoder.name} was trained to put texts of one meaning close together.` : HOW_DECODER) +
      (encoder ? "" : " To compare it with one that was, press the model’s name at the top of the page, then “Change the model…”, and load an embedding model, or start the server with --embedding-model all-MiniLM-L6-v2.");
    const model = usesEncoder ? encoder.name : hello.model.name;
    const pooling = usesEncoder ? {} : { pooling: "mean" };
    const body = { model, input: texts, ...pooling };
    const asked = JSON.stringify([body, usesEncoder ? "" : hello.model.dtype]);
    if (asked !== answered || !found) {
      const { data, usage } = await latest("vectors", body, embed);
      found = compare(texts, data.map(({ embedding }) => embedding), usage.prompt_tokens);
      answered = asked;
      drawMatrix(found);
    }
    drawPlane(at.plane, texts, found.plane);
    const how = usesEncoder
      ? `an encoder of ${plural(encoder.n_layers, "layer")}, the ${POOLED[encoder.pooling]} of its last states`
      : "the mean of its last hidden states";
    return (
      `Computed by ${model} (${how}) from ${plural(found.nTokens, "token")}. Cosine: 1 for ` +
      "the same direction, 0 for a right angle. Plane: principal components (PCA)."
    );
  },

  table() {
    if (!found) return { columns: ["text"], rows: [] };
    const { texts, cosines, plane } = found;
    const columns = ["text", "x", "y", ...texts.map((_, i) => `cosine with ${i + 1}`)];
    return { columns, rows: texts.map((text, i) => [text, ...plane.points[i], ...cosines[i]]) };
  },
};

const HOW_DECODER =
  "A language model is trained to write, not to compare texts: its vectors are all similar, and small " +
  "differences say little.";
/** @type {Record<string, string>} */
const POOLED = { mean: "mean", cls: "first" };

/** @param {unknown} body @returns {Promise<EmbeddingsAnswer>} */
const embed = (body) => ask("v1/embeddings", { method: "POST", body });

/**
 * @param {string[]} texts
 * @param {number[][]} vectors
 * @param {number} nTokens
 * @returns {ComparedTexts}
 */
function compare(texts, vectors, nTokens) {
  const cosines = vectors.map((a) => vectors.map((b) => cosine(a, b)));
  return { texts, cosines, plane: planeOf(vectors), nTokens };
}

/** @param {ComparedTexts} compared */
function drawMatrix({ texts, cosines }) {
  const table = el("table");
  table.append(el("caption", "vh", "Cosines of the vectors of each pair of texts"));
  const head = table.createTHead().insertRow();
  head.append(Object.assign(el("th", "", "Text"), { scope: "col" }));
  texts.forEach((text, i) => head.append(Object.assign(el("th", "", String(i + 1)), { scope: "col", title: text })));
  const body = table.createTBody();
  texts.forEach((text, i) => {
    const row = body.insertRow();
    row.append(Object.assign(el("th", "", `${i + 1}  ${text}`), { scope: "row", title: text }));
    for (const value of cosines[i]) {
      const cell = row.appendChild(el("td", "tk-bar", value.toFixed(2).replace("-", "−")));
      setVars(cell, { "--share": Math.max(0, value) });
    }
  });
  at.matrix.replaceChildren(table);
}
