// What is known of the model's tensors, with each answer cached: from the server, or from the export
// of the model that runs in this browser.

import { ExportFiles } from "../../local/gpu/export-files.js";
import { ask } from "../../net/ask.js";
import { hasServer, isLocal, placeHere } from "../../net/connection.js";
import { state } from "../../state.js";
import { Missing } from "../shared/context.js";
import { checkInventory } from "./check-inventory.js";

/**
 * Answers by key. A failed request is sent again next time.
 *
 * @template T
 */
class AnswersByKey {
  /** @type {Map<string, T | Promise<T>>} */
  #known = new Map();

  /** Return the answer, or a promise of it. @param {string} key @param {() => Promise<T>} request */
  get(key, request) {
    const known = this.#known.get(key);
    if (known !== undefined) return known;
    const promise = request();
    this.#known.set(key, promise);
    promise.then(
      (found) => this.#known.set(key, found),
      () => this.#known.delete(key),
    );
    return promise;
  }
}

/** @type {AnswersByKey<Answers.Inventory>} */
const inventories = new AnswersByKey();
/** @type {AnswersByKey<Answers.TensorSummary>} */
const summaries = new AnswersByKey();

/**
 * Inventory of the running model, as described in `gpu/checkpoint/inventory.py`.
 *
 * @param {string} model
 * @returns {Promise<Answers.Inventory> | Answers.Inventory}
 */
export const askInventory = (model) =>
  isLocal()
    ? inventories.get(JSON.stringify(placeHere()), inventoryHere)
    : askOf(inventories, `api/weights?model=${encodeURIComponent(model)}`);

/**
 * Summary of one tensor, as described in `gpu/checkpoint/tensor_summary.py`.
 *
 * @param {string} model
 * @param {string} name
 * @returns {Promise<Answers.TensorSummary> | Answers.TensorSummary}
 */
export const askSummary = (model, name) =>
  askOf(summaries, `api/weights/${encodeURIComponent(name)}?model=${encodeURIComponent(model)}`);

/** Why no summary of a tensor can be had, or "". */
export function whyNoSummaries() {
  if (placeHere()?.hub) return "Its values are not shown: this model came from a hub in pieces.";
  if (hasServer) return "";
  return "Its values are not shown: they are read from the model’s own file, which only a server has.";
}

async function inventoryHere() {
  const { base = "", hub } = placeHere() ?? {};
  if (hub)
    throw new Missing(
      "The tensors of a model of a hub are not listed while it runs in this browser. Serve it to see them.",
    );
  const files = await ExportFiles.open(base);
  const { inventory } = files.manifest;
  if (!inventory)
    throw new Missing("This export does not list the model’s tensors. Export it again to see them.");
  return checkInventory(await files.json(inventory), inventory.file);
}

/**
 * The inventory says how the tensors are stored on the device, and what a token reads of them there.
 *
 * @template T
 * @param {AnswersByKey<T>} answers
 * @param {string} path
 */
const askOf = (answers, path) =>
  answers.get(`${state.hello?.model.dtype} ${state.hello?.device.name} ${path}`, () => ask(path));
