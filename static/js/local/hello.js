// The `hello` message of an engine in this browser: what the server says of its own
// (app/protocol/messages.py).

import { WANTED } from "./gpu/device.js";
import { DEPTH } from "./gpu/step-queue.js";

/** @typedef {import("./gpu/engine.js").LocalEngineInfo} LocalEngineInfo */

/**
 * Return the message; what only /v1 asks for is left out. `version`: of the protocol.
 *
 * @param {LocalEngineInfo} info
 * @param {number} version
 * @param {RequestLimits["session"]} session
 * @returns {Omit<ToPage.Hello, "recommended">}
 */
export function helloOf({ plan, manifest, adapter, features, clockMs }, version, session) {
  const { limits, model } = plan;
  const memory = memoryOf(plan);
  const blockBytes = memory.kv_cache / limits.n_blocks;
  return {
    type: "hello",
    version,
    model: modelOf(model, manifest, blockBytes),
    device: deviceOf(plan, adapter, features, clockMs),
    limits: {
      context: limits.context,
      active: limits.slots,
      queue: session.queue,
      kv_blocks: limits.n_blocks,
      block_tokens: limits.block_tokens,
      kv_block_bytes: blockBytes,
      in_flight: DEPTH,
      message_bytes: messageBytes(limits.context, session),
    },
    memory,
    defaults: manifest.defaults,
    dispatches_per_token: dispatchesPerToken(plan),
    upstream: null,
    note: "",
    embedding: null,
    encoder_decoder: null,
  };
}

/**
 * @param {Exported.PlanModel} sizes
 * @param {ModelManifest} manifest
 * @param {number} blockBytes
 * @returns {ToPage.PageModelInfo}
 */
function modelOf(sizes, { name, model, chat }, blockBytes) {
  const { architecture, expert_layers, experts_per_token, n_experts, ...shape } = sizes;
  return {
    ...shape,
    ...(n_experts && { n_experts }), // the server leaves it out where there are none
    name,
    dtype: model.dtype,
    kv_dtype: model.kv_dtype,
    kv_formats: { [model.kv_dtype]: blockBytes },
    parameters: model.parameters,
    eos_ids: [...new Set([...sizes.eos_ids, ...chat.eos_ids])],
    chat: chat.chat_template !== null,
  };
}

/**
 * Browsers report no more of a device than its name.
 *
 * @param {Exported.PlanFile} plan
 * @param {string} adapter
 * @param {string[]} features
 * @param {number} clockMs
 * @returns {ToPage.DeviceInfo}
 */
function deviceOf({ profile, needs }, adapter, features, clockMs) {
  const software = profile === "software";
  return {
    name: adapter,
    driver: "",
    backend: "WebGPU",
    kind: software ? "CPU" : "GPU",
    software,
    features: [...needs.features, ...features],
    lacks: WANTED.filter((name) => !features.includes(name)),
    clock_ms: clockMs,
  };
}

/** @param {Exported.PlanFile} plan @returns {ToPage.MemoryInfo} */
function memoryOf(plan) {
  const weights = sum(
    plan.buffers.filter(({ weight }) => weight !== undefined).map(({ bytes }) => bytes),
  );
  const cache = Object.entries(plan.tensors).filter(([name]) =>
    /^layer\d+\.(keys|values)$/.test(name),
  );
  const kv = sum(cache.map(([, { view }]) => plan.views[view][2]));
  return { weights, kv_cache: kv, work: plan.needs.bytes - weights - kv };
}

/** Dispatches of a decode step of one sequence. @param {Exported.PlanFile} plan */
function dispatchesPerToken(plan) {
  const step = plan.plans.find(
    ({ kind, rows, samples, splits, interventions, loras }) =>
      kind === "plain" && rows === 1 && samples === 1 && splits === 1 && !interventions && !loras,
  );
  return sum((step?.dispatches ?? []).map(([, n]) => n));
}

/**
 * Size limit of a message of the page, as the server computes it.
 *
 * @param {number} context
 * @param {RequestLimits["session"]} session
 */
const messageBytes = (context, { message_bytes: least, max_message_bytes: most }) =>
  Math.min(Math.max(least, 8 * context + least / 4), most);

/** @param {number[]} numbers */
const sum = (numbers) => numbers.reduce((total, n) => total + n, 0);
