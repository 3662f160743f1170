// Under the layer table: the focused layer in words, and the attention entropy of each of its heads.

import { byId, el, fitCanvas, setVars } from "./dom.js";
import { routeInWords, routeOf, spreadOf } from "./expertuse.js";
import { count } from "./format.js";
import { scales, signed } from "./metrics.js";
import { palette } from "./palette.js";
import { state } from "./state.js";
import { view } from "./view.js";

const SANS = '"Plex Sans", sans-serif';
/** Experts with their gates that have room beside each other. */
const EXPERTS_IN_LINE = 4;
/** A head with this much room has its number beside its bar. */
const NUMBER_ROOM = 28;
const BAR = 4;

const line = byId("layer-line");
const expertLine = byId("experts-line");
const canvas = byId("heads");
let labelled = "";

/** Microseconds, "" when they were not measured. */
export const micro = (ms) => (ms === null || ms === undefined ? "" : count(Math.round(ms * 1000)));

/** `stats`: a token's statistics (`TokenStats` of gpu/events.py) or null; `at`: number of the layer. */
export function drawFoot(stats, at) {
  const layer = stats?.layers[at] ?? null;
  line.replaceChildren(...(layer ? words(layer, at) : []));
  expertLine.hidden = !state.hello?.model.n_experts;
  expertLine.replaceChildren(...(layer && !expertLine.hidden ? expertWords(stats, at) : []));
  const perToken = stats?.routes?.[0]?.experts.length;
  if (perToken) setVars(expertLine, { "--route-lines": Math.ceil(perToken / EXPERTS_IN_LINE) });
  drawHeads(layer, stats?.summary);
}

function words(layer, at) {
  const part = (name, size, cosine, ms) => {
    const told = [`${name} ${(size / layer.residual).toFixed(2)}`];
    if (cosine !== undefined) told.push(`cos ${signed(cosine)}`);
    if (ms !== null && ms !== undefined) told.push(`${micro(ms)} µs`);
    return el("span", "", told.join(" "));
  };
  return [
    el("b", "", `layer ${at}`),
    part("attention", layer.attention, layer.attention_cosine, layer.attention_ms),
    part("MLP", layer.mlp, layer.mlp_cosine, layer.mlp_ms),
  ];
}

/** The token's experts in this layer, and how all of them were used by the run so far. */
function expertWords(stats, at) {
  const route = routeOf(stats, at);
  if (!route) return [el("span", "", withoutRoute(stats, at))];
  const n = state.hello.model.n_experts;
  const { tokens, given } = view.answer.use.of(at, n);
  const { used, evenness } = spreadOf(given);
  const whole = `${used} of ${n} experts used by ${count(tokens)} tokens`;
  const even = evenness === null ? whole : `${whole}, evenness ${evenness.toFixed(2)}`;
  const said = el("span", "", even);
  said.title =
    "Evenness: entropy of how often each expert was chosen, divided by that of equal shares. 1: all alike.";
  return [el("span", "", routeInWords(route)), said];
}

/** Why no experts of this token are told in this layer. */
function withoutRoute(stats, at) {
  if (stats.summary) return "of tokens this old, which experts they used is not kept";
  return view.answer.use.has(at) ? "" : "no experts in this layer: it has one MLP";
}

/** A bar for each head, from no entropy (it looks at one token) to the end of the scale. */
function drawHeads(layer, summary) {
  const [context, width, height] = fitCanvas(canvas);
  const entropy = layer?.entropy ?? [];
  label(entropy, summary);
  if (!width || !entropy.length) return;
  const room = width / entropy.length;
  const numbered = room >= NUMBER_ROOM;
  if (numbered) context.font = `400 11px ${SANS}`; // to set one costs the styles of the page
  context.textBaseline = "middle";
  for (const [head, bits] of entropy.entries()) {
    const x = head * room;
    const wide = Math.min(BAR, Math.max(1, room - 1));
    context.fillStyle = palette.line;
    context.fillRect(x, 0, wide, height);
    const high = Math.max(1, scales.entropy.at(bits) * height);
    context.fillStyle = palette.data;
    context.fillRect(x, height - high, wide, high);
    if (!numbered) continue;
    context.fillStyle = palette["ink-2"];
    context.fillText(bits.toFixed(1), x + BAR + 3, height / 2 + 1);
  }
}

function label(entropy, summary) {
  const bits = entropy.map((value) => value.toFixed(1)).join(", ");
  const whose = summary ? `Mean attention entropy of ${summary.heads} heads` : "Attention entropy of each head";
  const name = bits ? `${whose}, in bits: ${bits}` : "No layer yet";
  if (name === labelled) return;
  labelled = name;
  canvas.setAttribute("aria-label", name);
  canvas.title = bits ? name : "";
}
