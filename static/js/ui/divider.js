// The border between the transcript and the core sample. A person may move it: by the pointer, or by
// keys as a slider. The page remembers what share of the height the transcript's row has.

import { byId, clamp, setAttr, one } from "./dom.js";
import { changed } from "../state.js";

const KEY = "tokenglass.divider";
const STEP_PX = 16;
const PAGE_PX = 96;
/** Least height of the transcript's row: a few lines, the status line and the composer. */
const MIN_TALK_PX = 240;
/** What stays in view below a transcript on a page that scrolls. */
const MIN_BELOW_PX = 96;

const divider = byId("divider");
const talk = one(document, ".talk");
const bench = byId("bench");
/** On narrower windows the page scrolls, and no row takes what another leaves. */
const scrolls = matchMedia("(max-width: 1359px)");

/** Share of the bench's or window's height that the transcript's row is to have; null: not chosen. */
let share = read();
/** Least and greatest height of the transcript's row, px. */
let range = { min: MIN_TALK_PX, max: MIN_TALK_PX };

function read() {
  try {
    const kept = Number(localStorage.getItem(KEY));
    return kept > 0 && kept < 1 ? kept : null;
  } catch {
    return null;
  }
}

function remember() {
  try {
    if (share === null) localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, String(share));
  } catch {
    // Without storage the choice is lost on reload.
  }
}

const height = () => (scrolls.matches ? innerHeight : bench.clientHeight);
const talkHeight = () => Math.round(talk.getBoundingClientRect().height);

export function setUpDivider() {
  divider.addEventListener("pointerdown", onDown);
  divider.addEventListener("dblclick", () => choose(null));
  divider.addEventListener("keydown", onKey);
  new ResizeObserver(draw).observe(talk);
}

/**
 * Return the height of the core sample's layers (px) for the chosen place of the border, or null if
 * none was chosen. `otherPx`: height of all but transcript and layers; `leastPx`: of the layers.
 *
 * @param {number} otherPx
 * @param {number} leastPx
 */
export function chosenLayers(otherPx, leastPx) {
  const root = document.documentElement;
  root.style.removeProperty("--h-talk");
  if (scrolls.matches) {
    range = { min: MIN_TALK_PX, max: innerHeight - MIN_BELOW_PX };
    if (share !== null) root.style.setProperty("--h-talk", `${wanted()}px`);
    return null;
  }
  range = { min: MIN_TALK_PX, max: Math.floor(height() - otherPx - leastPx) };
  return share === null ? null : Math.floor(height() - otherPx) - wanted();
}

/** @param {number} px */
const within = (px) => clamp(px, range.min, Math.max(range.min, range.max));
const wanted = () => within(Math.round((share ?? 0) * height()));

/** Give the transcript's row a height (px); null: the usual one. @param {number | null} px */
function choose(px) {
  share = px === null ? null : within(px) / height();
  remember();
  changed("size");
}

function draw() {
  setAttr(divider, "aria-valuemin", String(range.min));
  setAttr(divider, "aria-valuemax", String(Math.max(range.min, range.max)));
  setAttr(divider, "aria-valuenow", String(within(talkHeight())));
  setAttr(divider, "aria-valuetext", `${talkHeight()} pixels for the transcript`);
}

/** @param {PointerEvent} event */
function onDown(event) {
  if (event.button !== 0) return;
  event.preventDefault();
  divider.focus();
  divider.setPointerCapture(event.pointerId);
  const offset = talkHeight() - event.clientY;
  /** @param {PointerEvent} event */
  const move = ({ clientY }) => choose(clientY + offset);
  divider.addEventListener("pointermove", move);
  const drop = () => divider.removeEventListener("pointermove", move);
  divider.addEventListener("lostpointercapture", drop, { once: true });
}

/** @param {KeyboardEvent} event */
function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const now = share === null ? talkHeight() : wanted(); // what the last key chose may not be drawn yet
  /** @type {Record<string, number | null>} */
  const places = {
    ArrowUp: now - STEP_PX,
    ArrowDown: now + STEP_PX,
    PageUp: now - PAGE_PX,
    PageDown: now + PAGE_PX,
    Home: range.min,
    End: range.max,
    Enter: null,
  };
  if (!(event.key in places)) return;
  event.preventDefault();
  choose(places[event.key]);
}
