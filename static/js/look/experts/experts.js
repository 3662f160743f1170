// Which experts every layer gave the tokens to: of the run so far, or of the focused token.

import { routeOf } from "../expertuse.js";
import { el, setText } from "../dom.js";
import { count, percent, plural, tokenLabel } from "../format.js";
import { changed } from "../state.js";
import { numberOf, view } from "../view.js";
import { Missing } from "./context.js";
import { expertOf, gatesOf, layersOf, numbersOf, totalOf } from "./expertsfigures.js";
import { ExpertMap } from "./expertsmap.js";
import { ExpertSide } from "./expertsside.js";
import { LoadLegend, ShareLegend } from "./shares.js";

/** What the colours can show, and their scales. */
const MODES = { run: "This run", token: "This token" };
const legends = { run: new LoadLegend(), token: new ShareLegend() };

let says = null;
let map = null;
let side = null;
let mode = "run";
/** The chosen expert; null: the busiest of the layer. The layer is the core's. */
let expert = null;
/** The cell under the pointer, or null. */
let hovered = null;
/** What the last `show` drew: see `measure`. */
let now = null;

export const experts = {
  needs: "run",

  setUp(root) {
    const bar = root.appendChild(el("div", "ex-bar"));
    bar.append(buildModes());
    says = bar.appendChild(el("p", "ex-says"));
    bar.append(...Object.values(legends).map(({ node }) => node));
    map = new ExpertMap(root, { hover, choose, key: onKey });
    side = new ExpertSide(root);
  },

  show(context) {
    now = measure(context);
    draw();
    return sourceOf(context.answer);
  },

  hide() {
    hovered = null;
  },

  table: () => numbersOf(now.layers, now.stats),
};

function buildModes() {
  const set = el("fieldset", "seg");
  set.append(el("legend", "vh", "Colour shows"));
  for (const [value, name] of Object.entries(MODES)) {
    const choice = el("label", "", name);
    const input = Object.assign(el("input"), { type: "radio", name: "ex-mode", value });
    input.checked = value === mode;
    choice.prepend(input);
    set.append(choice);
  }
  set.addEventListener("change", ({ target }) => {
    mode = target.value;
    changed("look");
  });
  return set;
}

/**
 * use, layers, n, nLayers, mode, stats  what `ExpertMap` draws
 * counted  tokens that `layers` tell of
 * byLayer  `layers` by their numbers
 * at       layer that is looked at: the core's, or the next below it that has experts
 * word     the focused token in words
 */
function measure({ answer, token, hello, row }) {
  const { n_experts: n, n_layers: nLayers } = hello.model;
  const { use } = answer;
  if (!use.tokens) throw new Missing(whyNone(answer));
  if (!use.within(nLayers, n)) throw new Missing("This run was written by another model.");
  const layers = now?.counted === use.tokens && now.use === use ? now.layers : layersOf(use, n);
  return {
    use,
    counted: use.tokens,
    layers,
    n,
    nLayers,
    mode,
    stats: token?.stats ?? null,
    byLayer: new Map(layers.map((each) => [each.layer, each])),
    at: layerAt(layers, hovered?.layer ?? row?.layer),
    word: token ? `${numberOf(token)} “${tokenLabel(token.text, "·")}”` : "no token",
  };
}

const layerAt = (layers, looked = 0) =>
  layers.findLast(({ layer }) => layer <= looked) ?? layers[0];

function whyNone({ running, segment }) {
  if (segment.capture) return running ? "No token yet. The prompt is being read." : NOT_KNOWN;
  return `${NOT_KNOWN} Switch on Capture, which brings it with the layers’ statistics.`;
}

const NOT_KNOWN = "Which experts this run’s tokens were given to is not known.";

function draw() {
  const { at } = now;
  const own = { layer: at.layer, expert: Math.min(expert ?? at.busiest, now.n - 1) };
  const cell = hovered ?? own;
  const said = sentences(cell);
  says.replaceChildren(el("b", "", nameOf(cell)), ` ${said[0]}`, el("small", "", said[1]));
  map.draw(now, cell, at.layer);
  map.describe(own, [nameOf(own), ...sentences(own)].filter(Boolean).join(": "));
  side.draw(at, totalOf(now.layers), now.stats);
  for (const name in legends) legends[name].node.hidden = name !== mode;
  legends[mode].draw();
}

const nameOf = (cell) => `layer ${cell.layer}, expert ${cell.expert}`;

/** What an expert was given by the run, and by the focused token. */
function sentences(cell) {
  const layer = now.byLayer.get(cell.layer);
  if (!layer) return ["is not there: this layer has one MLP.", ""];
  const { times, share, load, gate } = expertOf(layer, cell.expert);
  const given = `given ${count(times)} of ${plural(layer.tokens, "token")}`;
  const part = `${percent(share)} % of its layer’s choices, ${load.toFixed(2)} × the mean`;
  const run = times ? `${given}: ${part}; mean gate ${gate.toFixed(2)}` : given;
  return [run, ofToken(cell)];
}

function ofToken({ layer, expert: one }) {
  const { stats, word } = now;
  if (!routeOf(stats, layer)) return `${word}: ${withoutRoute(stats)}`;
  const gate = gatesOf(stats, layer).get(one);
  return gate === undefined ? `${word} was not given to it` : `${word}: gate ${gate.toFixed(3)}`;
}

/** Why a token has no route in a layer that has experts. */
const withoutRoute = (stats) =>
  stats?.summary
    ? "of tokens this old, which experts they used is not kept"
    : "which experts it was given to is not known";

/** Where the numbers come from, of how many tokens, and what the marks mean. */
function sourceOf({ segments, tokens, use }) {
  const [{ prompt, prefill, promptStats }] = segments;
  const rows = tokens.length ? prompt.length + tokens.length - 1 : prefill.done;
  const measured = `Measured on this run, over ${plural(use.tokens, "token")} of prompt and text.`;
  const missing = rows - use.tokens;
  const unknown =
    missing > 0
      ? ` Not known of ${count(missing)} more: found in the cache, not captured or not kept.`
      : "";
  const oldest = promptStats.find(Boolean) ?? tokens[0]?.stats;
  const gone = oldest?.routes?.length === 0;
  const summed = gone
    ? " Of old tokens the page keeps a summary without experts; they were counted before."
    : "";
  const marks = mode === "run" ? " Dot: never chosen. Amber: the focused token’s." : "";
  return `${measured}${unknown}${summed}${marks}`;
}

// ---- choosing --------------------------------------------------------------------------------

function hover(cell) {
  if (cell?.layer === hovered?.layer && cell?.expert === hovered?.expert) return;
  hovered = cell;
  changed("look");
}

/** The core goes to the layer, and there to its MLP where that has a row of its own. */
function choose(cell) {
  expert = cell.expert;
  hovered = null;
  view.row = { layer: cell.layer, part: view.parts === 2 ? 1 : 0 };
  view.hoverRow = null;
  changed("focus", "look");
}

function onKey(event) {
  if (!now || event.ctrlKey || event.metaKey || event.altKey) return;
  const to = moved(event.key);
  if (!to) return;
  event.preventDefault();
  if (to.expert >= 0 && to.expert < now.n && to.layer !== undefined) choose(to);
}

/**
 * The cell that a key leads to, which may lie outside; null for another key. From the core's layer,
 * not from the one drawn: keys come faster than frames.
 */
function moved(key) {
  const { layers, n } = now;
  const at = layerAt(layers, view.row?.layer);
  const here = Math.min(expert ?? at.busiest, n - 1);
  const i = layers.indexOf(at);
  const beside = { ArrowRight: here + 1, ArrowLeft: here - 1, Home: 0, End: n - 1 }[key];
  if (beside !== undefined) return { layer: at.layer, expert: beside };
  const step = { ArrowUp: 1, ArrowDown: -1 }[key];
  return step ? { layer: layers[i + step]?.layer, expert: here } : null;
}
