// The dialog “Tools and answer format”, and the chips over the composer that say what is set.

import { isLocal } from "../net/connection.js";
import { changed, on, setState, state } from "../state.js";
import { readTool } from "../tools/own-tool.js";
import { allTools, BUILT_IN } from "../tools/tools.js";
import { saveSettings } from "../turns/persist.js";
import { byId, el, inputOf, setText } from "../ui/dom.js";
import { plural } from "../ui/format.js";
import { newIconButton } from "../ui/icon-button.js";
import { drawSegmented, newSegmented } from "../ui/segmented.js";
import { choicesOf, offeredTools, whyNoOptions, whyNotFormat } from "./answer-fields.js";
import { readText } from "./attachments.js";

const dialog = byId("answer-options");
const ROUNDS = { min: 1, max: 20 };

/** @type {[kind: AnswerFormat["kind"], label: string][]} */
const KINDS = [
  ["", "Any text"],
  ["json_schema", "JSON schema"],
  ["choice", "Choice"],
  ["regex", "Regex"],
];
const EXAMPLES = {
  "": "",
  json_schema: '{"type": "object", "properties": {"city": {"type": "string"}, "people": {"type": "integer"}}, "required": ["city", "people"]}',
  choice: "yes\nno\nI do not know",
  regex: "[0-9]{4}-[0-9]{2}-[0-9]{2}",
};
const HINTS = {
  "": "",
  json_schema: "The answer is JSON that follows this schema.",
  choice: "The answer is one of these texts, one per line.",
  regex: "The whole answer matches this regular expression.",
};

const kinds = newSegmented({
  legend: "Answers are",
  name: "answer-format",
  options: KINDS,
  onChange: (kind) => setFormat(kind, state.format.kind === kind ? state.format.text : EXAMPLES[kind]),
});

export function setUpAnswerOptions() {
  byId("answer-kinds").append(kinds);
  byId("answer-options-open").addEventListener("click", open);
  byId("answer-format-text").addEventListener("input", (event) =>
    setFormat(state.format.kind, inputOf(event).value),
  );
  dialog.addEventListener("click", ({ target }) => target === dialog && dialog.close());
  setUpTexts();
  byId("tools-must").addEventListener("change", (event) => setTools({ must: inputOf(event).checked }));
  byId("tools-auto").addEventListener("change", (event) => setTools({ auto: inputOf(event).checked }));
  byId("tools-rounds").addEventListener("change", (event) => {
    const n = Math.round(Number(inputOf(event).value)) || ROUNDS.min;
    setTools({ rounds: Math.min(ROUNDS.max, Math.max(ROUNDS.min, n)) });
  });
  byId("own-tool-form").addEventListener("submit", (event) => {
    event.preventDefault();
    addOwnTool();
  });
  on("settings hello connection", draw);
}

function open() {
  draw();
  dialog.showModal();
}

// ---- changes -----------------------------------------------------------------------------------

/** @param {AnswerFormat["kind"]} kind @param {string} text */
function setFormat(kind, text) {
  setState({ format: { kind, text }, problem: null });
  saveSettings();
  changed("counted");
}

/** @param {Partial<ToolSettings>} values */
function setTools(values) {
  setState({ tools: { ...state.tools, ...values } });
  saveSettings();
  changed("counted");
}

/** @param {string} name @param {boolean} isOn */
function switchTool(name, isOn) {
  const others = state.tools.on.filter((each) => each !== name);
  setTools({ on: isOn ? [...others, name] : others });
}

function addOwnTool() {
  const { tool, error } = readTool(byId("own-tool-url").value, byId("own-tool-json").value);
  const isTaken = tool && BUILT_IN.some(({ name }) => name === tool.name);
  const why = error ?? (isTaken ? `“${tool?.name}” is a tool of this page; give yours another name.` : "");
  setText(byId("own-tool-error"), why);
  byId("own-tool-error").hidden = !why;
  if (why || !tool) return;
  const own = [...state.tools.own.filter(({ name }) => name !== tool.name), tool];
  setTools({ own, on: [...new Set([...state.tools.on, tool.name])] });
  byId("own-tool-form").reset();
}

function setUpTexts() {
  const picker = byId("search-files");
  byId("search-add").addEventListener("click", () => picker.click());
  picker.addEventListener("change", () => {
    const files = [...(picker.files ?? [])];
    picker.value = "";
    addTexts(files);
  });
  dialog.addEventListener("dragover", (event) => event.preventDefault());
  dialog.addEventListener("drop", (event) => {
    event.preventDefault();
    event.stopPropagation();
    document.body.toggleAttribute("data-drop", false);
    const text = event.dataTransfer?.getData("text/plain") ?? "";
    const files = [...(event.dataTransfer?.files ?? [])];
    if (files.length) addTexts(files);
    else if (text.trim()) keepTexts([{ name: "Dropped text", text }], []);
  });
}

/** @param {File[]} files */
async function addTexts(files) {
  const [texts, problems] = [[], []].map(() => /** @type {any[]} */ ([]));
  for (const file of files) {
    const read = await readText(file);
    if ("problem" in read) problems.push(read.problem);
    else texts.push({ name: file.name, text: read.text });
  }
  keepTexts(texts, problems);
}

/** @param {ToolSettings["texts"]} texts @param {string[]} problems */
function keepTexts(texts, problems) {
  const names = new Set(texts.map(({ name }) => name));
  const others = state.tools.texts.filter(({ name }) => !names.has(name));
  setText(byId("search-error"), problems.join(" "));
  byId("search-error").hidden = !problems.length;
  setTools({ texts: [...others, ...texts], ...(texts.length && { on: [...new Set([...state.tools.on, "search"])] }) });
}

// ---- drawing -----------------------------------------------------------------------------------

function draw() {
  drawChips();
  if (!dialog.open && drawnOnce) return;
  drawnOnce = true;
  const why = whyNoOptions();
  setText(byId("answer-options-lack"), why);
  byId("answer-options-lack").hidden = !why;
  for (const fieldset of dialog.querySelectorAll("fieldset.options")) fieldset.toggleAttribute("disabled", !!why);
  drawTools();
  drawFormat();
}
let drawnOnce = false;

function drawTools() {
  const { on: active, texts, must, auto, rounds } = state.tools;
  const list = byId("tool-list");
  const tools = allTools();
  const drawn = tools.map(({ name, description }) => `${name} ${description}`).join("\n");
  if (list.dataset.drawn !== drawn) {
    list.dataset.drawn = drawn;
    list.replaceChildren(...tools.map(newToolRow));
  }
  for (const box of list.querySelectorAll("input")) box.checked = active.includes(box.value);
  byId("search-texts").replaceChildren(...texts.map(newTextChip));
  byId("tools-must").checked = must;
  byId("tools-auto").checked = auto;
  if (document.activeElement !== byId("tools-rounds")) byId("tools-rounds").value = String(rounds);
  const note = state.format.kind && active.length ? "An answer that follows a format cannot call tools: they are off now." : "";
  setText(byId("tools-note"), note);
}

/** @param {import("../tools/tools.js").PageTool} tool */
function newToolRow({ name, label, description }) {
  const row = el("li");
  const box = Object.assign(el("input"), { type: "checkbox", value: name });
  box.addEventListener("change", () => switchTool(name, box.checked));
  const text = el("label");
  text.append(box, el("b", "", label), ` ${description}`);
  row.append(text);
  const own = state.tools.own.find((each) => each.name === name);
  if (own) {
    text.append(el("span", "sub", ` ${own.url}`));
    const remove = newIconButton("delete", `Delete ${name}`, () =>
      setTools({
        own: state.tools.own.filter((each) => each.name !== name),
        on: state.tools.on.filter((each) => each !== name),
      }),
    );
    row.append(remove);
  }
  return row;
}

/** @param {{name: string, text: string}} text */
function newTextChip({ name, text }) {
  const chip = el("li", "chip");
  const remove = newIconButton("close", `Remove ${name}`, () =>
    setTools({ texts: state.tools.texts.filter((each) => each.name !== name) }),
  );
  chip.append(el("b", "", name), el("span", "", plural(text.length, "character")), remove);
  return chip;
}

function drawFormat() {
  const { kind, text } = state.format;
  drawSegmented(kinds, kind);
  const field = byId("answer-format-text");
  field.hidden = !kind;
  if (field.value !== text) field.value = text;
  const why = whyNotFormat(state.format);
  setText(byId("answer-format-hint"), why || HINTS[kind]);
  byId("answer-format-hint").classList.toggle("bad", !!why);
  if (why) field.setAttribute("aria-invalid", "true");
  else field.removeAttribute("aria-invalid");
}

function drawChips() {
  byId("answer-options-open").title = isLocal() ? whyNoOptions() : "Tools and answer format";
  /** @type {HTMLElement[]} */
  const chips = [];
  const tools = offeredTools();
  if (tools.length)
    chips.push(newChip("Tools", tools.map(({ function: { name } }) => name).join(", "), () => setTools({ on: [] })));
  const { kind } = state.format;
  if (kind && !whyNoOptions())
    chips.push(newChip("Format", summaryOf(state.format), () => setFormat("", "")));
  const list = byId("answer-chips");
  const drawn = chips.map(({ textContent }) => textContent).join("|");
  list.hidden = !chips.length;
  if (list.dataset.drawn === drawn) return;
  list.dataset.drawn = drawn;
  list.replaceChildren(...chips);
}

/** @param {string} what @param {string} text @param {() => void} remove */
function newChip(what, text, remove) {
  const chip = el("li", "chip");
  chip.append(el("span", "", what), el("b", "", text), newIconButton("close", `Without ${what.toLowerCase()}`, remove));
  return chip;
}

/** @param {AnswerFormat} format */
function summaryOf(format) {
  const label = KINDS.find(([kind]) => kind === format.kind)?.[1] ?? "";
  if (format.kind === "choice") return `one of ${plural(choicesOf(format.text).length, "text")}`;
  return format.kind === "regex" ? `regex ${format.text}` : label;
}
