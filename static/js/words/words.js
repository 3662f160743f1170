// The search dialog (`/`): finds words of the glossary, instruments, sampling settings and lessons, and
// tensors and conversations by name. A button of each result opens its place on the page.

import { readEntries } from "../conversations/database.js";
import { nameOf } from "../conversations/drawer-row.js";
import { openConversation } from "../conversations/library.js";
import { fold, wordsOf } from "../conversations/search.js";
import { startLesson } from "../lessons/entry.js";
import { LESSONS } from "../lessons/list.js";
import { openByName } from "../look/frame.js";
import { INSTRUMENTS } from "../look/instruments.js";
import { askInventory } from "../look/weights/data.js";
import { SETTINGS, SETTING_BY_NAME } from "../settings/sampling-settings.js";
import { state } from "../state.js";
import { byId, el, newButton, targetOf } from "../ui/dom.js";
import { fetchCode } from "../ui/fetch-code.js";
import { count } from "../ui/format.js";

/**
 * A result: a word of the glossary, or something on the page that has a name.
 *
 * `lesson`, `tensor`, `chat`: its name or id if it is one
 *
 * @typedef {import("../glossary/glossary.js").Word & {lesson?: string, tensor?: string, chat?: string}} Word
 */

/** @type {Word[]} */
let words = [];
/** Tensors and conversations, as they were when the dialog was opened. @type {Word[]} */
let named = [];

/** Most tensors and conversations that are listed. */
const MAX_NAMED = 40;

/** Open the dialog, with `query` typed in. @param {string} [query] */
export async function openWords(query = "") {
  if (!words.length) words = await allWords();
  byId("words-search").value = query;
  draw();
  byId("words").showModal();
  // In a field with a text Escape would clear it; what was asked for is closed at once.
  if (query) byId("words-list").focus();
  named = [...(await tensors()), ...(await conversations())];
  if (byId("words-search").value) draw();
}

export function setUpWords() {
  byId("words-open").addEventListener("click", () => openWords());
  document.addEventListener("click", (event) => {
    const term = /** @type {HTMLElement | null} */ (targetOf(event).closest("[data-term]"));
    if (term) openWords(term.dataset.term);
  });
  byId("words-search").addEventListener("input", draw);
  byId("words-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const first = found()[0];
    if (first) go(first);
  });
  byId("words").addEventListener("click", (event) => {
    if (event.target === byId("words")) byId("words").close();
  });
}

/** Return glossary, instruments, settings and lessons; the glossary is loaded when it is first asked for. */
async function allWords() {
  const { GLOSSARY } = await import("../glossary/glossary.js");
  const known = new Set(GLOSSARY.map(({ word }) => fold(word)));
  /** @type {Word[]} */
  const instruments = INSTRUMENTS.map(({ name, title, what }) => ({ word: title, says: what, place: name }));
  const settings = SETTINGS.map(({ name, label, help }) => ({ word: label, says: help, place: name }));
  /** @type {Word[]} */
  const lessons = LESSONS.map(({ name, question, measures }) => ({
    word: question,
    says: `A lesson: you measure ${measures}.`,
    lesson: name,
  }));
  const others = [...instruments, ...settings].filter(({ word }) => !known.has(fold(word)));
  return [...GLOSSARY, ...others, ...lessons];
}

/** @returns {Promise<Word[]>} */
async function tensors() {
  const model = state.hello?.model.name;
  if (!model) return [];
  try {
    return (await askInventory(model)).tensors.map(({ name, article, shape, kind }) => ({
      word: name,
      says: `A tensor of ${model}: ${kind}, ${shape.join(" × ")}.`,
      also: [article].filter(Boolean),
      tensor: name,
    }));
  } catch {
    return []; // Weights says why there is no list
  }
}

/** @returns {Promise<Word[]>} */
async function conversations() {
  try {
    return (await readEntries()).map((entry) => ({
      word: nameOf(entry) || "Conversation",
      says: `A conversation from ${new Date(entry.updated).toLocaleDateString()}.`,
      chat: entry.id,
    }));
  } catch {
    return []; // the list of conversations says why
  }
}

/** Return the results: words, exact names and beginnings first, then tensors and conversations. */
function found() {
  const query = wordsOf(byId("words-search").value);
  /** @param {Word} one */
  const text = ({ word, says, also = [], file = "" }) => fold([word, says, ...also, file].join("\n"));
  /** @param {Word} one */
  const isFound = (one) => query.every((part) => text(one).includes(part));
  const things = query.length ? named.filter(({ word, also = [] }) => isNamed([word, ...also], query)) : [];
  /** @param {Word} one */
  const rank = ({ word, also = [] }) => {
    const at = [word, ...also].map((name) => fold(name).indexOf(query[0] ?? ""));
    const isWhole = [word, ...also].some((name) => fold(name) === query.join(" "));
    return isWhole ? -1 : at.includes(0) ? 0 : Math.max(...at) > 0 ? 1 : 2;
  };
  const ranked = words.filter(isFound).toSorted((a, b) => rank(a) - rank(b));
  return [...ranked, ...things.slice(0, MAX_NAMED)];
}

/** Does one of the names contain every word of the search? @param {string[]} names @param {string[]} query */
const isNamed = (names, query) => names.some((name) => query.every((part) => fold(name).includes(part)));

function draw() {
  const hits = found();
  byId("words-found").value = hits.length ? `${count(hits.length)} found` : "nothing found";
  byId("words-list").replaceChildren(...hits.map(entryOf));
}

/** @param {Word} word */
function entryOf(word) {
  const item = el("li");
  const { says, also = [], file, here } = word;
  item.append(el("dfn", "", word.word));
  if (here && state.hello) item.append(el("span", "word-here", here(state.hello)));
  if (placeName(word)) item.append(newButton(placeName(word), () => go(word)));
  item.append(el("p", "", says));
  if (also.length || file) {
    const names = item.appendChild(el("p", "word-names", also.join(", ")));
    if (file) names.append(also.length ? " · " : "", el("code", "", file));
  }
  return item;
}

/** Return the name of the place that shows a word; "" if the page has none for this model. @param {Word} word */
function placeName({ place = "", lesson, tensor, chat }) {
  if (lesson) return "Begin";
  if (tensor) return "Weights";
  if (chat) return "Open";
  const instrument = INSTRUMENTS.find(({ name }) => name === place);
  if (instrument) return !instrument.fits || (state.hello && instrument.fits(state.hello)) ? instrument.title : "";
  return fieldOf(place) ? (SETTING_BY_NAME[place]?.label ?? place) : "";
}

/** Return the field of a setting. @param {string} name */
const fieldOf = (name) => document.getElementById(`n-${name}`) ?? document.getElementById(name);

/** Open the place of a word. @param {Word} word */
async function go({ place = "", lesson, tensor, chat }) {
  byId("words").close();
  if (lesson) return void startLesson(lesson);
  if (chat) return openConversation(chat);
  if (tensor && state.hello) {
    const { showTensor } = await fetchCode(() => import("../look/weights/weights.js"));
    openByName("weights");
    return showTensor(state.hello, tensor);
  }
  if (openByName(place)) return undefined;
  const field = fieldOf(place);
  field?.closest("details")?.setAttribute("open", "");
  field?.focus();
  return undefined;
}
