// Above the layer table: the time of the step that made the focused token, and where it went.

import { byId, el, setText, splitBar } from "./dom.js";
import { count, duration } from "./format.js";
import { on, state } from "./state.js";
import { focused, focusedToken, view } from "./view.js";

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
  if (stats?.summary?.tokens > 1) return `mean of ${stats.summary.tokens} tokens, heads together`;
  if (stats?.summary) return "an old token: heads put together";
  const gpu = times?.gpu ?? null;
  const rows = stats?.n_rows ?? 1;
  const parts = gpu === null ? [] : [`${duration(gpu)} on the GPU`];
  const since = stats?.timed_at == null ? 0 : stats.position - stats.timed_at;
  const before = since > 0 && focused() >= since; // some devices time the layers of few tokens
  if (before) parts.push(`layers timed at ${count(focused() + 1 - since)}`);
  else if (rows > 1) parts.push(`${count(rows)} tokens in the step`);
  else if (times) parts.push(`${count(state.hello.dispatches_per_token)} dispatches`);
  return parts.join(", ");
}

/** GPU time of all layers: attention, MLP, and the ends (embedding and output). */
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
  return words.replaceChildren(
    ...["attention", "MLP", "ends"].map((name, i) => named(name, times[i])),
  );
}

function whyNot(token, stats) {
  if (stats) return "No timestamps inside a pass on this device, so no GPU time per layer.";
  if (token.reused) return "Found in the KV cache, so its layers were not computed again.";
  const { capture } = token.prompt
    ? view.answer.segments[0].request
    : view.answer.settingsAt(token);
  return capture
    ? "This page was behind, so the measurements of this token were dropped."
    : "Capture was off for this token, so its layers were not measured.";
}

/** The host's share of the step; a prompt's tokens share theirs with the whole chunk. */
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
