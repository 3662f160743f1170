// Look closer: instruments that open over the bench and show the focused token, or the run.
//
// An instrument is an object. The frame fetches it when it is first opened (look/instruments.js),
// opens and closes it, tells it what is looked at, and gives it the header, the states, the table
// and the files.
//
//   needs   what there must be: "run" (an answer), "token" (a focused token) or "nothing"
//   asks    true when it asks the engine, which must then be ready
//   setUp(root)     called once, before the first `show`: build the picture in `root`
//   show(context)   draw what is looked at (look/context.js). Returns, or promises, where the
//                   numbers come from: "Measured on this run." Called again in the frame after
//                   anything changed, and never while it still works on an answer. Throws Missing
//                   with a sentence when there is nothing to see.
//   hide()          let go of timers and requests; optional
//   table()         the numbers of the last `show`: {columns: [name | {name, format}], rows: [[…]]}
//
// A picture drawn on a canvas is fitted to its box in every `show`. To be shown again after an
// instrument's own controls changed: changed("look").

import { byId } from "./dom.js";
import { INSTRUMENTS } from "./look/instruments.js";
import { prepare, present, refresh, setUpPanel } from "./look/panel.js";
import { drawTabs, reachedTab, setUpTabs } from "./look/tabs.js";
import { changed, on, state } from "./state.js";

const TOPICS = "hello line turns tokens focus settings reach counted size theme look";
const HASH = /^#look=([a-z]+)$/;

let open = null;
let last = null;
/** What had the keyboard before the panel took it. */
let opener = null;

export function setUpLook() {
  setUpPanel(() => closeLook());
  setUpTabs(INSTRUMENTS, (instrument) => (open === instrument ? closeLook() : openLook(instrument)));
  byId("look-sheet").addEventListener("click", toggleLook);
  on(TOPICS, refresh);
  on("hello", onHello);
  addEventListener("hashchange", followHash);
  followHash();
  onHello();
}

/** May it be opened? While no model is known, what an address names may. */
const mayOpen = ({ fits }) => !fits || !state.hello || fits(state.hello);
const hasTab = (instrument) =>
  instrument === open || !instrument.fits || (!!state.hello && mayOpen(instrument));

/** Another model, which may lack what the one before had. */
function onHello() {
  if (open && !mayOpen(open)) closeLook();
  else drawTabs(open, nextToOpen(), hasTab);
}

/** The one that was opened last: the Tab key comes to its tab, and a key opens it. */
const nextToOpen = () => (last && hasTab(last) ? last : INSTRUMENTS[0]);

const byName = (name) => INSTRUMENTS.find((one) => one.name === name && mayOpen(one));

function openLook(instrument) {
  open = last = instrument;
  history.replaceState(null, "", `#look=${instrument.name}`);
  draw();
}

/** Name of the instrument that is open, or null. */
export const openInstrument = () => open?.name ?? null;

/** Open the instrument of this name, null closes; what a person opened last stays that. */
export function showInstrument(name) {
  const own = last;
  const wanted = byName(name);
  if (!wanted) closeLook();
  else if (wanted !== open) openLook(wanted);
  last = own;
}

/** Resolves when the instrument of this name, which is open, is there to be used. */
export const whenPrepared = (name) => prepare(byName(name));

/** Close the panel; true when it was open. */
export function closeLook() {
  if (!open) return false;
  const within = byId("look").contains(document.activeElement);
  open = null;
  if (HASH.test(location.hash)) history.replaceState(null, "", location.pathname + location.search);
  draw();
  if (within) (opener?.isConnected ? opener : reachedTab())?.focus();
  opener = null;
  return true;
}

/** Open the instrument that was open last, or close it; by keyboard. */
export function toggleLook() {
  if (closeLook()) return;
  opener = document.activeElement;
  openLook(nextToOpen());
  byId("look").focus({ preventScroll: true });
}

function followHash() {
  const wanted = byName(HASH.exec(location.hash)?.[1]);
  if (wanted) openLook(wanted);
  else if (closeLook()) document.querySelector(":target")?.focus();
}

function draw() {
  document.body.toggleAttribute("data-look", !!open);
  byId("look-sheet").setAttribute("aria-expanded", String(!!open));
  drawTabs(open, nextToOpen(), hasTab);
  present(open);
  changed("size");
}
