// Weight cache of the browser (Cache API): files of models that it keeps. Their names are the SHA-256 of
// what they are or are made of, so what is in here never goes stale; each is checked whenever it is read.

const CACHE = "tokenglass-models";
/** Names of files in the cache are addresses; nothing is ever fetched from them. */
const NAMES = "https://kept.invalid/";
const MODEL = "x-model";
const SHA256 = "x-sha256";
const TOTAL = "x-total";

/** @typedef {ArrayBuffer | Uint8Array<ArrayBuffer>} Bytes */

/**
 * Return the name under which the files of a model are listed.
 *
 * @param {string} model
 * @param {string} dtype
 */
export const keptName = (model, dtype) => `${model} · ${dtype}`;

/** The cache, or null where the browser has none: private windows, full disks, plain http. */
const openCache = () => globalThis.caches?.open(CACHE).catch(() => null) ?? null;

/**
 * Return the bytes of a kept file, or null. One that was damaged on the disk is forgotten.
 *
 * @param {string} name
 */
export async function keptFile(name) {
  const cache = await openCache();
  const found = await cache?.match(NAMES + name);
  if (!found) return null;
  const data = await found.arrayBuffer().catch(() => null); // the disk may be damaged
  if (data && (await digest(data)) === found.headers.get(SHA256)) return data;
  await cache?.delete(NAMES + name);
  return null;
}

/**
 * Keep a file. `sha256` is that of its bytes; `model`, the name that it is listed under; `total`, the
 * bytes of all files of that model. Without room nothing is kept, and the file is fetched again the
 * next time.
 *
 * @param {string} name
 * @param {Bytes} data
 * @param {string} sha256
 * @param {{model: string, total: number}} listed
 */
export async function keepFile(name, data, sha256, { model, total }) {
  const headers = {
    "Content-Length": String(data.byteLength),
    [SHA256]: sha256,
    [MODEL]: encodeURIComponent(model),
    [TOTAL]: String(total),
  };
  const cache = await openCache();
  await cache?.put(NAMES + name, new Response(data, { headers })).catch(() => {});
}

/**
 * Return what is kept: [{model, bytes, total}] by name; `bytes` below `total`: not all of it.
 *
 * @returns {Promise<{model: string, bytes: number, total: number}[]>}
 */
export async function keptModels() {
  const models = new Map();
  for (const { model, total, bytes } of await entries(await openCache())) {
    const known = models.get(model) ?? { model, bytes: 0, total: 0 };
    known.bytes += bytes;
    known.total = Math.max(known.total, total);
    models.set(model, known);
  }
  return [...models.values()].sort((a, b) => (a.model < b.model ? -1 : 1));
}

/** Remove all files of a model. @param {string} model */
export async function forgetModel(model) {
  const cache = await openCache();
  for (const entry of await entries(cache))
    if (entry.model === model) await cache?.delete(entry.request);
}

/** Return {used, quota} of this site's storage in bytes; null if the browser does not report it. */
export async function storageQuota() {
  const { usage, quota } = (await navigator.storage?.estimate?.().catch(() => null)) ?? {};
  return quota ? { used: usage ?? 0, quota } : null;
}

/** @param {Cache | null} cache */
async function entries(cache) {
  const requests = (await cache?.keys()) ?? [];
  const found = await Promise.all(
    requests.map(async (request) => {
      const headers = (await cache?.match(request))?.headers;
      if (!headers) return []; // it was removed meanwhile
      const model = decodeURIComponent(headers.get(MODEL) ?? "unknown");
      const total = Number(headers.get(TOTAL));
      return [{ request, model, total, bytes: Number(headers.get("Content-Length")) }];
    }),
  );
  return found.flat();
}

/** Return the SHA-256 of bytes in hexadecimal digits. @param {Bytes} data */
export async function digest(data) {
  const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", data));
  return [...hash].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
