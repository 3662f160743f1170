// Dialog that changes the model of the running server: the models on offer and the progress. Its
// first part, where the model runs, is panels/place.js, and is all of it where nothing can be changed.

import { byId, el, setText } from "../ui/dom.js";
import { bytes, parameters } from "../ui/format.js";
import { ask } from "../net/ask.js";
import { state } from "../state.js";
import { drawPlace, setUpPlace } from "./place.js";

const PATH = "api/models";
const POLL_MS = 500;
const PENDING = ["judging", "fetching", "checking", "loading"];

const dialog = byId("models");
const form = byId("models-form");
const typed = byId("models-typed");
/** Can the model be changed here? */
export const canSwitch = form !== null;

const chosen = () => form.querySelector("[name=model]:checked");

let timer = null;

/** Set up the dialog. */
export function setUpModels() {
  setUpPlace();
  byId(canSwitch ? "models-open" : "place-open").addEventListener("click", openModels);
  dialog.querySelector("[data-close]").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", ({ target }) => target === dialog && dialog.close());
  dialog.addEventListener("close", () => clearTimeout(timer));
  if (canSwitch) setUpForm();
}

function setUpForm() {
  byId("models-cancel").addEventListener("click", () => asked({ method: "DELETE" }));
  typed.addEventListener("input", () => {
    if (chosen()) chosen().checked = false;
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
  follow(offers.change, false);
}

// ---- what is offered -------------------------------------------------------------------------

function drawOffers(offers) {
  const cached = new Map(offers.cached.map(({ name, n_bytes: size }) => [name, size]));
  const known = new Map(offers.known.map((model) => [model.name, model]));
  const names = new Set([offers.bundled, offers.started_with, ...known.keys(), ...cached.keys()]);
  const rows = [...names].map((name) => {
    const facts = factsOf(known.get(name), cached.get(name));
    if (name === offers.bundled) facts.unshift("bundled");
    return choice(name, facts, name === offers.current);
  });
  byId("models-offers").replaceChildren(...rows);
}

/** Facts of one offer: parameters, licence, and size here or to download. */
function factsOf(known, cachedBytes) {
  const facts = known ? [`${parameters(known.parameters)} weights`, known.licence] : [];
  if (cachedBytes !== undefined) facts.push(`${bytes(cachedBytes)} downloaded`);
  else if (known) facts.push(`about ${bytes(known.n_bytes)} to download`);
  return facts;
}

function choice(name, facts, isCurrent) {
  const label = el("label", "offer");
  const radio = el("input");
  Object.assign(radio, { type: "radio", name: "model", value: name, checked: isCurrent });
  const words = isCurrent ? [loadedAs(), ...facts] : facts;
  label.append(radio, el("span", "offer-name", name), el("span", "sub", words.join(" · ")));
  return label;
}

/** Say how the loaded model's weights are stored, and why. */
function loadedAs() {
  const { dtype, dtype_reason: reason } = state.hello?.model ?? {};
  return ["loaded", dtype && ` as ${dtype}`, reason && `, because ${reason}`].filter(Boolean).join("");
}

// ---- changing --------------------------------------------------------------------------------

async function change() {
  const name = chosen()?.value ?? typed.value.trim();
  if (!name) {
    typed.focus();
    return complain("Choose a model or type a name such as owner/model.");
  }
  complain("");
  draw({ name, state: "judging" });
  const begun = await asked({ method: "POST", body: { name, dtype: byId("models-dtype").value } });
  if (begun) follow(begun, true);
  else draw(null);
}

/** Show the progress of a change and poll while it runs. `tell`: also show how it ended. */
function follow(found, showEnd) {
  clearTimeout(timer);
  draw(found, showEnd);
  if (!found || !PENDING.includes(found.state) || !dialog.open) return;
  timer = setTimeout(async () => {
    const offers = await asked();
    if (!offers) return draw(null); // `asked` shows the reason
    if (!PENDING.includes(offers.change?.state)) drawOffers(offers);
    follow(offers.change, true);
  }, POLL_MS);
}

const STATE_TEXTS = {
  judging: ({ name }) => `Looking up ${name} …`,
  fetching: ({ name, message }) => `Downloading ${name}${message ? `: ${message}` : " …"}`,
  checking: ({ name, message }) => `Checking ${name}${message ? `: ${message}` : " …"}`,
  loading: ({ name, message }) => `Loading ${name}${message ? `: ${message}` : " …"}`,
  done: ({ name }) => `${name} is ready.`,
  cancelled: ({ message }) => `Cancelled: ${message}.`,
};

function draw(found, showEnd = true) {
  const pending = !!found && PENDING.includes(found.state);
  const bar = byId("models-progress");
  bar.hidden = !pending;
  if (typeof found?.progress === "number") bar.value = found.progress;
  else bar.removeAttribute("value"); // indeterminate
  byId("models-cancel").hidden = !["fetching", "checking"].includes(found?.state);
  byId("models-load").disabled = pending;
  setText(byId("models-say"), pending || showEnd ? (STATE_TEXTS[found?.state]?.(found) ?? "") : "");
  if (showEnd && found?.state === "failed") complain(found.message);
}

function complain(text) {
  const place = byId("models-error");
  setText(place, text);
  place.hidden = !text;
}

/** Return the server's answer, or null after showing the error. */
async function asked(options) {
  try {
    return await ask(PATH, options);
  } catch ({ message }) {
    complain(message);
    return null;
  }
}
