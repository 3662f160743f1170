// View of Attention: a strip per head for the focused token, and the context's words for one head.

import { METRICS } from "../../turns/metrics.js";
import { changed } from "../../state.js";
import { focusRow, metric, pin, point, view } from "../../view.js";
import {
  ask,
  askBack,
  askBackSoon,
  measureWide,
  retryWide,
  stopAsking,
  wide,
} from "./ask.js";
import { AttentionFrame, sourceOf } from "./frame.js";
import { HeadMap } from "./map.js";
import { headsOf, lineOf, PLACES, nameOf } from "./scores.js";
import { ContextWords } from "./words.js";
import { indexAt } from "../shared/context.js";

/** @type {AttentionFrame} */
let frame;
/** @type {HeadMap} */
let map;
/** @type {ContextWords} */
let words;
/** The selected cell and the one under the pointer: {layer, head}, see `headsOf`. @type {HeadChoice} */
let chosen = { layer: null, head: null };
/** @type {HeadChoice | null} */
let hovered = null;
/** @type {AttentionMode} */
let mode = "weights";
let over = false;
/** Data of the last `show`: see `ask` of look/attention/ask.js. @type {AttentionNow} */
let now;

/** @type {InstrumentView<TokenFocus>} */
export const heads = {
  name: "heads",
  label: "Heads",

  /** @param {HTMLElement} root */
  setUp(root) {
    frame = new AttentionFrame(root, {
      onMode: (value) => again(() => (mode = value)),
      onOver: () => again(toggleOver),
      onAskBack: () => askBack(now),
      onKey,
    });
    map = new HeadMap(frame.canvas, (choice) => hover(choice), choose);
    words = new ContextWords(frame.words, onPoint, onPin);
  },


  show(context) {
    const asked = ask(context);
    return asked instanceof Promise ? asked.then(draw) : draw(asked);
  },

  hide() {
    hovered = null;
    stopAsking();
  },

  table: () => (mode === "weights" ? tableOfTokens() : tableOfHeads()),
};

/** Redraw after a control changed. @param {() => void} change */
function again(change) {
  change();
  changed("look");
}

function toggleOver() {
  over = !over;
  if (now) retryWide(now);
}

/** @param {AttentionNow} asked */
function draw(asked) {
  now = asked;
  askBackSoon(now);
  if (over) measureWide(now);
  const { nLayers, nHeads } = now;
  if ((chosen.layer ?? 0) >= nLayers || (chosen.head ?? 0) >= nHeads) chosen = { layer: null, head: null };
  const measured = over ? wide(now) : null;
  /** @type {AttentionShown} */
  const shown = {
    ...now,
    mode,
    scores: measured?.scores ?? now.scores,
    lineAt: (choice, line) => lineOf(now, headsOf(choice, nLayers, nHeads), line),
  };
  const choice = hovered ?? chosen;
  const line = shown.lineAt(choice);
  map.draw(shown, choice, view.row?.layer);
  words.draw({ texts: now.texts, line, position: now.position });
  frame.draw({ shown, choice, line, over, measured });
  return sourceOf(now);
}

// ---- choosing --------------------------------------------------------------------------------

/** @param {HeadChoice | null} choice */
function hover(choice) {
  if (same(choice, hovered)) return;
  again(() => (hovered = choice));
}

/** @param {HeadChoice | null} a @param {HeadChoice | null} b */
const same = (a, b) => a === b || (a && b && a.layer === b.layer && a.head === b.head);

/**
 * Select a cell; the core sample focuses its layer, and its head if it has a row per head.
 *
 * @param {HeadChoice} choice
 */
function choose(choice) {
  chosen = choice;
  hovered = null;
  if (choice.layer !== null) {
    const perHead = metric() === METRICS.entropy && view.parts > 1;
    focusRow({ layer: choice.layer, part: perHead ? (choice.head ?? 0) : 0 });
  }
  changed("look");
}

/**
 * Select a head for the tour without moving the core sample's row; returns the previous selection.
 * With `own`, only while that one is still selected.
 *
 * @param {HeadChoice} choice
 * @param {HeadChoice | null} [own]
 */
export function selectHead(choice, own = null) {
  const before = chosen;
  if (own && !same(own, before)) return before;
  again(() => (chosen = choice));
  return before;
}

/** Arrow keys move over the cells; below the lowest layer is the mean of all. @param {KeyboardEvent} event */
function onKey(event) {
  if (!now || event.ctrlKey || event.metaKey || event.altKey) return;
  const to = moved(event.key, chosen, now);
  if (!to) return;
  event.preventDefault();
  choose(to);
}

/**
 * @param {string} key
 * @param {HeadChoice} choice
 * @param {HeadCounts} headCounts
 * @returns {HeadChoice | null}
 */
function moved(key, { layer, head }, { nLayers, nHeads }) {
  const all = { layer: null, head: null };
  if (layer === null) return key === "ArrowUp" ? { layer: 0, head: null } : null;
  const at = head ?? -1;
  /** @type {Record<string, number>} */
  const heads = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: -1, End: nHeads - 1 };
  if (key === "ArrowUp") return layer + 1 < nLayers ? { layer: layer + 1, head } : null;
  if (key === "ArrowDown") return layer ? { layer: layer - 1, head } : all;
  const next = heads[key];
  if (next === undefined || next < -1 || next >= nHeads) return null;
  return { layer, head: next < 0 ? null : next };
}

/** @param {number | null} position */
function onPoint(position) {
  const index = position === null || !now ? null : indexAt(now, position);
  point(index);
}

/** @param {number} position */
function onPin(position) {
  const index = now && indexAt(now, position);
  if (index !== null) pin(index);
}

// ---- numbers ---------------------------------------------------------------------------------

/**
 * Table of tokens: the mean weight, and that of each head of the selected layer, or of each layer.
 */
function tableOfTokens() {
  const { nLayers, nHeads, position, texts, ids } = now;
  const { layer } = chosen;
  const n = layer === null ? nLayers : nHeads;
  /** @param {number} i */
  const one = (i) => (layer === null ? { layer: i, head: null } : { layer, head: i });
  const choices = [{ layer, head: null }, ...Array.from({ length: n }, (_, i) => one(i))];
  const names = choices.map(nameOfChoice);
  const lines = choices.map((choice) => lineOf(now, headsOf(choice, nLayers, nHeads)));
  /** @param {number} at */
  const side = (at) => (at <= position ? "attended to" : "attends to it");
  return {
    columns: ["token", "id", "text", "side", ...names],
    rows: texts.map((text, at) => [
      at + 1,
      ids[at],
      text,
      side(at),
      ...lines.map((line) => (Number.isNaN(line[at]) ? null : line[at])),
    ]),
  };
}

/** @param {HeadChoice} choice */
function nameOfChoice({ layer, head }) {
  if (layer === null) return "all";
  return head === null ? `layer ${layer}` : `head ${head}`;
}

/** Table of heads with their scores. */
function tableOfHeads() {
  const { nLayers, nHeads, nKvHeads, bits } = now;
  const scores = (over && wide(now)?.scores) || now.scores;
  const rows = [];
  for (let layer = nLayers - 1; layer >= 0; layer -= 1)
    for (let head = 0; head < nHeads; head += 1) {
      const i = layer * nHeads + head;
      const named = nameOf(scores, i)?.place ?? "";
      const group = Math.floor((head * nKvHeads) / nHeads);
      rows.push([layer, head, group, named, ...PLACES.map((p) => scores[p]?.[i] ?? null), bits[i]]);
    }
  return {
    columns: ["layer", "head", "KV head", "named", ...PLACES, "entropy (bits)"],
    rows,
  };
}

