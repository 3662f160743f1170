// @ts-nocheck
// A model of a hub as the engine in this browser loads it, in place of an export: files and ranges of
// the weights come from the hub, plans from the server of the page, and the rest is made here.

import { ask } from "../../net/ask.js";
import { inflated, parseJson } from "../gpu/export-files.js";
import { digest, keepFile, keptFile, keptName } from "../gpu/weight-cache.js";
import { chatOf } from "./chat.js";
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
const GIB = 2 ** 30;
/** Browsers never tell more memory than this, in GiB. */
const MOST_TOLD = 8;

export class HubFiles {
  /**
   * Look up a model.
   *
   * hub       address of the hub
   * name      OWNER/MODEL
   * dtype     how its weights are to be stored
   * plans     address that records plans (POST /api/local/plans of app/local/routes.py)
   */
  static async open({ hub, name, dtype, plans }) {
    if (!isModelName(name)) throw new Error(`${name} is no name of a model; expected OWNER/MODEL`);
    const listed = await get(`${hub}/api/models/${name}/revision/main?blobs=true`, name);
    const { sha, siblings } = parseJson(await listed.arrayBuffer(), name);
    if (!COMMIT.test(sha) || !Array.isArray(siblings))
      throw new Error(`${hub} does not answer as a hub does; see the server's --hub-url`);
    const sizes = new Map(siblings.map((file) => [file.rfilename, file]));
    for (const file of NEEDED)
      if (!sizes.has(file))
        throw new Error(`${name} has no ${file}, so it cannot run here; let the server run it`);
    const files = new HubFiles(`${hub}/${name}/resolve/${sha}/`, sizes, { name, dtype, plans });
    await files.readSmall();
    await files.readHeaders();
    return files;
  }

  constructor(base, sizes, { name, dtype, plans }) {
    Object.assign(this, { base, sizes, name, dtype, plans });
    this.small = {};
    this.smallBytes = 0;
    this.tensors = new Map();
    // Both profiles can be recorded; the engine picks one (gpu/device.js).
    const model = { dtype, plans: { portable: {}, software: {} } };
    this.manifest = { name, model, defaults: {}, chat: {} };
  }

  /** Read the JSON files and the templates. */
  async readSmall() {
    const names = [...NEEDED, ...OTHERS].filter((name) => this.sizes.has(name));
    for (const name of names) this.small[name] = parseJson(await this.file(name), name);
    this.manifest.chat = chatOf(this.small, await this.templates());
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
      const read = (at, bytes) => this.range(file, at, bytes);
      for (const [name, tensor] of await readHeader(read, size, file))
        this.tensors.set(name, { ...tensor, read });
    }
    this.rows = new TensorRows(this.tensors);
  }

  async weightFiles() {
    if (this.sizes.has(WEIGHTS)) return [WEIGHTS];
    if (!this.sizes.has(INDEX))
      throw new Error(`${this.name} has neither ${WEIGHTS} nor ${INDEX}; let the server run it`);
    const { weight_map: map } = parseJson(await this.file(INDEX), INDEX);
    const files = [...new Set(Object.values(map ?? {}))];
    if (!files.length || !files.every((file) => SHARD.test(file)))
      throw new Error(`${INDEX} of ${this.name} does not name files of weights`);
    return files;
  }

  // ---- what the engine asks for ----------------------------------------------------------------

  /** Have the plans recorded for a profile; the pieces of the weights are known then. */
  async plan(profile) {
    const tensors = Object.fromEntries([...this.tensors].map(([name, { shape }]) => [name, shape]));
    const { "config.json": config, "generation_config.json": generation = {} } = this.small;
    const { name, dtype } = this;
    const asked = { name, config, generation, tensors, dtype, profile };
    const { recorded, defaults } = await ask(this.plans, { method: "POST", body: asked });
    const plan = parseJson(await inflated(fromBase64(recorded.plan).buffer), "the plan");
    expectRoom(plan.needs.bytes, this.name, this.dtype);
    const { model } = this.manifest;
    model.kv_dtype = recorded.kv_dtype;
    model.parameters = recorded.parameters;
    this.manifest.defaults = defaults;
    this.constants = recorded.constants;
    model.weights = { pieces: plan.weights.flatMap(piecesOf) };
    const made = model.weights.pieces.filter(({ weight }) => weight.parts); // the others are not kept
    this.total = made.reduce((sum, { bytes }) => sum + bytes, 0);
    return plan;
  }

  /** Return the bytes of a piece, kept from before or made now. */
  async bytes({ weight, first, n, bytes }) {
    const { at, ...recipe } = weight;
    if (!recipe.parts) return constantBytes(this.constants[weight.name], bytes);
    const made = JSON.stringify([this.base, recipe, first, n]);
    const name = await digest(new TextEncoder().encode(made));
    const kept = await keptFile(name);
    if (kept) return kept;
    const rowsOf = (part, rows) => this.rows.rowsOf(part, rows);
    const data = await weightBytes(weight, first, n, rowsOf);
    await keepFile(name, data, await digest(data), this.keptAs());
    return data.buffer;
  }

  modelFiles() {
    return this.small;
  }

  keptAs() {
    return { model: keptName(this.name, this.dtype), total: (this.total ?? 0) + this.smallBytes };
  }

  // ---- what comes from the hub -----------------------------------------------------------------

  /** Return a small file, checked against the hub's list and kept. */
  async file(name) {
    const { size, lfs, blobId } = this.sizes.get(name);
    if (size > MAX_SMALL_BYTES) throw new Error(`${name} has ${size} bytes, more than the ${MAX_SMALL_BYTES} that this page reads; let the server run the model`);
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

  /** Return a range of a file. */
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

/** Return the pieces of one weight: whole rows. */
function piecesOf(weight) {
  const { n, k = 0, dtype, bytes } = weight;
  const each = k ? rowBytes(dtype, k) : 4;
  if (each * n !== bytes) throw new Error(`the plan gives ${weight.name} a size that does not fit its shape; reload the page`);
  const most = weight.parts ? Math.max(1, Math.floor(PIECE_BYTES / each)) : n;
  const pieces = [];
  for (let first = 0; first < n; first += most) {
    const rows = Math.min(most, n - first);
    pieces.push({ weight, first, n: rows, bytes: rows * each });
  }
  return pieces;
}

function constantBytes(base64, bytes) {
  const data = fromBase64(base64 ?? "");
  if (data.length !== bytes) throw new Error("the constants that the server sent do not fit its plan; reload the page");
  return data.buffer;
}

/** Throws if the browser tells that the device has too little memory. */
function expectRoom(bytes, name, dtype) {
  const told = navigator.deviceMemory ?? MOST_TOLD;
  if (told >= MOST_TOLD || bytes <= told * GIB) return;
  const smaller = dtype === "q4" ? "take a smaller model" : "store it as q4, or take a smaller model";
  throw new Error(
    `${name} as ${dtype} needs ${(bytes / 1e9).toFixed(1)} GB, and this device has ${told} GiB; ${smaller}`,
  );
}

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

/** Resolves to the bytes of a response. */
async function bodyOf(response, name) {
  try {
    return await response.arrayBuffer();
  } catch {
    throw new Error(`the connection broke while ${name} was fetched. Try again to go on where it stopped`);
  }
}

const fromBase64 = (text) => Uint8Array.from(atob(text), (char) => char.charCodeAt(0));

/** Return git's name of a file's contents. */
async function gitId(data) {
  const head = new TextEncoder().encode(`blob ${data.byteLength}\0`);
  const whole = await new Blob([head, data]).arrayBuffer();
  const hash = new Uint8Array(await crypto.subtle.digest("SHA-1", whole));
  return [...hash].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
