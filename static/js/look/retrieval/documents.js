// "Documents": files that are dropped or text that is pasted, indexed by the server one after another, and
// the documents that are in the index.

import { ask } from "../../net/ask.js";
import { changed } from "../../state.js";
import { el, newButton, setText } from "../../ui/dom.js";
import { bytes, count, plural, sentence } from "../../ui/format.js";
import { newIconButton } from "../../ui/icon-button.js";
import { Missing } from "../shared/context.js";
import { addRow, clearRows, newTable, numeric } from "../shared/table.js";

/** @typedef {Answers.RetrievalOffer} RetrievalOffer */

const PATH = "api/retrieval";
const DOCUMENTS = `${PATH}/documents`;
const POLL_MS = 500;
const ACTIVE = ["reading", "encoding"];

/** @type {RetrievalOffer | null} */
let offer = null;
/** Files that wait to be sent. @type {File[]} */
let queue = [];
let isWorking = false;
/** The file that is on its way: the server answers once it was read. @type {File | null} */
let sent = null;
/** The text that was added last, as a file and as it was in its field. @type {{file: File, text: string} | null} */
let pasted = null;
let problem = "";
/** @type {number | undefined} */
let timer;

const at = {
  picker: Object.assign(el("input"), { type: "file", multiple: true, hidden: true }),
  pasted: Object.assign(el("textarea"), { rows: 2, placeholder: "Or paste a text" }),
  name: Object.assign(el("input"), { value: "pasted text", maxLength: 200, spellcheck: false }),
  size: Object.assign(el("input"), { type: "number", min: "4" }),
  overlap: Object.assign(el("input"), { type: "number", min: "0" }),
  says: el("p", "rt-says"),
  bar: el("progress"),
  list: newTable("rt-documents", "Documents of the index", ["document", ...numeric(["tokens", "chunks", "size", "overlap"]), ""]),
  limits: el("p", "sub"),
  cancel: newButton("Cancel", cancel),
  clear: newButton("Remove all", () => asked(DOCUMENTS, { method: "DELETE" })),
};

/** @type {InstrumentView<Focus>} */
export const documentsView = {
  name: "documents",
  label: "Documents",

  setUp(root) {
    root.append(buildForm(), buildList());
  },

  async show() {
    clearTimeout(timer);
    offer = /** @type {RetrievalOffer} */ (await ask(PATH));
    if (offer.why_not) throw new Missing(sentence(offer.why_not));
    draw(offer);
    if (isActive(offer)) timer = setTimeout(() => changed("look"), POLL_MS);
    return `Chunks are counted in tokens of ${offer.encoder}, which the engine runs alongside the model; FAISS keeps their vectors.`;
  },

  hide() {
    clearTimeout(timer);
  },

  table: () => ({
    columns: ["document", "characters", "pages", "tokens", "chunks", "size", "overlap"],
    rows: offer?.documents.map((one) => [one.name, one.chars, one.pages, one.tokens, one.chunks, one.size, one.overlap]) ?? [],
  }),
};

// ---- adding ---------------------------------------------------------------------------------------

/** @param {File[]} files */
function add(files) {
  problem = "";
  queue.push(...files);
  work();
}

/** Send the files of the queue, each when the one before it is indexed, also while the panel is closed. */
async function work() {
  if (isWorking) return;
  isWorking = true;
  for (let file; (file = queue.shift()); ) {
    sent = file;
    changed("look");
    await sendFile(file);
    sent = null;
    if (problem) queue = []; // the next ones would hide why
    // A text that was refused, or never sent, stays in its field.
    else if (pasted?.file === file && at.pasted.value === pasted.text) at.pasted.value = "";
    changed("look");
    if (queue.length) await untilIndexed();
  }
  isWorking = false;
}

/** @param {File} file */
async function sendFile(file) {
  const data = await base64(file).catch(() => null);
  if (data === null) problem = `“${file.name}” cannot be read; it may have been moved, or be a folder.`;
  else await asked(DOCUMENTS, { method: "POST", body: { name: file.name, data, settings: settings() } });
}

async function untilIndexed() {
  do {
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    offer = await ask(PATH).catch(() => offer);
  } while (isActive(offer));
}

/** Is a document being indexed? @param {RetrievalOffer | null} now */
const isActive = (now) => !!now?.run && ACTIVE.includes(now.run.state);

const settings = () => ({ size: Number(at.size.value), overlap: Number(at.overlap.value) });

/** Send a request, and show what is wrong with it. @param {string} url @param {Parameters<typeof ask>[1]} options */
async function asked(url, options) {
  problem = "";
  try {
    await ask(url, options);
  } catch (error) {
    problem = sentence(/** @type {Problem} */ (error).message);
  }
  changed("look");
  return !problem;
}

function cancel() {
  queue = [];
  asked(PATH, { method: "DELETE" });
}

/** @param {File} file @returns {Promise<string>} */
const base64 = (file) =>
  new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(String(reader.result).replace(/^[^,]*,?/, "")));
    reader.addEventListener("error", () => reject(reader.error));
    reader.readAsDataURL(file);
  });

// ---- layout ---------------------------------------------------------------------------------------

function buildForm() {
  const form = el("form", "column rt-form");
  form.setAttribute("aria-label", "Documents to add");
  form.addEventListener("submit", (event) => event.preventDefault());
  form.append(buildSettings(), buildDrop(), ...buildPasted());
  return form;
}

function buildDrop() {
  const zone = el("div", "rt-drop");
  const choose = newButton("Choose files", () => at.picker.click());
  zone.append(el("p", "", "Drop text, Markdown or PDF files here."), choose, at.picker);
  at.picker.setAttribute("aria-label", "Files to index");
  at.picker.addEventListener("change", () => {
    add([...(at.picker.files ?? [])]);
    at.picker.value = ""; // so that the same file can be chosen again
  });
  zone.addEventListener("dragover", (event) => {
    event.preventDefault();
    zone.toggleAttribute("data-over", true);
  });
  zone.addEventListener("dragleave", () => zone.toggleAttribute("data-over", false));
  zone.addEventListener("drop", (event) => {
    event.preventDefault();
    event.stopPropagation(); // else the page would attach them to the prompt
    zone.toggleAttribute("data-over", false);
    add([...(event.dataTransfer?.files ?? [])]);
  });
  return zone;
}

function buildPasted() {
  at.pasted.setAttribute("aria-label", "Text to index");
  const bar = el("div", "controls");
  const addText = () => {
    const text = at.pasted.value;
    pasted = { file: new File([text], at.name.value.trim()), text };
    add([pasted.file]);
  };
  bar.append(labelled("Name ", at.name), newButton("Add text", addText));
  return [at.pasted, bar];
}

function buildSettings() {
  const bar = el("div", "controls");
  at.size.title = "Tokens of a chunk, as the embedding model counts them";
  at.overlap.title = "Tokens that a chunk shares with the one before it";
  bar.append(labelled("Chunk size ", at.size), labelled("Overlap ", at.overlap));
  return bar;
}

/** @param {string} text @param {HTMLInputElement} field */
function labelled(text, field) {
  const label = el("label", "", text);
  label.append(field);
  return label;
}

function buildList() {
  const box = el("div", "column rt-index");
  at.says.setAttribute("role", "status");
  at.bar.setAttribute("aria-label", "Chunks indexed");
  const acts = el("div", "controls");
  acts.append(at.cancel, at.clear);
  box.append(at.says, at.bar, at.list, at.limits, acts);
  return box;
}

// ---- drawing --------------------------------------------------------------------------------------

/** @param {RetrievalOffer} now */
function draw(now) {
  const { documents, defaults, room, run } = now;
  at.size.max = String(room);
  at.size.value ||= String(defaults.size);
  at.overlap.value ||= String(defaults.overlap);
  const isBusy = isActive(now);
  at.cancel.hidden = at.bar.hidden = !isBusy;
  at.clear.hidden = isBusy || !(documents.length || now.problem);
  Object.assign(at.bar, { max: run?.total || 1, value: run?.done ?? 0 });
  at.says.classList.toggle("bad", !sent && (!!problem || !!now.problem || run?.state === "failed"));
  setText(at.says, (sent && reading(sent.name)) || problem || sentence(now.problem) || (isShown(run, documents) ? words(run) : stored(documents)));
  at.list.hidden = !documents.length;
  clearRows(at.list);
  for (const { name, tokens, chunks, size, overlap } of documents) {
    const remove = newIconButton("close", `Remove ${name}`, () => asked(`${DOCUMENTS}/${encodeURIComponent(name)}`, { method: "DELETE" }));
    remove.disabled = isBusy;
    addRow(at.list, [name, count(tokens), count(chunks), count(size), count(overlap), remove]);
  }
  setText(at.limits, limits(now));
}

/**
 * Does the latest indexing say something that is still true? Its document may have been removed.
 *
 * @param {Answers.IndexRun | null} run
 * @param {RetrievalOffer["documents"]} documents
 * @returns {run is Answers.IndexRun}
 */
const isShown = (run, documents) => !!run && (run.state !== "done" || documents.some(({ name }) => name === run.name));

/** @param {RetrievalOffer["documents"]} documents */
const stored = ({ length }) => (length ? `${plural(length, "document")} indexed.` : "No document is indexed yet.");

/** @param {RetrievalOffer} now */
function limits({ documents, chunks, n_bytes: size, folder, max_chunks: maxChunks, max_documents: maxDocuments, max_file_bytes: maxFile, room }) {
  const used = `${plural(documents.length, "document")} of at most ${count(maxDocuments)}, ${plural(chunks, "chunk")} of at most ${count(maxChunks)}`;
  const kept = size ? `, ${bytes(size)}${folder && ` in ${folder}`}` : "";
  return `${used}${kept}. A file may have up to ${bytes(maxFile)}, a chunk up to ${count(room)} tokens.`;
}

/** How many files of this page wait, or "". */
const waiting = () => (queue.length ? ` ${plural(queue.length, "more file")} to go.` : "");

/** @param {string} name */
const reading = (name) => `${name}: reading …${waiting()}`;

/** @param {Answers.IndexRun} run */
function words({ name, state, message, done, total, seconds, seconds_left: left }) {
  switch (state) {
    case "reading":
      return reading(name);
    case "encoding":
      return `${name}: ${count(done)} of ${plural(total, "chunk")} have vectors${left === null ? "" : `, about ${count(Math.ceil(left))} s left`}.${waiting()}`;
    case "done":
      return `${name}: ${plural(total, "chunk")} indexed in ${seconds.toFixed(1)} s.`;
    case "cancelled":
      return `${name} was cancelled; nothing is kept of it.`;
    default:
      return `${name} failed: ${sentence(message)}`;
  }
}
