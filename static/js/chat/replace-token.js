// Writing something else in the place of the focused token: one of its candidates, or words of one's
// own, which are shown as the tokens they become.

import { byId, el, setText } from "./dom.js";
import { force } from "./forcing.js";
import { plural, tokenLabel } from "./format.js";
import { latest, tokenize } from "./inspect.js";
import { focused, focusedToken, pin, point, view } from "./view.js";

const form = byId("instead");
const field = byId("instead-text");
const cut = byId("instead-cut");
let list = null;
/** What the field's text becomes: {text, tokens}; null while it is not known. */
let pieces = null;
/** The token that stands there now. */
let token = null;

/** `candidateOf(row)`: what a row of the candidates shows. */
export function setUpInstead(candidates, candidateOf) {
  list = candidates;
  list.addEventListener("click", ({ target }) => {
    const candidate = target.closest(".w:enabled") && candidateOf(target.closest("li"));
    if (candidate) put([{ id: candidate.id, text: candidate.text }]);
  });
  list.addEventListener("keydown", onKey);
  for (const box of [list, form]) holdStill(box);
  form.addEventListener("submit", onSubmit);
  field.addEventListener("input", read);
  field.addEventListener("focus", begin);
  field.addEventListener("keydown", leave);
  field.addEventListener("blur", () => field.value.trim() || clear());
}

/** `free`: may the token be another one? */
export function drawInstead(free, now) {
  token = now;
  form.toggleAttribute("data-off", !free);
  field.disabled = !free;
  reach();
}

const put = (tokens) => force(view.answer, focused(), tokens);

/** While a hand is here the column shows one token, however fast the text goes on. */
function holdStill(box) {
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

/** One tab stop: the row that was reached last, or the first; arrows move among them. */
function reach(wanted = null) {
  const all = words();
  const one = wanted ?? all.find((word) => word.tabIndex === 0) ?? all[0];
  for (const word of list.querySelectorAll(".w")) word.tabIndex = word === one ? 0 : -1;
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const all = words();
  const at = all.indexOf(event.target);
  const to = { ArrowDown: all[at + 1], ArrowUp: all[at - 1], Home: all[0], End: all.at(-1) }[event.key];
  if (at < 0 || !to) return;
  event.preventDefault();
  reach(to);
  to.focus();
}

// ---- words of one's own ----------------------------------------------------------------------

/** Most tokens begin with the space before their word; so does what takes the place of one. */
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
  if (event.key !== "Escape" || field.value.trim() === "") return;
  event.preventDefault();
  clear();
}

async function read() {
  const text = field.value;
  pieces = null;
  if (text.trim() === "") setText(cut, "");
  if (text.trim() === "") return;
  try {
    const { tokens } = await latest("instead", { text }, tokenize);
    if (text !== field.value) return;
    pieces = { text, tokens };
    const parts = tokens.map((piece) => el("i", "", space(piece) + tokenLabel(piece.text)));
    cut.replaceChildren(...parts, ` ${plural(tokens.length, "token")}`);
  } catch (error) {
    setText(cut, error.message);
  }
}

/** What begins with a space says so: the same word without one is another token. */
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
