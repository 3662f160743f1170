// Files of an export (docs/plan-format.md): fetched, checked against the manifest, kept in the browser.

const FORMAT = "tokenglass-export";
const VERSION = 1;
/** Cache of checked files. A changed file has another hash, so what is in here never goes stale. */
const CACHE = "tokenglass-models";

export class ExportFiles {
  /** Fetch the manifest of the export at `base`, a URL that ends with a slash. */
  static async open(base) {
    const url = new URL("manifest.json", base);
    const manifest = parseJson(await bytesOf(await fetch(url, { cache: "no-cache" })), url);
    if (manifest.format !== FORMAT)
      throw new Error(`${url} is not the manifest of a model; it should be made by tokenglass export`);
    if (Math.trunc(manifest.version) !== VERSION)
      throw new Error(
        `the model was exported in format ${manifest.version}, and this page reads ${VERSION}; export it again`,
      );
    return new ExportFiles(base, manifest);
  }

  constructor(base, manifest) {
    this.base = base;
    this.manifest = manifest;
  }

  /** Return the bytes of a file that the manifest names: {file, bytes, sha256}. */
  async bytes({ file, bytes: size, sha256 }) {
    const url = new URL(file, this.base);
    if (!url.href.startsWith(new URL(this.base).href))
      throw new Error(`the manifest names ${file}, which is outside of its folder`);
    const key = new Request(`${url.href}?sha256=${sha256}`);
    const cache = await openCache();
    const kept = await cache?.match(key);
    if (kept) {
      const data = await kept.arrayBuffer();
      if ((await digest(data)) === sha256) return data;
      await cache.delete(key); // damaged on the disk
    }
    const data = await bytesOf(await fetch(url));
    if (data.byteLength !== size || (await digest(data)) !== sha256)
      throw new Error(
        `${file} is not the file of the manifest: it has ${data.byteLength} bytes, expected ${size} ` +
          "with another SHA-256; upload the whole export again",
      );
    // Without room on the disk the model works all the same, and is fetched again the next time.
    await cache?.put(key, new Response(data)).catch(() => {});
    return data;
  }

  /** Return the parsed JSON of a file that the manifest names. */
  async json(entry) {
    return parseJson(await this.bytes(entry), entry.file);
  }

  /** Return the plan file of a profile. */
  async plan(profile) {
    const entry = this.manifest.model.plans[profile];
    return parseJson(await inflated(await this.bytes(entry)), entry.file);
  }

  /** Return the parsed JSON files of the model by name: tokenizer.json, config.json and others. */
  async modelFiles() {
    const names = Object.keys(this.manifest.files);
    const parsed = await Promise.all(names.map((name) => this.json(this.manifest.files[name])));
    return Object.fromEntries(names.map((name, i) => [name, parsed[i]]));
  }
}

/** Bytes of a gzip file, or of one that the server has decompressed on the way. */
async function inflated(data) {
  const [first, second] = new Uint8Array(data, 0, 2);
  if (first !== 0x1f || second !== 0x8b) return data;
  const stream = new Blob([data]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

async function bytesOf(response) {
  if (!response.ok) throw new Error(`${response.url} could not be fetched: HTTP ${response.status}`);
  return response.arrayBuffer();
}

function parseJson(data, name) {
  try {
    return JSON.parse(new TextDecoder().decode(data));
  } catch {
    throw new Error(`${name} is not JSON`);
  }
}

/** The cache, or null where the browser has none: private windows, full disks. */
const openCache = () => globalThis.caches?.open(CACHE).catch(() => null) ?? null;

async function digest(data) {
  const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", data));
  return [...hash].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
