// The start page: prompts of which one click sends each, and shows what it is about.

import { sendNow, setMode, setPrompt } from "../chat/composer.js";
import { saveSettings } from "../turns/persist.js";
import { lendPace } from "../chat/pace.js";
import { submitPrompt } from "../chat/session.js";
import { goTo, goToEnd } from "../ui/following.js";
import { whenPrepared, showInstrument } from "../look/frame.js";
import { openSheet, phone } from "../ui/bottom-sheets.js";
import { byId, el } from "../ui/dom.js";
import { fetchCode } from "../ui/fetch-code.js";
import { on, ready, setSettings, state } from "../state.js";
import { pin, promptLength, view, written } from "../view.js";
import { examplesFor } from "./examples.js";

const list = byId("examples");
/** @typedef {import("./examples.js").Example} Example */

/** Name of the model whose examples are drawn. @type {string | null} */
let drawn = null;
/**
 * What is to happen once tokens have come; `pinned`: number of the token that was focused for it.
 *
 * @type {{example: Example, answer: Answer | null, focus: string | null, pinned: number | null,
 *   repeats: boolean} | null}
 */
let awaited = null;
/**
 * The answer that is written at a pace of its example's, and that pace; or null.
 *
 * @type {{answer: Answer | null, pace: NonNullable<ReturnType<typeof lendPace>>} | null}
 */
let slow = null;

export function setUpStartPage() {
  on("hello", draw);
  on("tokens turns", follow);
}

function draw() {
  const model = state.hello?.model;
  if (!model || state.replay || drawn === model.name) return;
  drawn = model.name;
  list.replaceChildren(...examplesFor(model).map(newExample));
}

/** @param {Example} example */
function newExample(example) {
  const button = el("button");
  button.type = "button";
  button.title = example.title;
  button.append(el("span", "example-title", example.title), el("span", "ellipsis example-text", example.text));
  button.addEventListener("click", () => begin(example));
  const item = el("li");
  item.append(button);
  return item;
}

/**
 * Let nothing be pointed at until the pointer moves: what appears under it must not take the focus from
 * the token that the example is about.
 */
function holdPointer() {
  const { body } = document;
  body.dataset.still = "";
  const end = new AbortController();
  const move = (/** @type {PointerEvent} */ event) => {
    if (event.type === "pointermove" && !event.movementX && !event.movementY) return;
    delete body.dataset.still;
    end.abort();
  };
  for (const type of /** @type {const} */ (["pointermove", "pointerdown"]))
    document.addEventListener(type, move, { capture: true, signal: end.signal });
}

/**
 * Send an example and open what it is about. While nothing can be sent it is put into the composer.
 *
 * @param {Example} example
 */
async function begin(example) {
  const { mode, text, columns, limit, focus = null, open = null, sheet } = example;
  setMode(mode);
  setPrompt(text);
  if (!ready() || state.active) return;
  if (columns) return void compare(example);
  const pace = example.pace ? lendPace(example.pace) : null;
  if (!sendNow(text, [], limit ? { max_tokens: limit } : {})) return void pace?.end();
  slow = pace ? { pace, answer: state.active } : null;
  goToEnd();
  holdPointer();
  awaited = { example, answer: state.active, focus, pinned: null, repeats: example.repeat ?? false };
  if (open) showInstrument(open);
  else if (phone.matches && sheet) openSheet(sheet);
}

/** Focus the token that an example is about, and send what is to be sent twice again. */
function follow() {
  if (slow && state.active !== slow.answer) {
    slow.pace.end();
    slow = null;
  }
  if (!awaited) return;
  const { example, answer, focus, pinned, repeats } = awaited;
  if (view.answer !== answer || view.pinned !== pinned) return void (awaited = null);
  const index = focus === null ? null : indexOf(focus);
  if (index !== null) {
    pin(index);
    Object.assign(awaited, { focus: null, pinned: index });
  }
  if (state.active) return;
  awaited = null;
  if (repeats && ready()) submitPrompt(example.text, { max_tokens: example.limit });
  else if (pinned !== null) requestAnimationFrame(showFocused); // once the text is scrolled to its end
}

/** Scroll to the focused token, which a phone has room for beside the last lines only. */
function showFocused() {
  const token = document.querySelector(".answer .tok.on");
  if (token) goTo(token);
}

/** Number of the token that is to be focused; null if it has not come. @param {string} focus */
function indexOf(focus) {
  if (focus === "first") return written() > 0 ? 0 : null;
  if (!view.answer || written() === 0) return null; // the prompt has not been read
  const at = view.answer.promptSegment.prompt.findLastIndex(({ text }) => text.trim() === focus);
  return at < 0 ? null : at - promptLength();
}

/** @param {Example} example */
async function compare({ text, columns: [first, ...others] = [] }) {
  setSettings(first);
  saveSettings();
  showInstrument("compare");
  await whenPrepared("compare");
  const { beginComparison } = await fetchCode(() => import("../look/compare/compare.js"));
  beginComparison(text, others);
  setPrompt("");
}
