// View of Tokens: how a typed word becomes tokens, step by step.

import { latest, segment } from "../../net/inspect.js";
import { changed } from "../../state.js";
import { el, setVars } from "../../ui/dom.js";
import { count, plural } from "../../ui/format.js";
import { FAMILIES, segmentBy } from "./families.js";
import { face } from "./pieces.js";

/** @typedef {Map<number, ToPage.Piece>} PiecesById */

const EXAMPLE = "unbelievably";
const OWN = "";
const MAX_CHARS = 100;

/** What an algorithm does, in a sentence. @type {Record<string, string>} */
const HOW = {
  BPE:
    "BPE begins with characters or bytes. In each step, the pair of neighbours that is first in the list " +
    "of merges becomes one token. The rank is the place in that list: pairs that were frequent in " +
    "training come first.",
  Unigram:
    "Every piece has a log-probability. Of all ways to cut the word into pieces, Unigram takes the one with " +
    "the greatest sum: the most likely one.",
  WordPiece:
    "WordPiece takes the longest piece of its vocabulary that the word begins with, then goes on with the " +
    "rest. Pieces inside a word are written with “##”.",
  WordLevel: "Every word of the vocabulary is a token, and any other word is unknown.",
};

const COLUMNS = ["word", "step", "rank", "log-probability", "token", "id", "chosen", "tokens after it"];

/** @type {ToPage.Segmented | null} */
let answer = null;
let answered = "";

/** Elements. */
const at = {
  field: el("input", "tk-word-field"),
  by: el("select"),
  how: el("p", "tk-how"),
  counts: el("p", "tk-how"),
  list: el("div", "tk-list tk-steps"),
};

/** @type {InstrumentView<Focus>} */
export const word = {
  name: "word",
  label: "Word",

  setUp(root) {
    const side = root.appendChild(el("div", "column tk-typed"));
    Object.assign(at.field, { value: EXAMPLE, maxLength: MAX_CHARS, spellcheck: false, id: "tk-word" });
    at.by.append(new Option("this model", OWN));
    at.by.append(...FAMILIES.map(({ title, name }) => new Option(title, name)));
    at.by.id = "tk-by";
    side.append(labelled("Word", at.field), labelled("Tokenizer", at.by), at.how, at.counts);
    root.append(at.list);
    at.list.tabIndex = 0;
    at.list.setAttribute("role", "group");
    at.list.setAttribute("aria-label", "Steps");
    for (const control of [at.field, at.by]) control.addEventListener("input", () => changed("look"));
  },

  async show({ hello }) {
    const text = at.field.value;
    const by = at.by.value;
    at.by.options[0].text = `${hello.model.name}, this model`;
    const asked = JSON.stringify([text, by, hello.model.name]);
    if (asked !== answered || !answer) {
      answer = by === OWN ? await latest("word", { text }, segment) : await segmentBy(by, text);
      answered = asked;
      draw(answer);
    }
    const family = FAMILIES.find(({ name }) => name === by);
    return family
      ? `${family.title}, ${family.like}: computed in this page by a tokenizer of 2,000 tokens, trained on ` +
          "31 kB of text."
      : "Computed from this model’s tokenizer. The last step is what it gives for this text.";
  },

  table: () => ({ columns: COLUMNS, rows: answer ? rowsOf(answer) : [] }),
};

/** @param {string} text @param {HTMLInputElement | HTMLSelectElement} control */
function labelled(text, control) {
  const label = el("label", "tk-field", text);
  label.append(control);
  return label;
}

/** @param {ToPage.Segmented} found */
function draw({ algorithm, words, pieces }) {
  const byId = new Map(pieces.map((piece) => [piece.id, piece]));
  at.how.textContent = HOW[algorithm] ?? "";
  const nIds = words.reduce((sum, { ids }) => sum + ids.length, 0);
  const nMerges = words.reduce((sum, { merges }) => sum + merges.length, 0);
  const merged = algorithm === "BPE" ? ` after ${plural(nMerges, "merge")}` : "";
  at.counts.textContent = words.length
    ? `${plural(nIds, "token")}${merged}.`
    : "Type a word to see its tokens.";
  at.list.replaceChildren(...words.map((one) => drawWord(one, byId)));
}

/** @param {ToPage.WordSteps} steps @param {PiecesById} byId */
function drawWord(steps, byId) {
  const box = el("section", "tk-steps-of");
  box.append(el("h3", "", steps.word));
  if (steps.candidates.length) box.append(lattice(steps), line("tokens", steps.ids, byId));
  else {
    const rows = rowsOfMerges(steps);
    for (const { rank, ids, made } of rows)
      box.append(line(rank === null ? "start" : count(rank), ids, byId, made));
  }
  return box;
}

/**
 * Return the tokens after each merge, those before the first one included.
 *
 * @param {ToPage.WordSteps} steps
 */
function rowsOfMerges({ symbols, merges, ids }) {
  let now = symbols.length ? symbols : ids;
  /** @type {{rank: number | null, ids: number[], made: number}[]} */
  const rows = [{ rank: null, ids: now, made: -1 }];
  for (const { rank, at: place, id } of merges) {
    now = now.toSpliced(place, 2, id);
    rows.push({ rank, ids: now, made: place });
  }
  return rows;
}

/**
 * @param {string} name
 * @param {number[]} ids
 * @param {PiecesById} byId
 * @param {number} [made]
 */
function line(name, ids, byId, made = -1) {
  const row = el("div", "tk-step");
  const list = el("ol");
  ids.forEach((id, i) => {
    const item = el("li", i === made ? "pc on" : "pc");
    const piece = byId.get(id) ?? { id, text: "", bytes: "", special: false };
    item.append(face(piece), el("span", "id", String(id)));
    list.append(item);
  });
  row.append(el("span", "tk-rank", name), list);
  return row;
}

/** Draw pieces over the characters of a word. @param {ToPage.WordSteps} steps */
function lattice({ word: text, candidates }) {
  const chars = Array.from(text);
  const box = el("div", "tk-lattice");
  setVars(box, { "--n": chars.length });
  box.append(...chars.map((char) => el("b", "", char)));
  const ordered = candidates.toSorted((a, b) => Number(b.best) - Number(a.best));
  for (const { first, end, id, score, best } of candidates[0].score === null ? candidates : ordered) {
    const piece = chars.slice(first, end).join("");
    const cell = el("span", best ? "best" : id === null ? "none" : "", piece);
    if (score !== null) cell.append(el("small", "", score.toFixed(1)));
    if (score !== null) cell.title = `${piece}: log-probability ${score.toFixed(3)}`;
    else cell.title = `${piece}: ${id === null ? "not in the vocabulary" : "found"}`;
    cell.style.gridColumn = `${first + 1} / ${end + 1}`;
    box.append(cell);
  }
  return box;
}

/** @param {ToPage.Segmented} found @returns {unknown[][]} */
function rowsOf({ words, pieces }) {
  const texts = new Map(pieces.map(({ id, text }) => [id, text]));
  /** @param {number[]} ids */
  const joined = (ids) => ids.map((id) => texts.get(id) ?? "").join(" | ");
  return words.flatMap((steps) => {
    if (steps.candidates.length)
      return steps.candidates.map(({ first, end, id, score, best }, i) => {
        const piece = Array.from(steps.word).slice(first, end).join("");
        return [steps.word, i, null, score, piece, id, best ? "yes" : "", best ? joined(steps.ids) : ""];
      });
    return rowsOfMerges(steps).map(({ rank, ids, made }, i) => {
      const id = made < 0 ? null : ids[made];
      return [steps.word, i, rank, null, id === null ? "" : texts.get(id), id, "", joined(ids)];
    });
  });
}
