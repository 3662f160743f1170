// Names of the model and the device, and the dialog with their details.

import { byId, drawPairs, setText } from "../ui/dom.js";
import { bytes, count, parameters, plural } from "../ui/format.js";
import { kvShape } from "../look/cache/kv-size.js";
import { on, state } from "../state.js";

export function setUpAbout() {
  on("hello", draw);
  on("hello conversations", nameWindow);
}

/** Name the window after the conversation, or the model. */
function nameWindow() {
  const name = state.conversation.title || state.hello?.model.name;
  document.title = name ? `${name} · Tokenglass` : "Tokenglass";
}

function draw() {
  const { hello } = state;
  if (!hello) return forget();
  const { model, device } = hello;
  setText(byId("model-name"), [model.name, model.dtype].filter(Boolean).join(" · "));
  setText(byId("device-name"), `${device.name} · ${device.backend}`);
  setText(byId("device-note"), device.software ? "software device" : "");
  return drawPairs(byId("facts"), facts(hello));
}

/** Clear the names, as after leaving a replay without an engine. */
function forget() {
  setText(byId("model-name"), "Model");
  setText(byId("device-name"), "");
  setText(byId("device-note"), "");
  byId("facts").replaceChildren();
}

/** @typedef {[name: string, value: string]} Fact */

/** @param {ToPage.Hello} hello @returns {Fact[]} */
function facts(hello) {
  const { model, device, limits, memory, dispatches_per_token: dispatches } = hello;
  if (hello.upstream) return upstreamFacts(hello, hello.upstream);
  const nGroups = limits.kv_groups?.length ?? 1;
  return [
    ["Model", `${model.name}, ${parameters(model.parameters)} weights, ${model.dtype}`],
    ...fact("Storage type", model.dtype_reason && `${model.dtype}, because ${model.dtype_reason}`),
    ...fact("Weights", model.conversion),
    ["Layers", `${model.n_layers} of width ${count(model.hidden_size)}`],
    [
      "Attention",
      `${plural(model.n_heads, "head")} of ${model.head_dim}, ${model.n_kv_heads} for keys and values`,
    ],
    ["Vocabulary", `${count(model.vocab_size)} tokens`],
    ["Chat", model.chat ? "has a chat template" : "no chat template; continues text only"],
    ["Context", `${count(limits.context)} tokens`],
    [
      "Device",
      device.software && device.backend !== "torch"
        ? `${device.name} (software rendering on the CPU: exact results, not typical speed)`
        : device.name,
    ],
    ["Driver", `${device.driver || "unknown"}, ${device.backend}, ${device.kind}`],
    ["Features", device.features.join(", ") || "none optional"],
    ["Missing", device.lacks.join(", ") || "none"],
    [
      "KV cache",
      `${kvShape({ model, limits }).stored}, ` +
        `${count(limits.kv_blocks)} blocks of ${limits.block_tokens} tokens, ` +
        `${bytes(limits.kv_block_bytes)} each` +
        (nGroups > 1
          ? `; ${nGroups} groups of layers, each with its own blocks`
          : ""),
    ],
    [
      "Memory",
      `${bytes(memory.weights)} weights, ${bytes(memory.kv_cache)} KV cache` +
        (memory.work ? `, ${bytes(memory.work)} compute buffers` : ""),
    ],
    ...fact("Per token", dispatches ? `${count(dispatches)} dispatches` : ""), // PyTorch has none
    ["Concurrency", `${plural(limits.active, "run")}; queue of ${limits.queue}`],
  ];
}

/** A fact, if there is something to say. @param {string} name @param {string} [value] @returns {Fact[]} */
const fact = (name, value) => (value ? [[name, value]] : []);

/**
 * Facts of a server that writes the texts in place of an engine here.
 *
 * @param {ToPage.Hello} hello
 * @param {ToPage.Upstream} upstream
 * @returns {Fact[]}
 */
function upstreamFacts({ model, limits }, upstream) {
  return [
    ["Model", model.name],
    ["Upstream", `${upstream.url}, ${upstream.kind}`],
    ["Context", `${count(limits.context)} tokens`],
    ["Concurrency", plural(limits.active + limits.queue, "run")],
    ["Not told", upstream.lacks.map(({ why }) => why).join(" ")],
  ];
}
