// Weights API of the server, with each answer cached.

import { ask } from "../../net/ask.js";

const answers = new Map();

/** Inventory of the running model, as described in `gpu/checkpoint/inventory.py`. */
export const askInventory = (model) => once(`/api/weights?model=${encodeURIComponent(model)}`);

/** Summary of one tensor, as described in `gpu/checkpoint/tensor_summary.py`. */
export const askSummary = (model, name) =>
  once(`/api/weights/${encodeURIComponent(name)}?model=${encodeURIComponent(model)}`);

/** Clear the cache after a change of model, device or storage type. */
export const forgetAnswers = () => answers.clear();

/** Return the answer, or a promise of it. A failed request is sent again next time. */
function once(path) {
  if (!answers.has(path)) {
    const promise = ask(path);
    answers.set(path, promise);
    promise.then(
      (found) => answers.set(path, found),
      () => answers.delete(path),
    );
  }
  return answers.get(path);
}
