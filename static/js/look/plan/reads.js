// What a dispatch reads of the model, by the names of articles.

import { askInventory } from "../weights/data.js";

/** @typedef {(label: string) => string} NamesOf */

/**
 * Return a function that names the matrices and norms a dispatch reads: "norm1, W_Q, W_K, W_V" for
 * layer03.attn.qkv. "" where none has a name, and of a model whose tensors are not listed.
 *
 * @param {string} model
 * @returns {Promise<NamesOf>}
 */
export async function namesOfReads(model) {
  const inventory = await Promise.resolve(askInventory(model)).catch(() => null);
  const tensors = inventory?.tensors ?? [];
  return (label) => {
    const read = tensors.filter(({ read_by: readers }) => readers.includes(label));
    const tied = new Set(read.map(({ tied_to: other }) => other));
    const named = read.filter(({ name, article }) => article && !tied.has(name));
    return [...new Set(named.map(({ article }) => article))].join(", ");
  };
}
