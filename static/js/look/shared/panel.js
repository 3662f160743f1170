// Panel of an instrument: header, status messages, table of numbers, and file export.

import { markTerms } from "../../glossary/terms.js";
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
/** @type {Map<InstrumentEntry, HTMLElement>} */
const roots = new Map();
/** Loaded instruments, by their entry in instruments.js. @type {Map<InstrumentEntry, Instrument>} */
const fetched = new Map();

/** Entry of the shown instrument, and its state. @type {InstrumentEntry | null} */
let shown = null;
let source = "";
let asTable = false;
let pending = false;
let again = false;
let leaving = new AbortController();
let busyTimer = 0;

/** Close the panel. */
export let closePanel = () => {};

/** @param {() => void} close */
export function setUpPanel(close) {
  closePanel = close;
  byId("look-close").addEventListener("click", close);
  byId("look-table").addEventListener("click", () => showTable(!asTable));
  for (const button of byId("look-save").querySelectorAll("button"))
    button.addEventListener("click", () => saveAs(button.dataset.kind ?? ""));
}

/** Show another instrument (its entry in instruments.js), or none. @param {InstrumentEntry | null} entry */
export function present(entry) {
  if (shown === entry) return;
  leave(!entry);
  shown = entry;
  panel.hidden = !entry;
  if (!entry) return;
  setText(byId("look-title"), entry.title);
  byId("look-what").textContent = entry.what;
  markTerms(byId("look-what"));
  for (const [other, root] of roots) root.hidden = other !== entry;
  tell("");
  say("");
  refresh();
}

/**
 * Load and set up an instrument once. Rejects with Missing while the server cannot be reached.
 *
 * @param {InstrumentEntry} entry
 */
export async function prepare(entry) {
  const instrument = await fetchCode(entry.fetch).catch((error) => {
    throw error instanceof Unfetched ? new Missing(LOST) : error;
  });
  if (!fetched.has(entry)) {
    fetched.set(entry, instrument);
    setUpInstrument(entry, instrument);
  }
  return instrument;
}

/** @param {InstrumentEntry} entry @param {Instrument} instrument */
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

/** @param {boolean} isClosed */
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
  const entry = shown;
  if (!entry) return;
  if (pending) {
    again = true;
    return;
  }
  const { signal } = leaving;
  pending = true;
  again = false;
  try {
    const instrument = fetched.get(entry) ?? (await patiently(prepare(entry), signal));
    const from = signal.aborted ? "" : showNow(entry, instrument, signal);
    const known = from instanceof Promise ? await patiently(from, signal) : from;
    if (!signal.aborted) done(entry, known);
  } catch (error) {
    if (!signal.aborted) failed(error);
  }
  if (signal.aborted) return;
  pending = false;
  if (again) refresh();
}

/** @param {InstrumentEntry} entry @param {Instrument} instrument @param {AbortSignal} signal */
function showNow({ name }, instrument, signal) {
  const context = contextNow(signal);
  const reason = whyNot(name, instrument, context);
  if (reason) throw new Missing(reason);
  return instrument.show(/** @type {TokenFocus} */ (context)); // what it needs is there
}

/**
 * Await the engine or the instrument's code, with a message if it takes long.
 *
 * @template T
 * @param {Promise<T>} answer
 * @param {AbortSignal} signal
 */
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

/**
 * Why the instrument cannot be shown now, or "".
 *
 * @param {string} name
 * @param {Instrument} instrument
 * @param {ReturnType<typeof contextNow>} context
 */
function whyNot(name, { needs, asks }, { hello, answer, token }) {
  if (!hello) return state.engine.message || "Connecting to the server.";
  if (needs !== "nothing" && !answer?.segment)
    return "No run yet. Send a prompt first.";
  if (needs === "token" && !token) return "No token yet. Prefill is running.";
  if (whyMissing(name)) return whyMissing(name);
  if (asks && state.replay) return "This needs the engine, and a replay has none.";
  if (asks && !ready())
    return state.connection === "open"
      ? "The engine is not ready. Continues automatically once it is."
      : LOST;
  return "";
}

/** @param {InstrumentEntry} instrument @param {string} from */
function done({ name }, from) {
  say("");
  tell([from, remarkOn(name)].filter(Boolean).join(" "));
  if (asTable) drawNumbers();
}

/** `error`: a Missing, the server's error {code, message}, or a fault of the page. @param {unknown} error */
function failed(error) {
  const { code, message } = /** @type {Problem} */ (error);
  const missing = error instanceof Missing || CALM.has(code);
  tell("");
  say(missing ? sentence(message) : `This could not be shown: ${message}`, !missing);
  if (error instanceof Error && !missing) reportError(error);
}

/** Show the source of the numbers under the picture. @param {string} text */
function tell(text) {
  source = text;
  setText(byId("look-source"), text);
}

/** Show a message in place of the picture. @param {string} text @param {boolean} [bad] */
function say(text, bad = false) {
  const box = byId("look-message");
  setText(box, text);
  box.hidden = !text;
  box.dataset.tone = bad ? "bad" : "";
  panel.toggleAttribute("data-nothing", !!text);
  const nothing = !!text || !shown || !fetched.has(shown);
  for (const button of [...byId("look-save").querySelectorAll("button"), byId("look-table")])
    button.disabled = nothing;
}

// ---- table and files -------------------------------------------------------------------------

/** @param {boolean} wanted */
function showTable(wanted) {
  asTable = wanted;
  byId("look-table").setAttribute("aria-pressed", String(asTable));
  panel.toggleAttribute("data-table", asTable);
  if (asTable) drawNumbers();
}

function drawNumbers() {
  const instrument = shown && fetched.get(shown);
  if (!shown || !instrument) return;
  const box = byId("look-numbers");
  const { scrollTop } = box;
  box.replaceChildren(drawTable(instrument.table(), shown.title));
  box.scrollTop = scrollTop;
}

/** @param {string} kind */
function saveAs(kind) {
  const { hello } = state;
  const instrument = shown && fetched.get(shown);
  const root = shown && roots.get(shown);
  if (!hello || !shown || !instrument || !root) return;
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
  save(kind, { numbers: () => instrument.table(), about, root, lines });
}
