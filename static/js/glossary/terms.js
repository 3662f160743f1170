// Words of the glossary in the texts of the page, as buttons that ask what they mean (words/words.js).

import { el } from "../ui/dom.js";

/** Word of the glossary by each of its names, folded. @type {Map<string, string>} */
const wordByName = new Map();
/** Finds a name, also with an "s". @type {RegExp | null} */
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
 * Return a text as nodes, in which each word of the glossary is a button the first time that it occurs.
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

/** @param {string} text @param {string} word */
function newTerm(text, word) {
  const button = el("button", "term", text);
  button.type = "button";
  button.dataset.term = word;
  button.setAttribute("aria-haspopup", "dialog");
  return button;
}

/** Which texts of an element are marked: a later call makes earlier ones void. @type {WeakMap<Element, number>} */
const calls = new WeakMap();

/**
 * Make buttons of the words of the glossary in the texts of an element, not in the elements inside it.
 *
 * @param {Element} node
 */
export async function markTerms(node) {
  const call = (calls.get(node) ?? 0) + 1;
  calls.set(node, call);
  if (!pattern) await load().catch(() => {}); // without a server the words stay texts
  if (!pattern || calls.get(node) !== call) return;
  /** @type {Set<string>} */
  const seen = new Set();
  for (const child of [...node.childNodes])
    if (child.nodeType === Node.TEXT_NODE) child.replaceWith(...termsOf(child.textContent ?? "", seen));
}
