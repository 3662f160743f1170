// The panel an instrument is shown in: its header, its states, its numbers as a table, its files.

import { byId, setText } from "../dom.js";
import { fetchCode, Unfetched } from "../fetchcode.js";
import { ready, state } from "../state.js";
import { contextNow, Missing } from "./context.js";
import { save } from "./save.js";
import { drawTable } from "./table.js";

/** What takes longer than this is said to take time. */
const BUSY_AFTER_MS = 200;
const LOST = "The server cannot be reached. This goes on by itself when it can.";

const panel = byId("look");
const roots = new Map();
/** What was fetched: what an instrument does, by its entry in instruments.js. */
const fetched = new Map();

/** The entry of the instrument on show, and what became of it. */
let shown = null;
let source = "";
let asTable = false;
let pending = false;
let again = false;
let leaving = new AbortController();
let busyTimer = 0;

export function setUpPanel(close) {
  byId("look-close").addEventListener("click", close);
  byId("look-table").addEventListener("click", () => showTable(!asTable));
  for (const button of byId("look-save").querySelectorAll("button"))
    button.addEventListener("click", () => saveAs(button.dataset.kind));
}

/** Show another instrument (its entry in instruments.js), or null for none. */
export function present(entry) {
  if (shown === entry) return;
  leave();
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

/** Fetch and set up an instrument, once. Fails with Missing while the server cannot be reached. */
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
    root.tabIndex = 0; // whoever scrolls by keyboard has to get there
    root.setAttribute("role", "group");
    root.setAttribute("aria-label", entry.title);
  }
  new ResizeObserver(refresh).observe(root);
}

function leave() {
  if (!shown) return;
  leaving.abort();
  leaving = new AbortController();
  notBusy();
  pending = again = false;
  fetched.get(shown)?.hide?.();
}

/** Show what is looked at now. While an instrument works on an answer, the newest request waits. */
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

/** Wait for an answer of the engine (or for the code that asks), and say so when it takes long. */
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
    return "Nothing has been run yet. Send a prompt, then look closer.";
  if (needs === "token" && !token) return "No token yet. The prompt is being read.";
  if (asks && state.replay)
    return "The engine would have to compute this, and a replay is shown without one.";
  if (asks && !ready())
    return state.line === "open"
      ? "The engine is not ready. This goes on by itself when it is."
      : LOST;
  return "";
}

function done(from) {
  say("");
  tell(from ?? "");
  if (asTable) drawNumbers();
}

/** `error`: a Missing, what the server answered ({code, message}), or a mistake of the page. */
function failed(error) {
  const missing = error instanceof Missing || error.code === "lost";
  tell("");
  say(missing ? error.message : `This could not be shown: ${error.message}`, !missing);
  if (error instanceof Error && !missing) reportError(error);
}

/** Where the numbers come from, under the picture. */
function tell(text) {
  source = text;
  setText(byId("look-source"), text);
}

/** In the place of the picture: why there is none. */
function say(text, bad = false) {
  const box = byId("look-say");
  setText(box, text);
  box.hidden = !text;
  box.dataset.tone = bad ? "bad" : "";
  panel.toggleAttribute("data-nothing", !!text);
  const nothing = !!text || !fetched.has(shown);
  for (const button of panel.querySelectorAll("[data-kind], #look-table")) button.disabled = nothing;
}

// ---- the same as numbers ---------------------------------------------------------------------

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
