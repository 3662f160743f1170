// A model of a hub as the engine in this browser loads it, in place of an export: files and ranges of
// the weights come from the hub, plans from the server of the page, and the rest is made here.

import { ask } from "../../net/ask.js";
import { inflated, parseJson } from "../gpu/export-files.js";
import { digest, keepFile, keptFile, keptName } from "../gpu/weight-cache.js";
import { chatOf } from "./chat.js";
import { memoryOf } from "./device-memory.js";
import { isModelName } from "./model-name.js";
import { rowBytes } from "./pack.js";
import { weightBytes } from "./recipe.js";
import { readHeader, TensorRows } from "./safetensors.js";

const COMMIT = /^[0-9a-f]{40}$/;
const WEIGHTS = "model.safetensors";
const INDEX = "model.safetensors.index.json";
const SHARD = /^[\w.-]+\.safetensors$/;
const NEEDED = ["config.json", "tokenizer.json"];
const OTHERS = ["tokenizer_config.json", "generation_config.json", "special_tokens_map.json", "added_tokens.json"];
const TEMPLATE = "chat_template.jinja";
const MORE_TEMPLATES = /^additional_chat_templates\/([\w.-]+)\.jinja$/;
/** Most files with more templates that are fetched. */
const MAX_TEMPLATES = 64;
const MAX_SMALL_BYTES = 64 * 2 ** 20;
/** Weights are made and kept in pieces of about this size. */
const PIECE_BYTES = 16 * 2 ** 20;

/**
 * A file as a hub lists it.
 *
 * @typedef {{rfilename: string, size: number, blobId?: string, lfs?: {sha256: string}}} ListedFile
 */

/**
 * What the server records for a model of a hub (app/local/plan_messages.py).
 *
 * @typedef {{plan: string, kv_dtype: string, parameters: number, constants: Record<string, string>}} RecordedPlans
 */

/**
 * Consecutive rows of a weight.
 *
 * @typedef {{weight: Exported.PlanWeight, first: number, n: number, bytes: number}} RowRange
 */

export class HubFiles {
  /**
   * Look up a model.
   *
   * hub       address of the hub
   * name      OWNER/MODEL
   * dtype     how its weights are to be stored
   * plans     address that records plans (POST /api/local/plans of app/local/routes.py)
   *
   * @param {HubModel} model
   */
  static async open({ hub, name, dtype, plans }) {
    if (!isModelName(name)) throw new Error(`${name} is not the name of a model; expected OWNER/MODEL`);
    const listed = await get(`${hub}/api/models/${name}/revision/main?blobs=true`, name);
    const { sha, siblings } = parseJson(await listed.arrayBuffer(), name);
    if (!COMMIT.test(sha) || !Array.isArray(siblings))
      throw new Error(`${hub} does not answer as a hub does; see the server's --hub-url`);
    const sizes = new Map(siblings.map((/** @type {ListedFile} */ file) => [file.rfilename, file]));
    for (const file of NEEDED)
      if (!sizes.has(file))
        throw new Error(`${name} has no ${file}, so it cannot run here; let the server run it`);
    const files = new HubFiles(`${hub}/${name}/resolve/${sha}/`, sizes, { name, dtype, plans });
    await files.readSmall();
    await files.readHeaders();
    return files;
  }

  /** @param {string} base @param {Map<string, ListedFile>} sizes @param {Omit<HubModel, "hub">} model */
  constructor(base, sizes, { name, dtype, plans }) {
    this.base = base;
    this.sizes = sizes;
    this.name = name;
    this.dtype = dtype;
    this.plans = plans;
    /** @type {TokenizerFiles & Record<string, unknown>} */
    this.small = {};
    this.smallBytes = 0;
    /** @type {Map<string, import("./safetensors.js").StoredTensor>} */
    this.tensors = new Map();
    this.rows = new TensorRows(this.tensors);
    /** @type {RowRange[]} */
    this.ranges = [];
    /** Bytes of the weights that are in no checkpoint, in base64. @type {Record<string, string>} */
    this.constants = {};
    this.chat = chatOf({}, new Map());
    /** Both can be recorded; the engine picks one (gpu/device.js). */
    this.profiles = ["portable", "software"];
  }

  /** Read the JSON files and the templates. */
  async readSmall() {
    const names = [...NEEDED, ...OTHERS].filter((name) => this.sizes.has(name));
    for (const name of names) this.small[name] = parseJson(await this.file(name), name);
    this.chat = chatOf(this.small, await this.templates());
  }

  /** Return the chat templates that are files, by name. */
  async templates() {
    const more = [...this.sizes.keys()].filter((name) => MORE_TEMPLATES.test(name)).sort();
    const templates = new Map();
    for (const file of [TEMPLATE, ...more.slice(0, MAX_TEMPLATES)]) {
      const name = MORE_TEMPLATES.exec(file)?.[1] ?? "default";
      if (this.sizes.has(file)) templates.set(name, new TextDecoder().decode(await this.file(file)));
    }
    return templates;
  }

  /** Read the headers of all files of weights. */
  async readHeaders() {
    for (const file of await this.weightFiles()) {
      const { size } = this.sizes.get(file) ?? {};
      if (!size) throw new Error(`${this.name} has no ${file}, which its index names`);
      /** @type {import("./safetensors.js").ReadRange} */
      const read = (at, bytes) => this.range(file, at, bytes);
      for (const [name, tensor] of await readHeader(read, size, file))
        this.tensors.set(name, { ...tensor, read });
    }
  }

  /** @returns {Promise<string[]>} */
  async weightFiles() {
    if (this.sizes.has(WEIGHTS)) return [WEIGHTS];
    if (!this.sizes.has(INDEX))
      throw new Error(`${this.name} has neither ${WEIGHTS} nor ${INDEX}; let the server run it`);
    const { weight_map: map } = parseJson(await this.file(INDEX), INDEX);
    const files = new Set(Object.values(map ?? {}).map(String));
    if (!files.size || ![...files].every((file) => SHARD.test(file)))
      throw new Error(`${INDEX} of ${this.name} does not name files of weights`);
    return [...files];
  }

  // ---- what the engine asks for ----------------------------------------------------------------

  /**
   * Have the plans recorded for a profile; the pieces of the weights are known then. Resolves to the plan
   * file and what is known of the model.
   *
   * @param {string} profile
   * @returns {Promise<{plan: unknown, manifest: ModelManifest}>}
   */
  async load(profile) {
    const tensors = Object.fromEntries([...this.tensors].map(([name, { shape }]) => [name, shape]));
    const { "config.json": config, "generation_config.json": generation = {} } = this.small;
    const { name, dtype } = this;
    const asked = { name, config, generation, tensors, dtype, profile };
    /** @type {{recorded: RecordedPlans, defaults: ToPage.SamplingParams}} */
    const { recorded, defaults } = await ask(this.plans, { method: "POST", body: asked });
    /** @type {Exported.PlanFile} */
    const plan = parseJson(await inflated(fromBase64(recorded.plan).buffer), "the plan");
    expectRoom(plan.needs.bytes, this.name, this.dtype);
    this.constants = recorded.constants;
    this.ranges = plan.weights.flatMap(rangesOf);
    const { kv_dtype, parameters } = recorded;
    return { plan, manifest: { name, model: { dtype, kv_dtype, parameters }, chat: this.chat, defaults } };
  }

  /** Return the pieces of the weights, in their order. @returns {WeightPiece[]} */
  pieces() {
    return this.ranges.map((range) => ({ bytes: range.bytes, read: () => this.bytes(range) }));
  }

  /** Return the bytes of a range, kept from before or made now. @param {RowRange} range */
  async bytes({ weight, first, n, bytes }) {
    const { at, ...recipe } = weight;
    const { parts } = recipe;
    if (!parts) return constantBytes(this.constants[weight.name], bytes);
    const made = JSON.stringify([this.base, recipe, first, n]);
    const name = await digest(new TextEncoder().encode(made));
    const kept = await keptFile(name);
    if (kept) return kept;
    const data = await weightBytes({ ...recipe, parts }, first, n, (part, rows) => this.rows.rowsOf(part, rows));
    await keepFile(name, data, await digest(data), this.keptAs());
    return data.buffer;
  }

  modelFiles() {
    return this.small;
  }

  /** What the kept files of the model are called, and the bytes that all of them take. */
  keptAs() {
    const made = this.ranges.filter(({ weight }) => weight.parts); // the others are not kept
    const total = made.reduce((sum, { bytes }) => sum + bytes, this.smallBytes);
    return { model: keptName(this.name, this.dtype), total };
  }

  // ---- what comes from the hub -----------------------------------------------------------------

  /** Return a small file that the hub lists, checked against the list and kept. @param {string} name */
  async file(name) {
    const listed = this.sizes.get(name);
    if (!listed) throw new Error(`${this.name} has no ${name}`);
    const { size, lfs, blobId } = listed;
    if (size > MAX_SMALL_BYTES)
      throw new Error(
        `${name} has ${size} bytes, more than the ${MAX_SMALL_BYTES} that this page reads; let the server ` +
          "run the model",
      );
    this.smallBytes += size;
    const key = await digest(new TextEncoder().encode(this.base + name));
    const kept = await keptFile(key);
    if (kept) return kept;
    const data = await bodyOf(await get(this.base + name, name), name);
    const right = lfs ? lfs.sha256 === (await digest(data)) : blobId === (await gitId(data));
    if (data.byteLength !== size || !right)
      throw new Error(`${name} is not the file that the hub lists: it was damaged on the way; try again`);
    await keepFile(key, data, await digest(data), this.keptAs());
    return data;
  }

  /** Return a range of a file. @param {string} file @param {number} at @param {number} bytes */
  async range(file, at, bytes) {
    if (!bytes) return new Uint8Array();
    const headers = { Range: `bytes=${at}-${at + bytes - 1}` };
    const response = await get(this.base + file, file, headers);
    if (response.status !== 206) {
      await response.body?.cancel(); // it may be gigabytes
      throw new Error(
        `${file}: ${bytes} bytes were asked for, and the hub answered HTTP ${response.status} with ` +
          "the whole file; use a hub that answers ranges",
      );
    }
    const data = new Uint8Array(await bodyOf(response, file));
    if (data.length !== bytes)
      throw new Error(`${file}: ${data.length} of ${bytes} bytes came. Try again to go on where it stopped`);
    return data;
  }
}

/** Return the ranges of rows in which a weight is made. @param {Exported.PlanWeight} weight */
function rangesOf(weight) {
  const { n, k = 0, dtype, bytes } = weight;
  const each = k ? rowBytes(dtype, k) : 4;
  if (each * n !== bytes)
    throw new Error(`the plan gives ${weight.name} a size that does not fit its shape; reload the page`);
  const most = weight.parts ? Math.max(1, Math.floor(PIECE_BYTES / each)) : n;
  /** @type {RowRange[]} */
  const ranges = [];
  for (let first = 0; first < n; first += most) {
    const rows = Math.min(most, n - first);
    ranges.push({ weight, first, n: rows, bytes: rows * each });
  }
  return ranges;
}

/** @param {string | undefined} base64 @param {number} bytes */
function constantBytes(base64, bytes) {
  const data = fromBase64(base64 ?? "");
  if (data.length !== bytes)
    throw new Error("the constants that the server sent do not fit its plan; reload the page");
  return data.buffer;
}

/**
 * Throws if the browser tells that the device has too little memory.
 *
 * @param {number} bytes
 * @param {string} name
 * @param {string} dtype
 */
function expectRoom(bytes, name, dtype) {
  const { deviceMemory } = /** @type {Navigator & {deviceMemory?: number}} */ (navigator);
  const told = memoryOf(deviceMemory);
  if (told === null || bytes <= told) return;
  const smaller = dtype === "q4" ? "choose a smaller model" : "store it as q4, or choose a smaller model";
  throw new Error(
    `${name} as ${dtype} needs ${(bytes / 1e9).toFixed(1)} GB, and this device has ${deviceMemory} GiB; ${smaller}`,
  );
}

/** @param {string} url @param {string} name @param {Record<string, string>} [headers] */
async function get(url, name, headers = {}) {
  let response;
  try {
    response = await fetch(url, { headers, credentials: "omit", referrerPolicy: "no-referrer" });
  } catch {
    throw new Error(
      `${name} could not be fetched from ${new URL(url).host}: no connection, or the hub redirects ` +
        "to a host that this server does not let its pages use (--hub-url may be repeated). Try " +
        "again to go on where it stopped",
    );
  }
  if ([401, 403, 404].includes(response.status))
    throw new Error(
      `the hub has no public ${name}; check the name. Private and gated models run on the server only`,
    );
  if (!response.ok) throw new Error(`${name} could not be fetched: HTTP ${response.status}`);
  return response;
}

/** Resolves to the bytes of a response. @param {Response} response @param {string} name */
async function bodyOf(response, name) {
  try {
    return await response.arrayBuffer();
  } catch {
    throw new Error(`the connection broke while ${name} was fetched. Try again to go on where it stopped`);
  }
}

/** @param {string} text */
const fromBase64 = (text) => Uint8Array.from(atob(text), (char) => char.charCodeAt(0));

/** Return git's name of a file's contents. @param {ArrayBuffer} data */
async function gitId(data) {
  const head = new TextEncoder().encode(`blob ${data.byteLength}\0`);
  const whole = await new Blob([head, data]).arrayBuffer();
  const hash = new Uint8Array(await crypto.subtle.digest("SHA-1", whole));
  return [...hash].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
