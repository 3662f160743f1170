// @ts-nocheck
// Totals over the layer table: the time of the step that sampled the focused token.

import { byId, el, setText, splitBar } from "../ui/dom.js";
import { clockRounding, count, duration, whyNoTimes } from "../ui/format.js";
import { on, state } from "../state.js";
import { focused, focusedToken, view } from "../view.js";

export function setUpTotals() {
  on("focus tokens hello", draw);
}

function draw() {
  const token = focusedToken();
  const stats = token?.stats ?? null;
  setText(byId("lay-sub"), token ? aboutStep(token, stats) : "");
  drawGpu(token, stats);
  drawHost(token?.times);
}

function aboutStep({ times }, stats) {
  if (stats?.summary?.tokens > 1) return `mean of ${stats.summary.tokens} tokens, heads averaged`;
  if (stats?.summary) return "old token: heads averaged";
  const gpu = times?.gpu ?? null;
  const rows = stats?.n_rows ?? 1;
  const parts = gpu === null ? [] : [`${duration(gpu)} on the GPU`];
  const since = stats?.timed_at == null ? 0 : stats.position - stats.timed_at;
  const before = since > 0 && focused() >= since; // some devices time only a few tokens' layers
  if (before) parts.push(`layers timed at ${count(focused() + 1 - since)}`);
  else if (rows > 1) parts.push(`${count(rows)} tokens in the step`);
  else if (times && state.hello.dispatches_per_token)
    parts.push(`${count(state.hello.dispatches_per_token)} dispatches`);
  return parts.join(", ");
}

/** Draw GPU time of all layers: attention, MLP, and other (embedding and output head). */
function drawGpu(token, stats) {
  const measured = stats?.layers.every((l) => l.attention_ms != null && l.mlp_ms != null) ?? false;
  const bar = byId("tsplit");
  const words = byId("tparts");
  bar.hidden = !measured;
  words.classList.toggle("plain", !measured);
  if (!measured) return setText(words, token ? whyNot(token, stats) : "");
  const sum = (name) => stats.layers.reduce((total, layer) => total + layer[name], 0);
  const times = [sum("attention_ms"), sum("mlp_ms"), (stats.embed_ms ?? 0) + (stats.head_ms ?? 0)];
  splitBar(bar, times);
  const rounded = clockRounding(state.hello.device);
  return words.replaceChildren(
    ...["attention", "MLP", "other"].map((name, i) => named(name, times[i])),
    ...(rounded ? [el("span", "", rounded)] : []),
  );
}

function whyNot(token, stats) {
  if (stats) return `No GPU time per layer: ${whyNoTimes(state.hello.device)}.`;
  if (token.moved)
    return "Its key was moved here from another text (cache_reuse), so its layers were not computed.";
  if (token.reused) return "Reused from the KV cache, so its layers were not computed.";
  const { capture } = token.prompt
    ? view.answer.promptSegment.request
    : view.answer.settingsAt(token);
  return capture
    ? "Not measured: the page was too slow to receive it."
    : "Not measured: capture was off for this token.";
}

/** Draw the host's times of the step; prompt tokens share those of their chunk. */
function drawHost(times) {
  const parts = times
    ? [named("host: encode", times.encode), named("wait", times.wait), named("read", times.read)]
    : [];
  byId("thost").replaceChildren(...parts);
}

function named(name, ms) {
  const span = el("span", "", `${name} `);
  span.append(el("b", "", duration(ms)));
  return span;
}
