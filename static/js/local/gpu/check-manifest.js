// Checks of the manifest of an export before anything that it names is fetched.

import { list, mapOf, nullable, optional, ShapeError, struct, text, whole } from "./shape.js";

/** @type {Exported.Manifest["format"]} */
const FORMAT = "tokenglass-export";
/** @type {Exported.Manifest["version"]} */
const VERSION = 1;
const MAX_FILE_BYTES = 2 ** 32;
const MAX_FILES = 2 ** 12;
const MAX_TOKENS = 2 ** 12;

/** @type {import("./shape.js").Shape} */
const sha256 = (value, path) => {
  if (!/^[0-9a-f]{64}$/.test(String(value))) throw new ShapeError(`${path} should be a SHA-256 of 64 hexadecimal digits`);
};
const file = struct({ file: text, bytes: whole(0, MAX_FILE_BYTES), sha256 });

const manifestShape = struct({
  name: text,
  model: struct({
    dtype: text,
    kv_dtype: text,
    parameters: whole(0, Number.MAX_SAFE_INTEGER),
    plans: mapOf(file, 64),
    weights: struct({ bytes: whole(0, Number.MAX_SAFE_INTEGER), pieces: list(file, MAX_FILES) }),
  }),
  files: mapOf(file, MAX_FILES),
  chat: struct({
    special_tokens: optional(mapOf(text, MAX_TOKENS)),
    bos_token: nullable(text),
    eos_token: nullable(text),
    eos_ids: list(whole(0, 2 ** 32 - 1), 64),
    chat_template: nullable(text),
    tool_template: nullable(text),
  }),
  defaults: struct({}),
  inventory: optional(nullable(file)),
});

/**
 * Return `manifest`, which was fetched from `url`; throws an Error that says what is wrong with it.
 *
 * @param {unknown} manifest
 * @param {URL} url
 */
export function checkManifest(manifest, url) {
  expectManifest(manifest, url);
  return manifest;
}

/** @param {unknown} manifest @param {URL} url @returns {asserts manifest is Exported.Manifest} */
function expectManifest(manifest, url) {
  /** @type {{format?: unknown, version?: unknown}} */
  const { format, version } = Object(manifest);
  if (format !== FORMAT)
    throw new Error(`${url} is not the manifest of a model; it should be made by tokenglass export`);
  if (Math.trunc(Number(version)) !== VERSION)
    throw new Error(
      `the model was exported in format ${version}, and this page reads ${VERSION}; export it again`,
    );
  try {
    manifestShape(manifest, "");
  } catch (error) {
    if (!(error instanceof ShapeError)) throw error;
    throw new Error(`${url} cannot be used: ${error.message}; export the model again`);
  }
}
