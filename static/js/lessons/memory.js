// Steps of "How does a model fit into memory?".

import { askInventory } from "../look/weights/data.js";
import { bytes, count, figure, parameters } from "../ui/format.js";
import { plain, sentence, sentences, share } from "../tour/words.js";

/** @param {Walk} walk @returns {Promise<Answers.Inventory>} */
const inventoryOf = async ({ hello }) => askInventory(hello.model.name);

/** Bytes on the device, or in the file where nothing is known of a device. @param {Answers.Inventory} inventory */
const storedOf = ({ device_bytes: onDevice, n_bytes: inFile }) => onDevice ?? inFile;

/** @type {TourStep<Answers.Inventory>} */
export const countStep = {
  title: "A model is a list of matrices",
  open: "weights",
  find: inventoryOf,

  text({ hello }, { tensors, parameters: all }) {
    return sentences(
      sentence`All that the model has learned is in ${count(tensors.length)} tensors with ${count(all)} numbers, its weights
        or parameters. A figure such as “${plain(parameters(all))}” in a model’s name is this count.`,
      sentence`At four bytes each (f32) they would take ${bytes(4 * all)}, at two (f16) ${bytes(2 * all)}. This
        model is stored as ${hello.model.dtype}.`,
    );
  },

  marks: () => [[...document.querySelectorAll(".wt-map")]],
};

/** @type {TourStep<Answers.Inventory>} */
export const partsStep = {
  title: "Where they are",
  open: "weights",
  find: inventoryOf,

  text(_walk, { tensors, parameters: all }) {
    /** @param {string} kind */
    const of = (kind) =>
      tensors.reduce((sum, tensor) => (tensor.kind === kind && !tensor.tied_to ? sum + tensor.parameters : sum), 0) / all;
    return sentences(
      sentence`The MLPs hold ${share(of("mlp"))} of the weights, attention ${share(of("attention"))}, the embedding
        ${share(of("embedding"))}.`,
      sentence`The larger the model, the smaller the share of the embedding: the layers grow faster than the vocabulary.`,
    );
  },

  marks: () => [[...document.querySelectorAll(".wt-map")]],
};

/** @type {TourStep<Answers.Inventory>} */
export const bitsExercise = {
  title: "Bits per weight",
  open: "weights",
  find: inventoryOf,

  text({ hello }, inventory) {
    return sentences(
      sentence`Quantisation stores weights with fewer bits, in blocks that share a scale. The model becomes several times
        smaller, and down to about four bits its answers change little.`,
      sentence`As ${hello.model.dtype}, this one takes ${bytes(storedOf(inventory))}. How many bits is that for each of
        its ${count(inventory.parameters)} weights?`,
    );
  },

  exercise(_walk, inventory) {
    const bits = (8 * storedOf(inventory)) / inventory.parameters;
    return {
      label: "bits",
      measured: bits,
      tolerance: 0.04,
      written: `${figure(bits)} bits`,
      hint: "A byte has eight bits: multiply the bytes by eight and divide by the number of weights.",
    };
  },

  marks: () => [[...document.querySelectorAll(".wt-map")]],
};
