// The question of "What do the layers do?".

import { showTokenLens } from "../look/lens/lens.js";
import { lensStep } from "../tour/layers.js";
import { count } from "../ui/format.js";
import { sentence } from "../tour/words.js";

/** @type {TourStep<{rank: number}>} */
export const layersExercise = {
  title: "How early is it known?",
  open: lensStep.open,

  async find(walk) {
    const { arrays } = await walk.lens();
    return { rank: arrays.rank.values[1] + 1 };
  },

  at: ({ index }) => ({ index, row: { layer: 0, part: 0 } }),
  enter: () => showTokenLens(),

  text: ({ word, hello }) =>
    sentence`If the model stopped after its first layer, layer ${0}, what rank would ${word} have among the
      ${count(hello.model.vocab_size)} tokens of its vocabulary?`,

  exercise: (_walk, { rank }) => ({
    label: "rank",
    measured: rank,
    tolerance: 0,
    written: `rank ${count(rank)}`,
    hint: "See “rank of chosen” in the row of layer 0 in Lens’s table.",
  }),

  marks: () => [[...document.querySelectorAll('.ln-grid tr[data-stage="1"]')]],
};
