// @ts-nocheck
// Panel of an instrument: header, status messages, table of numbers, and file export.

import { byId, setText } from "../../ui/dom.js";
import { fetchCode, Unfetched } from "../../ui/fetch-code.js";
import { remarkOn, whyMissing } from "../../ui/lacks.js";
import { sentence } from "../../ui/format.js";
import { ready, state } from "../../state.js";
import { contextNow, Missing } from "./context.js";
import { save } from "./save.js";
import { drawTable } from "./table.js";

/** "Computing …" is shown after this time. */
const BUSY_AFTER_MS = 200;
/** Codes of errors that are no faults. */
const CALM = new Set(["lost", "not_in_browser"]);
const LOST = "The server cannot be reached. Continues automatically once it can.";

const panel = byId("look");
const roots = new Map();
/** Loaded instruments, by their entry in instruments.js. */
const fetched = new Map();

/** Entry of the shown instrument, and its state. */
let shown = null;
let source = "";
let asTable = false;
let pending = false;
let again = false;
let leaving = new AbortController();
let busyTimer = 0;

/** Close the panel. */
export let closePanel = () => {};

export function setUpPanel(close) {
  closePanel = close;
  byId("look-close").addEventListener("click", close);
  byId("look-table").addEventListener("click", () => showTable(!asTable));
  for (const button of byId("look-save").querySelectorAll("button"))
    button.addEventListener("click", () => saveAs(button.dataset.kind));
}

/** Show another instrument (its entry in instruments.js), or none. */
export function present(entry) {
  if (shown === entry) return;
  leave(!entry);
  shown = entry;
  panel.hidden = !entry;
  if (!entry) return;
  setText(byId("look-title"), entry.title);
  setText(byId("look-what"), entry.what);
  for (const [other, root] of roots) root.hidden = other !== entry;
  tell("");
  say("");
  refresh();
}

/** Load and set up an instrument once. Rejects with Missing while the server cannot be reached. */
export async function prepare(entry) {
  const instrument = await fetchCode(entry.fetch).catch((error) => {
    throw error instanceof Unfetched ? new Missing(LOST) : error;
  });
  if (fetched.has(entry)) return;
  fetched.set(entry, instrument);
  setUpInstrument(entry, instrument);
}

function setUpInstrument(entry, instrument) {
  const root = document.createElement("div");
  root.className = `instrument ${entry.name}`;
  root.hidden = entry !== shown;
  roots.set(entry, root);
  byId("look-body").append(root);
  instrument.setUp(root);
  if (!root.querySelector("button, input, textarea, [tabindex]")) {
    root.tabIndex = 0; // makes it scrollable from the keyboard
    root.setAttribute("role", "group");
    root.setAttribute("aria-label", entry.title);
  }
  new ResizeObserver(refresh).observe(root);
}

function leave(isClosed) {
  if (!shown) return;
  leaving.abort();
  leaving = new AbortController();
  notBusy();
  pending = again = false;
  fetched.get(shown)?.hide?.(isClosed);
}

/** Draw the current focus. While the instrument awaits an answer, one redraw is queued. */
export async function refresh() {
  if (!shown) return;
  if (pending) {
    again = true;
    return;
  }
  const { signal } = leaving;
  pending = true;
  again = false;
  try {
    if (!fetched.has(shown)) await patiently(prepare(shown), signal);
    const from = signal.aborted ? "" : showNow(fetched.get(shown), signal);
    const known = from instanceof Promise ? await patiently(from, signal) : from;
    if (!signal.aborted) done(known);
  } catch (error) {
    if (!signal.aborted) failed(error);
  }
  if (signal.aborted) return;
  pending = false;
  if (again) refresh();
}

function showNow(instrument, signal) {
  const reason = whyNot(instrument);
  if (reason) throw new Missing(reason);
  return instrument.show(contextNow(signal));
}

/** Await the engine or the instrument's code, with a message if it takes long. */
async function patiently(answer, signal) {
  panel.setAttribute("aria-busy", "true");
  busyTimer = setTimeout(() => tell("Computing …"), BUSY_AFTER_MS);
  try {
    return await answer;
  } finally {
    if (!signal.aborted) notBusy();
  }
}

function notBusy() {
  clearTimeout(busyTimer);
  panel.removeAttribute("aria-busy");
}

/** Why the instrument cannot be shown now, or "". */
function whyNot({ needs, asks }) {
  if (!state.hello) return state.engine.message || "Connecting to the server.";
  const { answer, token } = contextNow();
  if (needs !== "nothing" && !answer?.segment)
    return "No run yet. Send a prompt first.";
  if (needs === "token" && !token) return "No token yet. Prefill is running.";
  if (whyMissing(shown.name)) return whyMissing(shown.name);
  if (asks && state.replay) return "This needs the engine, and a replay has none.";
  if (asks && !ready())
    return state.connection === "open"
      ? "The engine is not ready. Continues automatically once it is."
      : LOST;
  return "";
}

function done(from) {
  say("");
  tell([from, remarkOn(shown.name)].filter(Boolean).join(" "));
  if (asTable) drawNumbers();
}

/** `error`: a Missing, the server's error {code, message}, or a fault of the page. */
function failed(error) {
  const missing = error instanceof Missing || CALM.has(error.code);
  tell("");
  say(missing ? sentence(error.message) : `This could not be shown: ${error.message}`, !missing);
  if (error instanceof Error && !missing) reportError(error);
}

/** Show the source of the numbers under the picture. */
function tell(text) {
  source = text;
  setText(byId("look-source"), text);
}

/** Show a message in place of the picture. */
function say(text, bad = false) {
  const box = byId("look-message");
  setText(box, text);
  box.hidden = !text;
  box.dataset.tone = bad ? "bad" : "";
  panel.toggleAttribute("data-nothing", !!text);
  const nothing = !!text || !fetched.has(shown);
  for (const button of panel.querySelectorAll("[data-kind], #look-table"))
    button.disabled = nothing;
}

// ---- table and files -------------------------------------------------------------------------

function showTable(wanted) {
  asTable = wanted;
  byId("look-table").setAttribute("aria-pressed", String(asTable));
  panel.toggleAttribute("data-table", asTable);
  if (asTable && fetched.has(shown)) drawNumbers();
}

function drawNumbers() {
  const box = byId("look-numbers");
  const { scrollTop } = box;
  box.replaceChildren(drawTable(fetched.get(shown).table(), shown.title));
  box.scrollTop = scrollTop;
}

function saveAs(kind) {
  const { hello } = state;
  const about = {
    instrument: shown.name,
    title: shown.title,
    source,
    model: `${hello.model.name} ${hello.model.dtype}`,
    device: hello.device.name,
  };
  const lines = [
    `${shown.title} · ${about.model} · ${about.device}`,
    `${shown.what} ${source}`.trim(),
  ];
  save(kind, { numbers: () => fetched.get(shown).table(), about, root: roots.get(shown), lines });
}
