// Where the model runs: on the server, or in this browser. A part of the model dialog, which also has
// what this browser keeps of models.

import { byId, el, setText } from "../ui/dom.js";
import { bytes, sentence } from "../ui/format.js";
import { stop } from "../turns/stop.js";
import { stopLeft } from "../conversations/left.js";
import { adapterName, requestAdapter } from "../local/gpu/device.js";
import { memoryOf } from "../local/hub/device-memory.js";
import { isModelName } from "../local/hub/model-name.js";
import { ask } from "../net/ask.js";
import { absolute, hasServer, isLocal, moveEngine, placeHere } from "../net/connection.js";
import { on, state } from "../state.js";
import { drawKept } from "./kept-models.js";
import { adaptersSaid, smallerThan, whyNotFit } from "./place-fit.js";


const PATH = "api/local";
const POLL_MS = 400;
/** A run that is being stopped ends within a few steps. */
const STOP_MS = 3000;
/**
 * How a model of the hub can be stored where the server's own cannot run here.
 *
 * @type {Exported.PlanWeight["dtype"][]}
 */
const DTYPES = ["f32", "f16", "q8", "q4"];

const dialog = byId("models");
/** What the server offers (app/local/exports.py), or null. @type {Answers.DtypeOffers | null} */
let offered = null;
/** The `hello` of the server's engine. @type {ToPage.Hello | null} */
let ofServer = null;
let isMoving = false;
/** The place here whose start was told already. @type {PlaceHere | null} */
let toldReady = null;
/**
 * Field for a model of the hub, and the hub; null where the server names none.
 *
 * @type {HTMLInputElement | null}
 */
const typed = byId("place-hub");
/** @type {HTMLMetaElement | null} */
const meta = document.querySelector('meta[name="tokenglass-hub"]');
const hub = meta?.content ?? "";
/** GiB, of browsers that tell it. */
const { deviceMemory } = /** @type {Navigator & {deviceMemory?: number}} */ (navigator);
/** Why this browser cannot run a model, or "". */
let noGpu = "";

export function setUpPlace() {
  on("hello connection", draw);
  if (!hasServer) return;
  byId("place-to-server").addEventListener("click", () => moving(toServer));
  byId("place-to-browser").addEventListener("click", () => moving(toBrowser));
  byId("place-dtype").addEventListener("change", draw);
  typed?.addEventListener("input", draw);
}

/** Draw this part of the dialog, which has just been opened. */
export async function drawPlace() {
  complain("");
  if (typed) typed.value ||= placeHere()?.name ?? "";
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
  } catch (error) {
    noGpu = /** @type {Error} */ (error).message;
    facts.push(`Not possible: ${noGpu}`);
  }
  if (deviceMemory) facts.push(`device memory ${toldMemory(deviceMemory)}`);
  setText(byId("place-browser-facts"), facts.join(" · "));
}

/** Browsers round what they report, and report 8 GiB at most. @param {number} told */
const toldMemory = (told) => (told >= 8 ? "8 GiB or more" : `${told} GiB`);

async function drawOffers() {
  if (!hasServer) return;
  offered = await asked();
  const chooser = byId("place-dtype");
  const before = chooser.value || placeHere()?.dtype || offered?.dtype;
  const others = typed ? DTYPES.map((dtype) => ({ dtype, memory: 0 })) : [];
  const listed = offered?.offers.length ? offered.offers : others;
  const options = listed.map(({ dtype, memory }) => {
    const option = el("option", "", memory ? `${dtype}, ${bytes(memory)}` : dtype);
    option.value = dtype;
    return option;
  });
  chooser.replaceChildren(...options);
  if (before) chooser.value = before;
  drawFit();
}

/** The model of the hub that is typed in, or "". */
const wantedName = () => typed?.value.trim() ?? "";

const chosen = () => offered?.offers.find(({ dtype }) => dtype === byId("place-dtype").value);

/** Why the chosen storage type does not fit, with what would, or "". */
function misfit() {
  const offer = chosen();
  if (!offer || wantedName()) return "";
  return whyNotFit(offer, offered?.offers ?? [], memoryOf(deviceMemory), bytes);
}

function drawFit() {
  const offer = chosen();
  const loras = ofServer?.model.loras ?? [];
  if (wantedName()) {
    const words =
      `This browser fetches it from ${new URL(hub).host} in pieces, and stores it as ` +
      `${byId("place-dtype").value}. What it needs is known once its config has been read.`;
    return setText(byId("place-fit"), withAdapters(words, adaptersSaid(loras, [])));
  }
  const words = offer
    ? misfit() ||
      `The model needs ${bytes(offer.memory)} of memory; ${bytes(offer.weights)} of weights are ` +
        "fetched once"
    : (offered?.why_not ?? "");
  const adapters = adaptersSaid(loras, offered?.loras ?? []);
  return setText(byId("place-fit"), withAdapters(sentence(words), adapters));
}

/** @param {string} words @param {string} adapters */
const withAdapters = (words, adapters) => [words, adapters].filter(Boolean).join(" ");

function draw() {
  const local = isLocal();
  if (state.hello && !local) ofServer = state.hello;
  if (!dialog.open || !hasServer) return;
  setText(byId("place-server-facts"), serverFacts());
  mark("place-server", "place-to-server", "Run on the server", !local);
  const here = placeHere();
  const sameHere = here?.dtype === byId("place-dtype").value && here.name === wantedName();
  mark("place-browser", "place-to-browser", "Run in this browser", local && sameHere && !broken());
  byId("place-browser").toggleAttribute("data-here", local);
  byId("place-to-server").disabled ||= isMoving;
  byId("place-to-browser").disabled ||= isMoving || !(chosen() || wantedName()) || !!noGpu;
  drawFit();
  if (local) drawLoading();
}

/** The server's device, which a page does not know before it was connected, and its model. */
function serverFacts() {
  const { model, device } = ofServer ?? {};
  const [name, dtype] = model ? [model.name, model.dtype] : [offered?.model, offered?.dtype];
  const runs = [name, dtype].filter(Boolean).join(" as ");
  return [device?.name, device?.backend, runs].filter(Boolean).join(" · ");
}

/** Has the engine of this page failed or gone? */
const broken = () => state.connection === "lost" || state.engine.state === "failed";

/**
 * Mark the side on which the model runs.
 *
 * @param {"place-server" | "place-browser"} side
 * @param {"place-to-server" | "place-to-browser"} button
 * @param {string} label
 * @param {boolean} isHere
 */
function mark(side, button, label, isHere) {
  byId(side).toggleAttribute("data-here", isHere);
  setText(byId(button), isHere ? "It runs here" : label);
  byId(button).disabled = isHere;
}

/** Show how far the engine in this browser is. */
function drawLoading() {
  const { state: engine, message, progress } = state.engine;
  const here = placeHere();
  if (broken()) {
    const less = here?.name ? [] : smallerThan(here?.dtype ?? "", offered?.offers ?? []);
    const instead = less.length ? ` ${less.join(" or ")} need less memory.` : "";
    tell("");
    complain(
      `${sentence(state.connection === "lost" ? state.lost : message)}${instead} ` +
        "The text is kept; the server can go on with it.",
    );
  } else if (engine === "loading") {
    complain("");
    tell(sentence(message), progress);
  } else if (engine === "ready" && toldReady !== here) {
    toldReady = here;
    tell(`It runs in this browser now, as ${here?.dtype}.`);
    drawKept();
  }
}

// ---- moving ----------------------------------------------------------------------------------

/** Do one move at a time. @param {() => Promise<unknown>} move */
async function moving(move) {
  if (isMoving) return;
  isMoving = true;
  draw();
  try {
    await move();
  } finally {
    isMoving = false;
    draw();
  }
}

async function toServer() {
  complain("");
  tell("");
  await stopRuns();
  moveEngine(null);
  tell("It runs on the server now.");
}

async function toBrowser() {
  const refused = misfit();
  if (refused) return complain(sentence(refused));
  const dtype = byId("place-dtype").value;
  const name = wantedName();
  if (name && !isModelName(name))
    return complain(`“${name}” is not the name of a model; type it as OWNER/MODEL.`);
  complain("");
  const place = name ? ofHub(name, dtype) : await prepared(dtype);
  if (!place) return undefined;
  // Else the browser may remove what it keeps when its disk is full.
  navigator.storage?.persist?.().catch(() => {});
  await stopRuns();
  moveEngine({ ...place, dtype, name });
  return undefined;
}

/** A model of the hub, as the worker loads it. @param {string} name @param {string} dtype */
const ofHub = (name, dtype) => ({ hub: { hub, name, dtype, plans: absolute(`${PATH}/plans`) } });

/**
 * Have the server write the export of a storage type. Returns its place, or null after an error.
 *
 * @param {string} dtype
 * @returns {Promise<PlaceHere | null>}
 */
async function prepared(dtype) {
  let found = await asked({ method: "POST", body: { dtype } });
  while (found?.state === "writing") {
    tell(`The server prepares the model as ${dtype}: ${found.message || "starting"}.`, found.progress);
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    offered = await asked();
    found = offered?.offers.find((offer) => offer.dtype === dtype)?.export ?? null;
  }
  if (found?.state === "ready") return { base: absolute(found.base) };
  tell("");
  if (found) complain(sentence(found.message));
  return null;
}

/** Stop the runs of this page and wait for their ends: they cannot move. */
async function stopRuns() {
  if (state.connection !== "open") return;
  const running = () => state.left.filter(({ phase, answer }) => phase === "running" && answer);
  stop();
  for (const { id } of running()) stopLeft(id);
  const end = Date.now() + STOP_MS;
  while ((state.active || running().length) && Date.now() < end)
    await new Promise((resolve) => setTimeout(resolve, 30));
}

// ---- what is said ----------------------------------------------------------------------------

/**
 * `progress`: the share that is done; null: not known; left out: nothing is going on.
 *
 * @param {string} text
 * @param {number | null} [progress]
 */
function tell(text, progress) {
  setText(byId("place-say"), text);
  const bar = byId("place-progress");
  bar.hidden = progress === undefined;
  if (typeof progress === "number") bar.value = progress;
  else bar.removeAttribute("value");
}

/** @param {string} text */
function complain(text) {
  const place = byId("place-error");
  setText(place, text);
  place.hidden = !text;
}

/**
 * Return the server's answer, or null after showing the error.
 *
 * @param {Parameters<typeof ask>[1]} [options]
 */
async function asked(options) {
  try {
    return await ask(PATH, options);
  } catch (error) {
    complain(sentence(/** @type {Problem} */ (error).message));
    return null;
  }
}
