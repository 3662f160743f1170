// @ts-nocheck
// What is known of the model's tensors, with each answer cached: from the server, or from the export
// of the model that runs in this browser.

import { ExportFiles } from "../../local/gpu/export-files.js";
import { ask } from "../../net/ask.js";
import { hasServer, isLocal, placeHere } from "../../net/connection.js";
import { Missing } from "../shared/context.js";
import { checkInventory } from "./check-inventory.js";

const answers = new Map();

/** Inventory of the running model, as described in `gpu/checkpoint/inventory.py`. */
export const askInventory = (model) =>
  isLocal()
    ? once(JSON.stringify(placeHere()), inventoryHere)
    : onceOf(`api/weights?model=${encodeURIComponent(model)}`);

/** Summary of one tensor, as described in `gpu/checkpoint/tensor_summary.py`. */
export const askSummary = (model, name) =>
  onceOf(`api/weights/${encodeURIComponent(name)}?model=${encodeURIComponent(model)}`);

/** Why no summary of a tensor can be had, or "". */
export function whyNoSummaries() {
  if (placeHere()?.hub) return "Its values are not shown: this model came from a hub in pieces.";
  if (hasServer) return "";
  return "Its values are not shown: they are read from the model’s own file, which only a server has.";
}

async function inventoryHere() {
  const { base, hub } = placeHere();
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

/** Clear the cache after a change of model, device or storage type. */
export const forgetAnswers = () => answers.clear();

const onceOf = (path) => once(path, () => ask(path));

/** Return the answer, or a promise of it. A failed request is sent again next time. */
function once(key, request) {
  if (!answers.has(key)) {
    const promise = request();
    answers.set(key, promise);
    promise.then(
      (found) => answers.set(key, found),
      () => answers.delete(key),
    );
  }
  return answers.get(key);
}
