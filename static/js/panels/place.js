// Where the model runs: on the server, or in this browser. A part of the model dialog, which also has
// what this browser keeps of models.

import { byId, el, setText } from "../ui/dom.js";
import { bytes } from "../ui/format.js";
import { stop } from "../chat/session.js";
import { adapterName, requestAdapter } from "../local/gpu/device.js";
import { hasServer, isLocal, moveEngine } from "../net/connection.js";
import { on, state } from "../state.js";
import { drawKept } from "./kept-models.js";
import { memoryOf, smallerThan, whyNotFit } from "./place-fit.js";

const PATH = "/api/local";
const POLL_MS = 400;
/** A run that is being stopped ends within a few steps. */
const STOP_MS = 3000;
const LOST = "The server cannot be reached.";

const dialog = byId("models");
/** What the server offers (app/local/exports.py), or null. */
let offered = null;
/** The `hello` of the server's engine. */
let ofServer = null;
/** The storage type that is being prepared or runs here, or null. */
let here = null;
let isMoving = false;
/** The storage type whose start here was told already, or null. */
let toldReady = null;
/** Why this browser cannot run a model, or "". */
let noGpu = "";

export function setUpPlace() {
  on("hello connection", draw);
  if (!hasServer) return;
  byId("place-to-server").addEventListener("click", toServer);
  byId("place-to-browser").addEventListener("click", toBrowser);
  byId("place-dtype").addEventListener("change", drawFit);
}

/** Draw this part of the dialog, which has just been opened. */
export async function drawPlace() {
  complain("");
  draw();
  await Promise.all([drawBrowser(), drawOffers(), drawKept()]);
  draw();
}

// ---- what each side has ----------------------------------------------------------------------

async function drawBrowser() {
  const facts = [];
  try {
    const adapter = await requestAdapter();
    const { maxBufferSize, maxStorageBufferBindingSize: binding } = adapter.limits;
    facts.push(adapterName(adapter));
    facts.push(`buffers up to ${bytes(maxBufferSize)}, ${bytes(binding)} bound`);
    noGpu = "";
  } catch ({ message }) {
    noGpu = message;
    facts.push(`Not possible: ${message}`);
  }
  if (navigator.deviceMemory) facts.push(`device memory ${toldMemory()}`);
  setText(byId("place-browser-facts"), facts.join(" · "));
}

/** Browsers round what they tell, and tell 8 GiB at most. */
const toldMemory = () =>
  navigator.deviceMemory >= 8 ? "8 GiB or more" : `${navigator.deviceMemory} GiB`;

async function drawOffers() {
  if (!hasServer) return;
  offered = await ask("GET");
  const chooser = byId("place-dtype");
  const before = chooser.value || here || offered?.dtype;
  const options = (offered?.offers ?? []).map(({ dtype, memory }) => {
    const option = el("option", "", `${dtype}, ${bytes(memory)}`);
    option.value = dtype;
    return option;
  });
  chooser.replaceChildren(...options);
  if (before) chooser.value = before;
  drawFit();
}

const chosen = () => offered?.offers.find(({ dtype }) => dtype === byId("place-dtype").value);

/** Why the chosen storage type does not fit, with what would, or "". */
const misfit = () =>
  chosen() ? whyNotFit(chosen(), offered.offers, memoryOf(navigator.deviceMemory), bytes) : "";

function drawFit() {
  const offer = chosen();
  const words = offer
    ? misfit() ||
      `The model needs ${bytes(offer.memory)} of memory; ${bytes(offer.weights)} of weights are ` +
        "fetched once"
    : (offered?.why_not ?? "");
  setText(byId("place-fit"), sentence(words));
}

const sentence = (text) => text && text[0].toUpperCase() + text.slice(1) + (text.endsWith(".") ? "" : ".");

function draw() {
  const local = isLocal();
  if (state.hello && !local) ofServer = state.hello;
  if (!dialog.open || !hasServer) return;
  const { model, device } = ofServer ?? {};
  const facts = model
    ? `${device.name} · ${device.backend} · ${[model.name, model.dtype].filter(Boolean).join(" as ")}`
    : "";
  setText(byId("place-server-facts"), facts);
  mark("place-server", "place-to-server", "Run on the server", !local);
  mark("place-browser", "place-to-browser", "Run in this browser", local && here === chosen()?.dtype);
  byId("place-to-server").disabled ||= isMoving;
  byId("place-to-browser").disabled ||= isMoving || !chosen() || !!noGpu;
  if (local) drawLoading();
}

/** Mark the side on which the model runs. */
function mark(side, button, label, isHere) {
  byId(side).toggleAttribute("data-here", isHere);
  setText(byId(button), isHere ? "It runs here" : label);
  byId(button).disabled = isHere;
}

/** Show how far the engine in this browser is. */
function drawLoading() {
  const { state: engine, message, progress } = state.engine;
  if (state.connection === "lost" || engine === "failed") {
    const less = smallerThan(here, offered?.offers ?? []);
    const instead = less.length ? ` ${less.join(" or ")} need less memory.` : "";
    tell("");
    complain(
      `${sentence(state.connection === "lost" ? state.lost : message)}${instead} ` +
        "The text is kept; the server can go on with it.",
    );
  } else if (engine === "loading") tell(sentence(message), progress);
  else if (engine === "ready" && toldReady !== here) {
    toldReady = here;
    tell(`It runs in this browser now, as ${here}.`);
    drawKept();
  }
}

// ---- moving ----------------------------------------------------------------------------------

async function toServer() {
  complain("");
  tell("");
  await stopRun();
  here = null;
  moveEngine(null);
  tell("It runs on the server now.");
  draw();
}

async function toBrowser() {
  const refused = misfit();
  if (refused) return complain(sentence(refused));
  const { dtype } = chosen();
  complain("");
  isMoving = true;
  draw();
  const ready = await prepared(dtype);
  isMoving = false;
  if (!ready) return draw();
  // Else the browser may remove what it keeps when its disk is full.
  navigator.storage?.persist?.().catch(() => {});
  await stopRun();
  here = dtype;
  toldReady = null;
  moveEngine(ready.base);
  return draw();
}

/** Have the server write the export of a storage type. Returns its state, or null after an error. */
async function prepared(dtype) {
  let found = await ask("POST", { dtype });
  while (found?.state === "writing") {
    tell(`The server prepares the model as ${dtype}: ${found.message || "starting"}.`, found.progress);
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    offered = await ask("GET");
    found = offered?.offers.find((offer) => offer.dtype === dtype)?.export ?? null;
  }
  if (found?.state === "ready") return found;
  tell("");
  if (found) complain(sentence(found.message));
  return null;
}

/** Stop the run of this page and wait for its end: it cannot move. */
async function stopRun() {
  const end = Date.now() + STOP_MS;
  if (state.connection !== "open" || !stop()) return;
  while (state.active && Date.now() < end) await new Promise((resolve) => setTimeout(resolve, 30));
}

// ---- what is said ----------------------------------------------------------------------------

/** `progress`: the share that is done; null: not known; left out: nothing is going on. */
function tell(text, progress) {
  setText(byId("place-say"), text);
  const bar = byId("place-progress");
  bar.hidden = progress === undefined;
  if (typeof progress === "number") bar.value = progress;
  else bar.removeAttribute("value");
}

function complain(text) {
  const place = byId("place-error");
  setText(place, text);
  place.hidden = !text;
}

/** Return the response's object, or null after showing the error. */
async function ask(method, body = null) {
  const headers = body ? { "Content-Type": "application/json" } : {};
  try {
    const response = await fetch(PATH, { method, headers, body: body && JSON.stringify(body) });
    const answer = await response.json();
    if (response.ok) return answer;
    complain(answer.error.message);
  } catch {
    complain(LOST);
  }
  return null;
}
