// Totals over the layer table: the time of the step that sampled the focused token.

import { byId, el, setParts, setText, splitBar } from "../ui/dom.js";
import { clockRounding, count, duration, whyNoTimes } from "../ui/format.js";
import { whyOtherModel } from "../look/shared/context.js";
import { on, state } from "../state.js";
import { focused, focusedToken, view } from "../view.js";

export function setUpTotals() {
  on("focus tokens hello", draw);
}

function draw() {
  const token = focusedToken();
  const stats = token?.stats ?? null;
  const times = token && "times" in token ? token.times : null;
  setParts(byId("lay-sub"), token ? aboutStep(times, stats, token.segment) : [], ", ");
  drawGpu(token, stats);
  drawHost(times);
}

/** @param {ToPage.StepTimes | null} times @param {Stats | null} stats @param {Segment | undefined} segment */
function aboutStep(times, stats, segment) {
  if (stats?.summary && stats.summary.tokens > 1) return [`mean of ${stats.summary.tokens} tokens`, "heads averaged"];
  if (stats?.summary) return ["old token: heads averaged"];
  const gpu = times?.gpu ?? null;
  const rows = stats?.n_rows ?? 1;
  const since = stats?.timed_at == null ? 0 : stats.position - stats.timed_at;
  const at = focused() ?? 0;
  const before = since > 0 && at >= since; // some devices time only a few tokens' layers
  // The parts below are of that step, not of this one, and may be longer than all of it.
  if (before && stats)
    return [
      ...(hasTimes(stats) ? [`timed at token ${count(at + 1 - since)}: ${duration(sumOf(partsOf(stats)))}`] : []),
      ...(gpu === null ? [] : [`this token: ${duration(gpu)}`]),
    ];
  const parts = gpu === null ? [] : [`${duration(gpu)} on the GPU`];
  if (rows > 1) parts.push(`${count(rows)} tokens in the step`);
  else if (times && state.hello?.dispatches_per_token && !whyOtherModel(segment))
    parts.push(`${count(state.hello.dispatches_per_token)} dispatches`);
  return parts;
}

/** @param {Stats} stats */
const hasTimes = ({ layers }) => layers.every((l) => l.attention_ms != null && l.mlp_ms != null);

/** GPU times of attention, MLP, and the rest (embedding and output head). @param {Stats} stats */
function partsOf({ layers, embed_ms: embed, head_ms: head }) {
  const sum = (/** @type {"attention_ms" | "mlp_ms"} */ name) =>
    sumOf(layers.map((layer) => layer[name] ?? 0));
  return [sum("attention_ms"), sum("mlp_ms"), (embed ?? 0) + (head ?? 0)];
}

/** @param {number[]} values */
const sumOf = (values) => values.reduce((total, value) => total + value, 0);

/**
 * Draw GPU time of all layers: attention, MLP, and other (embedding and output head).
 *
 * @param {Token | PromptToken | null} token
 * @param {Stats | null} stats
 */
function drawGpu(token, stats) {
  const { hello } = state;
  const measured = stats !== null && hasTimes(stats);
  const bar = byId("tsplit");
  const words = byId("tparts");
  bar.hidden = !measured;
  words.classList.toggle("plain", !measured);
  if (!measured || !stats || !hello) return setText(words, token ? whyNot(token, stats) : "");
  const times = partsOf(stats);
  splitBar(bar, times);
  const rounded = clockRounding(hello.device);
  return words.replaceChildren(
    ...["attention", "MLP", "other"].map((name, i) => named(name, times[i])),
    ...(rounded ? [el("span", "", rounded)] : []),
  );
}

/** @param {Token | PromptToken} token @param {Stats | null} stats */
function whyNot(token, stats) {
  const { hello } = state;
  if (stats) return hello ? `No GPU time per layer: ${whyNoTimes(hello.device)}.` : "";
  if ("moved" in token && token.moved)
    return "Its key was moved here from another text (cache_reuse), so its layers were not computed.";
  if ("reused" in token && token.reused) return "Reused from the KV cache, so its layers were not computed.";
  const isWritten = token.prompt === undefined;
  const given = isWritten ? view.answer?.settingsAt(token) : view.answer?.promptSegment?.request;
  return given?.capture
    ? "Not measured: the page was too slow to receive it."
    : "Not measured: capture was off for this token.";
}

/**
 * Draw the host's times of the step; prompt tokens share those of their chunk.
 *
 * @param {ToPage.StepTimes | null} times
 */
function drawHost(times) {
  const parts = times
    ? [named("host: encode", times.encode), named("wait", times.wait), named("read", times.read)]
    : [];
  byId("thost").replaceChildren(...parts);
}

/** @param {string} name @param {number} ms */
function named(name, ms) {
  const span = el("span", "", `${name} `);
  span.append(el("b", "", duration(ms)));
  return span;
}
