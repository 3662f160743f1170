// Check of the list of tensors in an export (gpu/checkpoint/inventory.py) before it is drawn.

import { list, nullable, number, ShapeError, struct, text, whole } from "../../local/gpu/shape.js";

const MAX_TENSORS = 2 ** 18;
const MAX_PAIRS = 2 ** 12;

const amount = whole(0, Number.MAX_SAFE_INTEGER);
const numbers = list(number, MAX_PAIRS);

const inventoryShape = struct({
  tensors: list(
    struct({
      name: text,
      dtype: text,
      shape: list(amount, 8),
      n_bytes: amount,
      parameters: amount,
      share: number,
      kind: text,
      layer: nullable(amount),
      tied_to: nullable(text),
      read_by: list(text, 64),
      device_dtype: nullable(text),
      device_bytes: nullable(amount),
      token_bytes: nullable(amount),
    }),
    MAX_TENSORS,
  ),
  parameters: amount,
  n_bytes: amount,
  dtype: nullable(text),
  device_bytes: nullable(amount),
  token_bytes: nullable(amount),
  rope: struct({
    theta: number,
    scaling: text,
    factor: number,
    head_dim: amount,
    context: amount,
    inv_freq: numbers,
    wavelength: numbers,
    unscaled: numbers,
    low_freq_factor: nullable(number),
    high_freq_factor: nullable(number),
    original_context: nullable(amount),
  }),
});

/**
 * Return `inventory`, the parsed `file`; throws an Error that says what is wrong with it.
 *
 * @param {unknown} inventory
 * @param {string} file
 * @returns {Answers.Inventory}
 */
export function checkInventory(inventory, file) {
  try {
    inventoryShape(inventory, "");
  } catch (error) {
    if (!(error instanceof ShapeError)) throw error;
    throw new Error(`${file} cannot be used: ${error.message}; export the model again`);
  }
  return /** @type {Answers.Inventory} */ (inventory);
}
