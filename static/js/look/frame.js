// Instrument panel ("Look closer"): opens instruments over the page, which show the focused token
// or the run.
//
// An instrument is an object. The panel loads it when first opened (look/instruments.js), opens and
// closes it, passes it the focus, and provides header, states, table and file export.
//
//   needs   what it requires: "run" (an answer), "token" (a focused token) or "nothing"
//   asks    true if it queries the engine, which must then be ready
//   setUp(root)     called once, before the first `show`: build the picture in `root`
//   show(context)   draw the focus (look/shared/context.js). Returns, or resolves to, the source of
//                   the numbers: "Measured on this run." Called again in the frame after anything
//                   changed, but never while still pending. Throws Missing with a sentence when
//                   there is nothing to show.
//   hide(isClosed)  cancel timers and requests; `isClosed`: no other instrument opens. Optional
//   table()         the numbers of the last `show`: {columns: [name | {name, format}], rows: [[…]]}
//
// A canvas is fitted to its box in every `show`. To redraw after an instrument's own controls
// changed, call changed("look").

import { closeSheet } from "../ui/bottom-sheets.js";
import { byId, focusedElement } from "../ui/dom.js";
import { INSTRUMENTS } from "./instruments.js";
import { prepare, present, refresh, setUpPanel } from "./shared/panel.js";
import { drawTabs, tabStop, setUpTabs } from "./shared/tabs.js";
import { changed, on, state } from "../state.js";

const TOPICS = "hello connection turns tokens focus settings interventions counted size theme look";

/** @type {InstrumentEntry | null} */
let open = null;
/** @type {InstrumentEntry | null} */
let last = null;
/** The element focused before the panel took the focus. @type {HTMLElement | null} */
let opener = null;

export function setUpInstruments() {
  setUpPanel(() => closeInstrument());
  /** @param {InstrumentEntry} one */
  const select = (one) => (open === one ? closeInstrument() : openInstrument(one));
  setUpTabs(INSTRUMENTS, select);
  byId("look-sheet").addEventListener("click", toggleInstrument);
  on(TOPICS, refresh);
  on("hello", onHello);
  onHello();
}

/**
 * May it be opened? Before a model is known, any instrument in the address may.
 *
 * @param {InstrumentEntry} instrument
 */
const mayOpen = ({ fits }) => !fits || !state.hello || fits(state.hello);
/** @param {InstrumentEntry} instrument */
const hasTab = (instrument) =>
  instrument === open || !instrument.fits || (!!state.hello && mayOpen(instrument));

/** Close an instrument that does not fit a newly loaded model. */
function onHello() {
  if (open && !mayOpen(open)) closeInstrument();
  else drawTabs(open, nextToOpen(), hasTab);
}

/** The last opened instrument: it has the tab stop, and the L key opens it. */
const nextToOpen = () => (last && hasTab(last) ? last : INSTRUMENTS[0]);

/** @param {string | null} name */
const byName = (name) => INSTRUMENTS.find((one) => one.name === name && mayOpen(one));

/** @param {InstrumentEntry} instrument */
function openInstrument(instrument) {
  open = last = instrument;
  draw();
}

/** Name of the open instrument, or null. */
export const openInstrumentName = () => open?.name ?? null;

/**
 * Open the instrument of this name (null: close) without changing the last opened one.
 *
 * @param {string | null} name
 */
export function showInstrument(name) {
  const own = last;
  const wanted = byName(name);
  if (!wanted) closeInstrument();
  else if (wanted !== open) openInstrument(wanted);
  last = own;
}

/** Resolves when the open instrument of this name has loaded. @param {string} name */
export async function whenPrepared(name) {
  const entry = byName(name);
  if (entry) await prepare(entry);
}

/** Close the panel; true when it was open. */
export function closeInstrument() {
  if (!open) return false;
  const within = byId("look").contains(document.activeElement);
  open = null;
  draw();
  if (within) (opener?.isConnected ? opener : tabStop()).focus();
  opener = null;
  return true;
}

/** Close the instrument, or open the last one and focus it. A bottom sheet would cover most of it. */
export function toggleInstrument() {
  if (closeInstrument()) return;
  closeSheet();
  opener = focusedElement();
  openInstrument(nextToOpen());
  byId("look").focus({ preventScroll: true });
}

/**
 * Open the instrument of this name; false if there is none, or it does not fit the model.
 *
 * @param {string} name
 */
export function openByName(name) {
  const wanted = byName(name);
  if (wanted) openInstrument(wanted);
  return wanted !== undefined;
}

function draw() {
  document.body.toggleAttribute("data-look", !!open);
  byId("look-sheet").setAttribute("aria-expanded", String(!!open));
  drawTabs(open, nextToOpen(), hasTab);
  present(open);
  changed("size");
}
