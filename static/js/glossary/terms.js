// Marks words of the glossary in texts of the page: each is a button that looks it up (words/words.js).

import { el } from "../ui/dom.js";

/** Word of the glossary by each of its names, folded. @type {Map<string, string>} */
const wordByName = new Map();
/** Finds a name, with or without a plural "s". @type {RegExp | null} */
let pattern = null;

/** Load the names; the glossary is fetched once. */
async function load() {
  const { GLOSSARY } = await import("./glossary.js");
  for (const { word, also = [] } of GLOSSARY)
    for (const name of [word, ...also]) wordByName.set(name.toLowerCase(), word);
  const names = [...wordByName.keys()].toSorted((a, b) => b.length - a.length);
  const any = names.map((name) => name.replaceAll(/[.*+?^${}()|[\]\\/]/g, "\\$&")).join("|");
  pattern = new RegExp(`(?<![\\p{L}\\d_-])(${any})s?(?![\\p{L}\\d_-])`, "giu");
}

/**
 * Return a text as nodes, in which the first occurrence of each glossary word is a button.
 *
 * @param {string} text
 * @param {Set<string>} seen  words that have a button already; those of this text are added
 * @returns {(string | HTMLButtonElement)[]}
 */
function termsOf(text, seen) {
  /** @type {(string | HTMLButtonElement)[]} */
  const nodes = [];
  let from = 0;
  for (const match of text.matchAll(/** @type {RegExp} */ (pattern))) {
    const word = wordByName.get(match[1].toLowerCase());
    if (!word || seen.has(word)) continue;
    seen.add(word);
    nodes.push(text.slice(from, match.index), newTerm(match[0], word));
    from = match.index + match[0].length;
  }
  return [...nodes, text.slice(from)];
}

/** Return a button that looks up `word` of the glossary. @param {string} text @param {string} [word] */
export function newTerm(text, word = text) {
  const button = el("button", "term", text);
  button.type = "button";
  button.dataset.term = word;
  button.setAttribute("aria-haspopup", "dialog");
  return button;
}

/** Number of calls for each element: an earlier call stops when a later one was made. @type {WeakMap<Element, number>} */
const calls = new WeakMap();

/**
 * Turn glossary words in an element's own text into buttons; texts of its child elements stay as they are.
 *
 * @param {Element} node
 */
export async function markTerms(node) {
  const call = (calls.get(node) ?? 0) + 1;
  calls.set(node, call);
  if (!pattern) await load().catch(() => {}); // without a server the words stay plain text
  if (!pattern || calls.get(node) !== call) return;
  /** @type {Set<string>} */
  const seen = new Set();
  for (const child of [...node.childNodes])
    if (child.nodeType === Node.TEXT_NODE) child.replaceWith(...termsOf(child.textContent ?? "", seen));
}
