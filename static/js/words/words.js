// The dialog of words: a search over the glossary, instruments, sampling settings and lessons. A press
// opens the place on the page that shows what was found.

import { fold, wordsOf } from "../conversations/search.js";
import { startLesson } from "../lessons/entry.js";
import { LESSONS } from "../lessons/list.js";
import { openByName } from "../look/frame.js";
import { INSTRUMENTS } from "../look/instruments.js";
import { SETTINGS, SETTING_BY_NAME } from "../settings/sampling-settings.js";
import { state } from "../state.js";
import { byId, el, newButton } from "../ui/dom.js";
import { plural } from "../ui/format.js";

/** @typedef {import("./glossary.js").Word} Word */

/** @type {Word[]} */
let words = [];

/** Open the dialog, with the search empty. */
export async function openWords() {
  if (!words.length) words = await allWords();
  byId("words-search").value = "";
  draw();
  byId("words").showModal();
}

export function setUpWords() {
  byId("words-open").addEventListener("click", openWords);
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
  const { GLOSSARY } = await import("./glossary.js");
  const known = new Set(GLOSSARY.map(({ word }) => fold(word)));
  /** @type {Word[]} */
  const instruments = INSTRUMENTS.map(({ name, title, what }) => ({ word: title, says: what, place: name }));
  const settings = SETTINGS.map(({ name, label, help }) => ({ word: label, says: help, place: name }));
  /** @type {Word[]} */
  const lessons = LESSONS.map(({ name, question, measures }) => ({
    word: question,
    says: `A lesson, in which you measure ${measures}.`,
    lesson: name,
  }));
  const others = [...instruments, ...settings].filter(({ word }) => !known.has(fold(word)));
  return [...GLOSSARY, ...others, ...lessons];
}

/** Return the words that the search finds: first those whose name begins with it, or has it. */
function found() {
  const query = wordsOf(byId("words-search").value);
  /** @param {Word} one */
  const text = ({ word, says, also = [], file = "" }) => fold([word, says, ...also, file].join("\n"));
  const hits = words.filter((one) => query.every((part) => text(one).includes(part)));
  /** @param {Word} one */
  const rank = ({ word, also = [] }) => {
    const at = [word, ...also].map((name) => fold(name).indexOf(query[0] ?? ""));
    return at.includes(0) ? 0 : Math.max(...at) > 0 ? 1 : 2;
  };
  return hits.toSorted((a, b) => rank(a) - rank(b));
}

function draw() {
  const hits = found();
  byId("words-found").value = hits.length ? plural(hits.length, "word") : "no word";
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
function placeName({ place = "", lesson }) {
  if (lesson) return "Begin";
  const instrument = INSTRUMENTS.find(({ name }) => name === place);
  if (instrument) return !instrument.fits || (state.hello && instrument.fits(state.hello)) ? instrument.title : "";
  return fieldOf(place) ? (SETTING_BY_NAME[place]?.label ?? place) : "";
}

/** Return the field of a setting. @param {string} name */
const fieldOf = (name) => document.getElementById(`n-${name}`) ?? document.getElementById(name);

/** Open the place of a word. @param {Word} word */
function go({ place = "", lesson }) {
  byId("words").close();
  if (lesson) return void startLesson(lesson);
  if (openByName(place)) return undefined;
  const field = fieldOf(place);
  field?.closest("details")?.setAttribute("open", "");
  field?.focus();
  return undefined;
}
