// Details under the layer table: the focused layer in words, and the attention entropy of each
// head.

import { byId, el, fitCanvas, setVars } from "../ui/dom.js";
import { expertChoiceText, expertChoice, loadBalance } from "../turns/expert-use.js";
import { count, duration, plural } from "../ui/format.js";
import { scales, signed } from "../turns/metrics.js";
import { palette } from "../ui/palette.js";
import { state } from "../state.js";
import { view } from "../view.js";

const SANS = '"Plex Sans", sans-serif';
/** Number of experts with gates that fit on one line. */
const EXPERTS_IN_LINE = 4;
/** Minimum width per head (px) for a number beside its bar. */
const NUMBER_ROOM = 28;
const BAR = 4;

const line = byId("layer-line");
const expertLine = byId("experts-line");
const canvas = byId("heads");
let labelled = "";

/** Format milliseconds as microseconds; "" when not measured. @param {number | null | undefined} ms */
export const micro = (ms) => (ms === null || ms === undefined ? "" : count(Math.round(ms * 1000)));

/** Draw what was measured of a token in layer `at`. @param {Stats | null} stats @param {number} at */
export function drawFoot(stats, at) {
  const layer = stats?.layers[at] ?? null;
  line.replaceChildren(...(layer ? words(layer, at) : []));
  expertLine.hidden = !state.hello?.model.n_experts;
  expertLine.replaceChildren(...(stats && layer && !expertLine.hidden ? expertWords(stats, at) : []));
  const perToken = stats?.routes?.[0]?.experts.length;
  if (perToken) setVars(expertLine, { "--route-lines": Math.ceil(perToken / EXPERTS_IN_LINE) });
  drawHeads(layer, stats?.summary);
}

/** @param {ToPage.LayerStats} layer @param {number} at */
function words(layer, at) {
  /**
   * @param {string} name
   * @param {number | null} size
   * @param {number | null} cosine
   * @param {number | null} ms
   */
  const part = (name, size, cosine, ms) => {
    const figures = [`${name} ${((size ?? NaN) / (layer.residual ?? NaN)).toFixed(2)}`];
    if (cosine !== null && cosine !== undefined) figures.push(`cos ${signed(cosine)}`);
    if (ms !== null && ms !== undefined) figures.push(ms < 1 ? `${micro(ms)} µs` : duration(ms));
    return el("span", "", figures.join(" "));
  };
  return [
    el("b", "", `layer ${at}`),
    part("attention", layer.attention, layer.attention_cosine, layer.attention_ms),
    part("MLP", layer.mlp, layer.mlp_cosine, layer.mlp_ms),
  ];
}

/**
 * Return the token's experts in this layer, and how evenly the run used them so far.
 *
 * @param {Stats} stats
 * @param {number} at
 */
function expertWords(stats, at) {
  const route = expertChoice(stats, at);
  if (!route) return [el("span", "", withoutRoute(stats, at))];
  const n = state.hello?.model.n_experts ?? 0;
  if (!view.answer) return [];
  const { tokens, given } = view.answer.use.of(at, n);
  const { used, evenness } = loadBalance(given);
  const whole = `${used} of ${n} experts used by ${plural(tokens, "token")}`;
  const even = evenness === null ? whole : `${whole}, evenness ${evenness.toFixed(2)}`;
  const usage = el("span", "", even);
  usage.title =
    "Evenness: entropy of how often each expert was chosen, divided by its maximum. " +
    "1: all experts equally often.";
  return [el("span", "", expertChoiceText(route)), usage];
}

/** Why this token has no experts to show in this layer. @param {Stats} stats @param {number} at */
function withoutRoute(stats, at) {
  if (stats.summary) return "experts of tokens this old are not kept";
  return view.answer?.use.has(at) ? "" : "dense layer: one MLP, no experts";
}

/**
 * Draw one bar per head, from zero entropy (attends to one token) to the end of the scale.
 *
 * @param {ToPage.LayerStats | null} layer
 * @param {Stats["summary"]} summary
 */
function drawHeads(layer, summary) {
  const [context, width, height] = fitCanvas(canvas);
  const entropy = layer?.entropy ?? [];
  label(entropy, summary);
  if (!width || !entropy.length) return;
  const room = width / entropy.length;
  const numbered = room >= NUMBER_ROOM;
  if (numbered) context.font = `400 11px ${SANS}`; // setting a font recomputes styles
  context.textBaseline = "middle";
  for (const [head, bits] of entropy.entries()) {
    const x = head * room;
    const wide = Math.min(BAR, Math.max(1, room - 1));
    context.fillStyle = palette.line;
    context.fillRect(x, 0, wide, height);
    const high = Math.max(1, scales.entropy.at(bits ?? 0) * height);
    context.fillStyle = palette.data;
    context.fillRect(x, height - high, wide, high);
    if (!numbered) continue;
    context.fillStyle = palette["ink-2"];
    context.fillText(inBits(bits), x + BAR + 3, height / 2 + 1);
  }
}

/** @param {number | null} value */
const inBits = (value) => value?.toFixed(1) ?? "–";

/** @param {(number | null)[]} entropy @param {Stats["summary"]} summary */
function label(entropy, summary) {
  const bits = entropy.map(inBits).join(", ");
  const whose = summary
    ? `Mean attention entropy of ${plural(summary.heads, "head")}`
    : "Attention entropy of each head";
  const name = bits ? `${whose}, in bits: ${bits}` : "No layer yet";
  if (name === labelled) return;
  labelled = name;
  canvas.setAttribute("aria-label", name);
  canvas.title = bits ? name : "";
}
