// Files of an export (docs/plan-format.md): fetched, checked against the manifest, kept in the browser.

import { checkManifest } from "./check-manifest.js";
import { digest, keepFile, keptFile, keptName } from "./weight-cache.js";

export class ExportFiles {
  /**
   * Open the export at `base`, a URL that ends with a slash. Its manifest is kept too: a server that
   * was started again has the export no more, but this browser may have all files.
   *
   * @param {string} base
   */
  static async open(base) {
    const url = new URL("manifest.json", base);
    const name = `manifest/${encodeURIComponent(url.href)}`;
    const { data, isNew } = await fetchedOrKept(url, name);
    const files = new ExportFiles(base, checkManifest(parseJson(data, url), url), data.byteLength);
    if (isNew) await keepFile(name, data, await digest(data), files.keptAs());
    return files;
  }

  /** @param {string} base @param {Exported.Manifest} manifest @param {number} manifestBytes */
  constructor(base, manifest, manifestBytes) {
    this.base = base;
    this.manifest = manifest;
    this.manifestBytes = manifestBytes;
  }

  /** Return the bytes of a file that the manifest names. @param {Exported.ExportedFile} entry */
  async bytes({ file, bytes: size, sha256 }) {
    const url = new URL(file, this.base);
    if (!url.href.startsWith(new URL(this.base).href))
      throw new Error(`the manifest names ${file}, which is outside of its folder`);
    const kept = await keptFile(sha256);
    if (kept) return kept;
    const data = await bytesOf(url);
    if (data.byteLength !== size || (await digest(data)) !== sha256)
      throw new Error(
        `${file} is not the file that the manifest describes: its size or its SHA-256 differs; upload the ` +
          "whole export again",
      );
    await keepFile(sha256, data, sha256, this.keptAs());
    return data;
  }

  /** Return the parsed JSON of a file that the manifest names. @param {Exported.ExportedFile} entry */
  async json(entry) {
    return parseJson(await this.bytes(entry), entry.file);
  }

  /** What makes a prompt of a conversation. */
  get chat() {
    return this.manifest.chat;
  }

  /** Profiles of devices that the export has plans for. */
  get profiles() {
    return Object.keys(this.manifest.model.plans);
  }

  /**
   * Return the plan file of a profile, and the manifest.
   *
   * @param {string} profile
   * @returns {Promise<{plan: unknown, manifest: ModelManifest}>}
   */
  async load(profile) {
    const { plans } = this.manifest.model;
    if (!Object.hasOwn(plans, profile))
      throw new Error(`the manifest names no ${profile} plan, which this GPU needs; export the model again`);
    const entry = plans[profile];
    const plan = parseJson(await inflated(await this.bytes(entry)), entry.file);
    return { plan, manifest: this.manifest };
  }

  /** Return the pieces of the weights, in their order. @returns {WeightPiece[]} */
  pieces() {
    const { pieces } = this.manifest.model.weights;
    return pieces.map((entry) => ({ bytes: entry.bytes, read: () => this.bytes(entry) }));
  }

  /**
   * Return the parsed JSON files of the model by name: tokenizer.json, config.json and others.
   *
   * @returns {Promise<TokenizerFiles>}
   */
  async modelFiles() {
    const names = Object.keys(this.manifest.files);
    const parsed = await Promise.all(names.map((name) => this.json(this.manifest.files[name])));
    return Object.fromEntries(names.map((name, i) => [name, parsed[i]]));
  }

  /** What the kept files of the model are called, and the bytes that all of them take. */
  keptAs() {
    const { name, model, files } = this.manifest;
    // A browser fetches the plan of one profile, at least the smallest.
    const plan = Math.min(...Object.values(model.plans).map(({ bytes }) => bytes));
    const others = Object.values(files).reduce((sum, { bytes }) => sum + bytes, 0);
    const total = model.weights.bytes + others + plan + this.manifestBytes;
    return { model: keptName(name, model.dtype), total };
  }
}

/**
 * Resolves to {data, isNew}: a file as it is now, or, if it cannot be fetched, as it was kept.
 *
 * @param {URL} url
 * @param {string} name
 */
async function fetchedOrKept(url, name) {
  try {
    return { data: await bytesOf(url), isNew: true };
  } catch (error) {
    const data = await keptFile(name);
    if (!data) throw error;
    return { data, isNew: false };
  }
}

/** Bytes of a gzip file, or of one that the server has decompressed on the way. @param {ArrayBuffer} data */
export async function inflated(data) {
  const [first, second] = new Uint8Array(data, 0, 2);
  if (first !== 0x1f || second !== 0x8b) return data;
  const stream = new Blob([data]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

/** @param {URL} url */
async function bytesOf(url) {
  // The browser's HTTP cache may have the file of an older export under this name.
  const response = await fetch(url, { cache: "no-cache" }).catch(() => null);
  if (response && !response.ok) {
    const { error } = Object(await response.json().catch(() => null)); // of a server, not of a file host
    throw new Error(`${url} could not be fetched: ${error?.message ?? `HTTP ${response.status}`}`);
  }
  const data = await response?.arrayBuffer().catch(() => null);
  if (data) return data;
  throw new Error(
    `${url} could not be fetched: there is no connection, or it broke. Try again to go on where it stopped`,
  );
}

/** Return parsed JSON; `name`: what errors call it. @param {ArrayBuffer} data @param {string | URL} name */
export function parseJson(data, name) {
  try {
    return JSON.parse(new TextDecoder().decode(data));
  } catch {
    throw new Error(`${name} is not JSON`);
  }
}
