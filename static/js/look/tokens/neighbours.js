// View of Tokens: the tokens whose vectors in the embedding matrix W_E are nearest to those of a text.

import { inspect, latest, tokenize } from "../../net/inspect.js";
import { changed } from "../../state.js";
import { el } from "../../ui/dom.js";
import { tokenLabel } from "../../ui/format.js";
import { Missing } from "../shared/context.js";
import { addRow, clearRows, newTable, shareBar } from "../shared/table.js";

const EXAMPLE = "The capital of France";
const TOP = 6;
/** Most tokens of a question (gpu/inspection/requests.py). */
const MAX_TOKENS = 32;

/** @type {{token: string, near: {id: number, text: string, cosine: number}[]}[]} */
let found = [];
let answered = "";

/** Elements. */
const at = {
  field: el("input", "tk-word-field"),
  how: el("p", "tk-how"),
  list: el("div", "tk-list tk-near"),
  table: newTable("tk-near-table", "Nearest tokens, by cosine", ["token", ...Array.from({ length: TOP }, (_, i) => String(i + 1))]),
};

/** @type {InstrumentView<Focus>} */
export const neighbours = {
  name: "neighbours",
  label: "Neighbours",

  setUp(root) {
    const side = root.appendChild(el("div", "column tk-typed"));
    const label = el("label", "tk-field", "Text");
    Object.assign(at.field, { value: EXAMPLE, maxLength: 200, spellcheck: false, id: "tk-near" });
    at.field.addEventListener("input", () => changed("look"));
    label.append(at.field);
    side.append(label, at.how);
    at.list.tabIndex = 0;
    at.list.setAttribute("role", "group");
    at.list.setAttribute("aria-label", "Neighbours");
    at.list.append(at.table);
    root.append(at.list);
  },

  async show({ hello }) {
    const text = at.field.value;
    if (!text.trim()) throw new Missing("Type a word to see its neighbours.");
    const asked = JSON.stringify([text, hello.model.name, hello.model.dtype]);
    if (asked !== answered) {
      found = await latest("neighbours", text, nearest);
      answered = asked;
      draw();
    }
    return (
      "Computed by the engine: cosines of the tokens’ vectors with every row of the embedding matrix W_E, as " +
      "it is on the device."
    );
  },

  table: () => ({
    columns: ["token", "rank", "neighbour", "id", "cosine"],
    rows: found.flatMap(({ token, near }) => near.map(({ id, text, cosine }, i) => [token, i + 1, text, id, cosine])),
  }),
};

/**
 * Ask for the neighbours of the tokens of a text, each only once.
 *
 * @param {string} text
 * @returns {Promise<typeof found>}
 */
async function nearest(text) {
  const { plain } = await tokenize({ text });
  const tokens = new Map(plain.tokens.map((piece) => [piece.id, piece.text]));
  const ids = [...tokens.keys()].slice(0, MAX_TOKENS);
  const { info, arrays } = await inspect({ kind: "neighbours", ids, top: TOP + 1 });
  return ids.map((own, row) => {
    const near = Array.from(arrays.ids.values.subarray(row * (TOP + 1), (row + 1) * (TOP + 1)), (id, i) => ({
      id,
      text: info.pieces?.[id] ?? String(id),
      cosine: arrays.cosines.values[row * (TOP + 1) + i],
    }));
    return { token: tokens.get(own) ?? "", near: near.filter(({ id }) => id !== own).slice(0, TOP) };
  });
}

function draw() {
  clearRows(at.table);
  for (const { token, near } of found) {
    const cells = near.map(({ text, cosine }) => {
      const cell = el("span", "tk-neighbour", tokenLabel(text));
      cell.append(el("small", "", cosine.toFixed(2).replace("-", "−")), shareBar(Math.max(0, cosine)));
      return cell;
    });
    addRow(at.table, [el("span", "tk-neighbour", tokenLabel(token)), ...cells]);
  }
  at.how.textContent =
    "Before any layer, a token is its row of the embedding matrix. Tokens that were used alike in training " +
    "have rows that point the same way.";
}
