// @ts-nocheck
// Replacing the focused token: by one of its candidates, or by typed text, which is shown
// tokenized.

import { byId, el, setText } from "../ui/dom.js";
import { isComposing } from "../ui/enter-key.js";
import { replaceToken } from "./replace-token-run.js";
import { plural, tokenLabel } from "../ui/format.js";
import { latest, tokenize } from "../net/inspect.js";
import { focused, focusedToken, pin, point, view } from "../view.js";

const form = byId("replace-token");
const field = byId("replace-token-text");
const cut = byId("replace-token-pieces");
let list = null;
/** Tokens of the typed text: {text, tokens}; null while unknown. */
let pieces = null;
/** The focused token. */
let token = null;

/** `candidateOf(row)` returns the candidate of a row of the list. */
export function setUpReplaceToken(candidates, candidateOf) {
  list = candidates;
  list.addEventListener("click", ({ target }) => {
    const candidate = target.closest(".w:enabled") && candidateOf(target.closest("li"));
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

/** Enable or disable the field for the focused token. */
export function drawReplaceToken(free, now) {
  token = now;
  form.toggleAttribute("data-off", !free);
  field.disabled = !free;
  setTabStop();
}

const put = (tokens) => replaceToken(view.answer, focused(), tokens);

/** Keep one token focused while the pointer or keyboard is here, even as the text grows. */
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

const words = () => [...list.querySelectorAll(".w:enabled")];

/** Roving tabindex: the last focused row, or the first; arrow keys move among them. */
function setTabStop(wanted = null) {
  const all = words();
  const one = wanted ?? all.find((word) => word.tabIndex === 0) ?? all[0];
  for (const word of list.querySelectorAll(".w")) word.tabIndex = word === one ? 0 : -1;
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const all = words();
  const at = all.indexOf(event.target);
  const targets = { ArrowDown: all[at + 1], ArrowUp: all[at - 1], Home: all[0], End: all.at(-1) };
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
    setText(cut, error.message);
  }
}

/** Show a leading space: the same word without one is another token. */
const space = ({ text }) => (/^ (?=\S)/.test(text) ? "␣" : "");

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
