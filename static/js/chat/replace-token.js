// Replacing the focused token: by one of its candidates, or by typed text, which is shown
// tokenized.

import { all, byId, el, setText, targetOf } from "../ui/dom.js";
import { isComposing } from "../ui/enter-key.js";
import { replaceToken } from "./replace-token-run.js";
import { plural, tokenLabel } from "../ui/format.js";
import { latest, tokenize } from "../net/inspect.js";
import { focused, focusedToken, pin, point, view } from "../view.js";

const form = byId("replace-token");
const field = byId("replace-token-text");
const cut = byId("replace-token-pieces");
/** The list of candidates. @type {HTMLElement} */
let list;
/**
 * Tokens of the typed text; null while unknown.
 *
 * @type {{text: string, tokens: ToPage.TokenText[]} | null}
 */
let pieces = null;
/** The focused token. @type {Token | PromptToken | null} */
let token = null;

/**
 * `candidateOf(row)` returns the candidate of a row of the list.
 *
 * @param {HTMLElement} candidates
 * @param {(row: HTMLElement) => {id: number, text: string} | undefined} candidateOf
 */
export function setUpReplaceToken(candidates, candidateOf) {
  list = candidates;
  list.addEventListener("click", (event) => {
    const row = targetOf(event).closest(".w:enabled") && targetOf(event).closest("li");
    const candidate = row && candidateOf(row);
    if (candidate) put([{ id: candidate.id, text: candidate.text }]);
  });
  list.addEventListener("keydown", onKey);
  for (const box of [list, form]) holdFocus(box);
  form.addEventListener("submit", onSubmit);
  field.addEventListener("input", read);
  field.addEventListener("focus", begin);
  field.addEventListener("keydown", leave);
  field.addEventListener("blur", () => field.value.trim() || clear());
}

/**
 * Enable or disable the field for the focused token.
 *
 * @param {boolean} free
 * @param {Token | PromptToken | null} now
 */
export function drawReplaceToken(free, now) {
  token = now;
  form.toggleAttribute("data-off", !free);
  field.disabled = !free;
  setTabStop();
}

/** @param {{id: number, text: string}[]} tokens */
const put = (tokens) => replaceToken(view.answer, focused(), tokens);

/**
 * Keep one token focused while the pointer or keyboard is here, even as the text grows.
 *
 * @param {HTMLElement} box
 */
function holdFocus(box) {
  box.addEventListener("pointermove", ({ pointerType }) => {
    if (pointerType !== "touch" && view.hover === null && focusedToken()) point(focused());
  });
  box.addEventListener("pointerleave", () => point(null));
  box.addEventListener("focusin", () => {
    if (view.pinned === null && focusedToken()) pin(focused());
  });
}

// ---- candidates ------------------------------------------------------------------------------

const words = () => all(list, ".w:enabled");

/**
 * Roving tabindex: the last focused row, or the first; arrow keys move among them.
 *
 * @param {HTMLElement | null} wanted
 */
function setTabStop(wanted = null) {
  const found = words();
  const stop = wanted ?? found.find((word) => word.tabIndex === 0) ?? found[0];
  for (const word of all(list, ".w")) word.tabIndex = word === stop ? 0 : -1;
}

/** @param {KeyboardEvent} event */
function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const found = words();
  const at = found.indexOf(targetOf(event));
  /** @type {Record<string, HTMLElement | undefined>} */
  const targets = {
    ArrowDown: found[at + 1],
    ArrowUp: found[at - 1],
    Home: found[0],
    End: found.at(-1),
  };
  const to = targets[event.key];
  if (at < 0 || !to) return;
  event.preventDefault();
  setTabStop(to);
  to.focus();
}

// ---- typed text ------------------------------------------------------------------------------

/** Start with a space if the focused token does: most tokens include the space before a word. */
function begin() {
  if (field.value !== "" || !token?.text.startsWith(" ")) return;
  field.value = " ";
  field.setSelectionRange(1, 1);
  read();
}

function clear() {
  field.value = "";
  read();
}

/** @param {KeyboardEvent} event */
function leave(event) {
  if (event.key !== "Escape" || isComposing(event) || field.value.trim() === "") return;
  event.preventDefault();
  clear();
}

async function read() {
  const text = field.value;
  pieces = null;
  if (text.trim() === "") setText(cut, "");
  if (text.trim() === "") return;
  try {
    const { tokens } = await latest("replace-token", { text }, tokenize);
    if (text !== field.value) return;
    pieces = { text, tokens };
    const parts = tokens.map((piece) => el("i", "", space(piece) + tokenLabel(piece.text)));
    cut.replaceChildren(...parts, ` ${plural(tokens.length, "token")}`);
  } catch (error) {
    setText(cut, /** @type {Problem} */ (error).message);
  }
}

/** Show a leading space: the same word without one is another token. @param {{text: string}} piece */
const space = ({ text }) => (/^ (?=\S)/.test(text) ? "␣" : "");

/** @param {SubmitEvent} event */
async function onSubmit(event) {
  event.preventDefault();
  if (field.value.trim() === "") return;
  if (pieces?.text !== field.value) await read();
  if (!pieces) return;
  const { tokens } = pieces;
  clear();
  field.blur();
  put(tokens.map(({ id, text }) => ({ id, text })));
}
