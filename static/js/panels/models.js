// Dialog that changes the model of the running server: the models on offer and the progress. Its
// first part, where the model runs, is panels/place.js, and is all of it where nothing can be changed.

import { all, byId, el, one, setText } from "../ui/dom.js";
import { bytes, parameters, sentence } from "../ui/format.js";
import { ask } from "../net/ask.js";
import { on, state } from "../state.js";
import { drawPlace, setUpPlace } from "./place.js";

/** What is shown of a change of models. @typedef {Pick<Answers.ModelChange, "name" | "state"> & Partial<Answers.ModelChange>} Change */

const PATH = "api/models";
const POLL_MS = 500;
const PENDING = ["judging", "fetching", "checking", "loading"];

const dialog = byId("models");
const form = byId("models-form");
const typed = byId("models-typed");
/** Can the model be changed here? */
export const canSwitch = form !== null;

const radios = () => /** @type {HTMLInputElement[]} */ (all(form, "[name=model]"));
const chosen = () => radios().find(({ checked }) => checked);

/** @type {number | undefined} */
let timer;
/** Model that this page began to change to, until it has shown how that ended. */
let awaited = "";
/** Names that the last search found. @type {string[]} */
let found = [];
/** Does the server take the path of a folder or file? */
let takesPaths = false;

/** Set up the dialog. */
export function setUpModels() {
  setUpPlace();
  one(document, "#models-open, #place-open").addEventListener("click", openModels);
  one(dialog, "[data-close]").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", ({ target }) => target === dialog && dialog.close());
  dialog.addEventListener("close", () => clearTimeout(timer));
  if (canSwitch) setUpForm();
}

function setUpForm() {
  byId("models-cancel").addEventListener("click", () => asked({ method: "DELETE" }));
  byId("models-search").addEventListener("click", search);
  dialog.addEventListener("drop", takeDropped);
  on("hello", drawReturned);
  typed.addEventListener("input", () => {
    for (const radio of radios()) radio.checked = false;
  });
  byId("models-offers").addEventListener("change", () => {
    typed.value = "";
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    change();
  });
}

export async function openModels() {
  byId("about").close();
  dialog.showModal();
  drawPlace();
  if (!canSwitch) return;
  complain("");
  const offers = await asked();
  if (!offers) return;
  drawOffers(offers);
  chosen()?.focus();
  follow(offers.change, offers.change?.name === awaited);
}

/** Mark the model that is back after a cancelled change. Keeps what was chosen or typed meanwhile. */
async function drawReturned() {
  if (!dialog.open || chosen() || typed.value) return;
  const offers = await asked();
  if (offers) drawOffers(offers);
}

// ---- what is offered -------------------------------------------------------------------------

/** @param {Answers.ModelOffers} offers */
function drawOffers(offers) {
  const cached = new Map(offers.cached.map(({ name, n_bytes: size }) => [name, size]));
  takesPaths = offers.paths;
  const known = new Map(offers.known.map((model) => [model.name, model]));
  const here = new Set([...offers.bundled.map(({ name }) => name), offers.started_with, ...cached.keys()]);
  const elsewhere = [...known.keys()].filter((name) => !here.has(name));
  /** @param {string} name */
  const row = (name) => choice(name, factsOf(name, offers, known, cached), name === offers.current);
  byId("models-offers").replaceChildren(
    el("h3", "", "On this machine"),
    ...[...here].filter((name) => !isAbsent(name, known, cached)).map(row),
    el("h3", "", "To download"),
    ...[...here].filter((name) => isAbsent(name, known, cached)).map(row),
    ...elsewhere.map(row),
    ...found.map((name) => choice(name, ["found on the Hub"], name === offers.current)),
    ...embeddingRows(offers.embedding),
  );
  setText(
    byId("models-other"),
    offers.paths ? "Other model: on the Hub, or a path on this machine" : "Other model on the Hub",
  );
  typed.placeholder = offers.paths ? "owner/model or /path/to/model.gguf" : "owner/model";
}

/**
 * Must a model be downloaded before it runs? The one that the server was started with may be.
 *
 * @param {string} name
 * @param {Map<string, Answers.KnownModel>} known
 * @param {Map<string, number>} cached
 */
const isAbsent = (name, known, cached) => known.has(name) && !cached.has(name);

/**
 * Facts of one offer: parameters, licence, size here or to download, and what it is good for.
 *
 * @param {string} name
 * @param {Answers.ModelOffers} offers
 * @param {Map<string, Answers.KnownModel>} known
 * @param {Map<string, number>} cached
 */
function factsOf(name, { bundled }, known, cached) {
  const model = known.get(name);
  const facts = model ? [`${parameters(model.parameters)} weights`, model.licence] : [];
  const own = bundled.find((each) => each.name === name);
  if (own) facts.push("bundled", own.good_for);
  const size = cached.get(name);
  if (size !== undefined) facts.push(`${bytes(size)} downloaded`);
  else if (model) facts.push(`about ${bytes(model.n_bytes)} to download`);
  if (model) facts.push(model.good_for);
  return facts;
}

/** @param {string} name @param {string[]} facts @param {boolean} isCurrent */
function choice(name, facts, isCurrent) {
  const row = el("div", "offer");
  const label = el("label");
  const radio = el("input");
  Object.assign(radio, { type: "radio", name: "model", value: name, checked: isCurrent });
  label.append(radio, el("span", "offer-name", name));
  const words = isCurrent ? [loadedAs(), ...facts] : facts;
  row.append(label, el("span", "sub", words.join(" · ")));
  if (!isCurrent) row.append(loader(name));
  return row;
}

/** The embedding models, which run alongside the model that writes. @param {Answers.EmbeddingOffer[]} offers */
function embeddingRows(offers) {
  if (!offers.length) return [];
  const rows = offers.map(({ model, is_cached: isCached, is_loaded: isLoaded }) => {
    const { name, parameters: n, licence, n_bytes: size } = model;
    const row = el("div", "offer");
    const where = isLoaded ? "loaded" : isCached ? "downloaded" : `about ${bytes(size)} to download`;
    const facts = [`${parameters(n)} weights`, licence, where, "runs alongside the model, for Retrieval; loading it ends running texts"];
    row.append(el("span", "offer-name", name), el("span", "sub", facts.join(" · ")));
    if (!isLoaded) row.append(loader(name, () => changeEmbedding(name)));
    return row;
  });
  return [el("h3", "", "Embedding model"), ...rows];
}

/** The button of a row, which loads its model with one press. @param {string} name @param {() => void} [load] */
function loader(name, load = () => change(name)) {
  const button = el("button", "text", "Load");
  Object.assign(button, { type: "button", ariaLabel: `Load ${name}` });
  button.addEventListener("click", load);
  return button;
}

/** Ask for the path of a dropped file or folder, which a browser tells no page. @param {DragEvent} event */
function takeDropped(event) {
  const [file] = event.dataTransfer?.files ?? [];
  if (!file) return;
  event.preventDefault();
  if (!takesPaths) return complain("This server takes no files. Choose a model by its name.");
  for (const radio of radios()) radio.checked = false;
  typed.value = file.name;
  typed.focus();
  typed.setSelectionRange(0, 0);
  complain(`The browser does not say which folder “${file.name}” is in. Type the path before its name.`);
}

async function search() {
  const text = typed.value.trim();
  if (!text) {
    typed.focus();
    return complain("Type a part of a name to search the Hub for.");
  }
  complain("");
  byId("models-search").disabled = true;
  const answer = await asked({}, `${PATH}/search?q=${encodeURIComponent(text)}`);
  byId("models-search").disabled = false;
  if (!answer) return;
  const offers = await asked();
  if (!offers) return;
  found = answer.names;
  drawOffers(offers);
  if (!found.length) return complain(`The Hub has no model for “${text}” that can run here.`);
  const first = radios().find(({ value }) => value === found[0]);
  first?.focus();
  first?.scrollIntoView({ block: "nearest" });
}

/** Say how the loaded model's weights are stored, and why. */
function loadedAs() {
  const { dtype, dtype_reason: reason } = state.hello?.model ?? {};
  return ["loaded", dtype && ` as ${dtype}`, reason && `, because ${reason}`].filter(Boolean).join("");
}

// ---- changing --------------------------------------------------------------------------------

async function change(name = chosen()?.value ?? typed.value.trim()) {
  if (!name) {
    typed.focus();
    return complain("Choose a model or type a name such as owner/model.");
  }
  await begin(name, { name, dtype: byId("models-dtype").value });
}

/** @param {string} name */
const changeEmbedding = (name) => begin(name, { name }, `${PATH}/embedding`);

/** Ask the server for a change, and follow it. @param {string} name @param {object} body @param {string} [path] */
async function begin(name, body, path) {
  complain("");
  draw({ name, state: "judging" });
  const begun = await asked({ method: "POST", body }, path);
  if (!begun) return draw(null);
  awaited = name;
  follow(begun, true);
}

/**
 * Show the progress of a change and poll while it runs. `tell`: also show how it ended.
 *
 * @param {Change | null} latest
 * @param {boolean} showEnd
 */
function follow(latest, showEnd) {
  clearTimeout(timer);
  draw(latest, showEnd);
  if (!latest || !PENDING.includes(latest.state) || !dialog.open) return;
  timer = setTimeout(async () => {
    const offers = await asked();
    if (!offers) return draw(null); // `asked` shows the reason
    if (!PENDING.includes(offers.change?.state)) drawOffers(offers);
    follow(offers.change, true);
  }, POLL_MS);
}

/** @type {Record<string, (change: Change) => string>} */
const STATE_TEXTS = {
  judging: ({ name }) => `Looking up ${name} …`,
  fetching: ({ name, message }) => `Downloading ${name}${message ? `: ${message}` : " …"}`,
  checking: ({ name, message }) => `Checking ${name}${message ? `: ${message}` : " …"}`,
  loading: ({ name, message }) => `Loading ${name}${message ? `: ${message}` : " …"}`,
  done: ({ name }) => `${name} is ready.`,
  cancelled: ({ message }) => `Cancelled: ${message}.`,
};

/** @param {Change | null} latest @param {boolean} [showEnd] */
function draw(latest, showEnd = true) {
  const pending = !!latest && PENDING.includes(latest.state);
  const bar = byId("models-progress");
  bar.hidden = !pending;
  if (typeof latest?.progress === "number") bar.value = latest.progress;
  else bar.removeAttribute("value"); // indeterminate
  byId("models-cancel").hidden = !["fetching", "checking", "loading"].includes(latest?.state ?? "");
  byId("models-load").disabled = pending;
  const words = latest && (pending || showEnd) ? STATE_TEXTS[latest.state]?.(latest) : "";
  setText(byId("models-say"), words ?? "");
  if (showEnd && latest?.state === "failed") complain(latest.message ?? "");
  if (showEnd && !pending) awaited = "";
}

/** @param {string} text */
function complain(text) {
  const place = byId("models-error");
  setText(place, sentence(text));
  place.hidden = !text;
}

/**
 * Return the server's answer, or null after showing the error.
 *
 * @param {Parameters<typeof ask>[1]} [options]
 * @param {string} [path]
 */
async function asked(options, path = PATH) {
  try {
    return await ask(path, options);
  } catch (error) {
    complain(/** @type {Problem} */ (error).message);
    return null;
  }
}
