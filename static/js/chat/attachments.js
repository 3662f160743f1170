// Text files attached to the next prompt: read, checked, counted, and put before it.

import { count } from "../net/inspect.js";
import { changed, on, ready, setState, state } from "../state.js";
import { byId, el } from "../ui/dom.js";
import { plural } from "../ui/format.js";
import { newIconButton } from "../ui/icon-button.js";
import { pageData } from "../ui/page-data.js";
import { isMakingRoom } from "./summarize.js";

const WAITS = "The message waits until the oldest turns are summarised; its files cannot change now.";
/** @type {RequestLimits} */
const { files: LIMITS } = pageData("limits-data");

/**
 * Files that go with the next prompt: {name, block, tokens}. `block` is the text that is put into
 * the prompt, `tokens` how many it has there: null while they are counted.
 *
 * @type {AttachedText[]}
 */
let attached = [];

export const attachedFiles = () => attached;

/** @param {AttachedText[]} files */
export function setAttached(files) {
  attached = files.map(({ name, block }) => ({ name, block, tokens: null }));
  changed("counted");
  recount();
}

/** Attach files; those that cannot be are named in `state.problem`. @param {File[]} files */
async function attach(files) {
  const problems = [];
  for (const file of files) {
    const read = await readText(file);
    const problem = "problem" in read ? read.problem : whyNotAttachable(file.name, read.text);
    if (problem) problems.push(problem);
    else if ("text" in read) add(file.name, read.text);
  }
  const problem = problems.length ? { code: "attachment", message: problems.join(" ") } : null;
  setState({ problem });
  changed("counted");
}

/** @param {string} name @param {string} text */
function add(name, text) {
  const file = { name, block: blockOf(name, text), tokens: null };
  attached = [...attached, file];
  recount();
}

// ---- the composer's part ----------------------------------------------------------------------

/** `onChange` is called when files were attached or taken away. @param {() => void} onChange */
export function setUpAttachments(onChange) {
  const picker = byId("attach-files");
  const take = async (/** @type {File[]} */ files) => {
    await attach(files);
    onChange();
  };
  byId("attach").addEventListener("click", () => picker.click());
  picker.addEventListener("change", () => {
    const files = [...(picker.files ?? [])];
    picker.value = ""; // so that the same file can be chosen again
    take(files);
  });
  byId("prompt").addEventListener("paste", (event) => {
    const files = event.clipboardData?.files;
    if (!files?.length) return;
    event.preventDefault();
    take([...files]);
  });
  document.addEventListener("attach", (event) => take(/** @type {CustomEvent<File[]>} */ (event).detail));
  on("hello settings", recount);
  on("counted hello", () => draw(onChange));
}

/** What the files were last counted for: model and mode. */
let countedFor = "";

function recount() {
  if (!ready() || !state.hello) return;
  const now = `${state.hello.model.name} ${state.mode}`;
  const isOther = now !== countedFor;
  countedFor = now;
  for (const file of attached) if (isOther || file.tokens === null) countFile(file);
}

/** @param {() => void} onChange */
function draw(onChange) {
  byId("attached").hidden = !attached.length;
  const chips = attached.map((file) => newChip(file, onChange));
  byId("attached").replaceChildren(...chips);
}

/** @param {AttachedText} file @param {() => void} onChange */
function newChip(file, onChange) {
  const chip = el("li", "chip");
  const nTokens = file.tokens ?? null;
  const context = state.hello?.limits.context ?? Infinity;
  chip.toggleAttribute("data-full", nTokens !== null && nTokens > context);
  const size = nTokens === null ? "…" : plural(nTokens, "token");
  const remove = newIconButton("close", `Remove ${file.name}`, () => {
    if (isMakingRoom()) return setState({ problem: { code: "attachment", message: WAITS } });
    attached = attached.filter((each) => each !== file);
    onChange();
    byId("prompt").focus();
  });
  chip.append(el("b", "", file.name), el("span", "", size), remove);
  return chip;
}

// ---- reading -----------------------------------------------------------------------------------

/** @type {[encoding: string, bytes: number[]][]} */
const BOMS = [
  ["utf-8", [0xef, 0xbb, 0xbf]],
  ["utf-16le", [0xff, 0xfe]],
  ["utf-16be", [0xfe, 0xff]],
];
/** Characters that no text has: controls except tab, line breaks, form feed and escape. */
const BINARY = /[\u0000-\u0008\u000e-\u001a\u001c-\u001f]/;

/**
 * Return {text}, or {problem} for what is too large or no text.
 *
 * @param {File} file
 * @returns {Promise<{text: string} | {problem: string}>}
 */
export async function readText(file) {
  const limit = state.hello?.limits.message_bytes ?? Infinity;
  if (file.size > limit)
    return { problem: `“${file.name}” has ${kilobytes(file.size)}, but a request ${atMost(limit)}.` };
  /** @type {Uint8Array} */
  let bytes;
  try {
    bytes = new Uint8Array(await file.arrayBuffer());
  } catch {
    return { problem: `“${file.name}” cannot be read; it may have been moved, or be a folder.` };
  }
  const [encoding] = BOMS.find(([, bom]) => bom.every((byte, i) => bytes[i] === byte)) ?? ["utf-8"];
  try {
    const text = new TextDecoder(encoding, { fatal: true }).decode(bytes);
    if (!BINARY.test(text)) return { text: text.replace(/\r\n?/g, "\n") };
  } catch {
    // not of this encoding
  }
  return { problem: `“${file.name}” is not a text file: only UTF-8 or UTF-16 text can be attached.` };
}

/** @param {string} name @param {string} text */
function whyNotAttachable(name, text) {
  if (isMakingRoom()) return WAITS;
  if (text.trim() === "") return `“${name}” is empty.`;
  if (attached.length >= LIMITS.most) return `At most ${LIMITS.most} files can be attached.`;
  const limit = state.hello?.limits.message_bytes ?? Infinity;
  const blocks = [...attached.map(({ block }) => block), blockOf(name, text)];
  const size = new TextEncoder().encode(JSON.stringify(blocks)).length;
  return size > limit ? `With “${name}” the files have ${kilobytes(size)}, but a request ${atMost(limit)}.` : "";
}

/** @param {number} n */
const kilobytes = (n) => `${Math.ceil(n / 1024).toLocaleString("en")} KB`;
/** @param {number} limit */
const atMost = (limit) => `may have ${kilobytes(limit)} with this model`;

// ---- putting into the prompt -------------------------------------------------------------------

/**
 * Return a file's part of the prompt: its name, and its text as a fenced block of Markdown. The
 * fence is longer than any in the text.
 *
 * @param {string} name
 * @param {string} text
 */
export function blockOf(name, text) {
  const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map((run) => run.length));
  const fence = "`".repeat(longest + 1);
  const line = name.replace(/\s+/g, " ").slice(0, LIMITS.name_chars);
  return `${line}:\n${fence}\n${text.replace(/\n$/, "")}\n${fence}\n\n`;
}

/** Put the blocks of files before a prompt. @param {string} text */
export const withFiles = (text, files = attached) =>
  files.map(({ block }) => block).join("") + text;

/**
 * How a turn remembers its files: names, and the lengths of their parts of its text.
 *
 * @param {AttachedText[]} files
 */
export const fileMarks = (files) =>
  files.map(({ name, block }) => ({ name: name.slice(0, LIMITS.name_chars), chars: block.length }));

// ---- counting ----------------------------------------------------------------------------------

/** Count the tokens that a file adds to a prompt. @param {AttachedText} file */
async function countFile(file) {
  /** @param {string} content @returns {Countable} */
  const ask = (content) =>
    state.mode === "chat" ? { messages: [{ role: "user", content }] } : { prompt: content };
  try {
    const [whole, rest] = [await count(ask(`${file.block}?`)), await count(ask("?"))];
    file.tokens = whole.tokens - rest.tokens;
  } catch (error) {
    const problem = /** @type {Problem} */ (error);
    if (problem.code !== "lost") setState({ problem });
  }
  changed("counted", "turns");
}
