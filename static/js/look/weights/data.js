// What the server says about the model's weights, asked once each.

const answers = new Map();

/** The inventory of the running model, as `gpu/checkpoint/inventory.py` describes it. */
export const inventory = (model) => once(`/api/weights?model=${encodeURIComponent(model)}`);

/** Figures, histogram and outliers of one tensor, as `gpu/checkpoint/tensor_summary.py` describes them. */
export const summary = (model, name) =>
  once(`/api/weights/${encodeURIComponent(name)}?model=${encodeURIComponent(model)}`);

/** Forget everything: another model runs, or the same one in another way. */
export const forget = () => answers.clear();

/** The answer, or a promise of it. What failed is asked again. */
function once(path) {
  if (!answers.has(path)) {
    const asked = get(path);
    answers.set(path, asked);
    asked.then(
      (found) => answers.set(path, found),
      () => answers.delete(path),
    );
  }
  return answers.get(path);
}

async function get(path) {
  let response = null;
  try {
    response = await fetch(path);
  } catch {
    throw { code: "lost", message: "The server cannot be reached; open this again when it can." };
  }
  const body = await response.json();
  if (!response.ok) throw body.error;
  return body;
}
