// The question of "How is the next word chosen?".

import { plural } from "../ui/format.js";
import { sentence, sentences } from "../tour/words.js";

const OTHERS = { temperature: 1, top_p: 0.5 };

/** @type {TourStep<FrameAnswer>} */
export const filtersExercise = {
  title: "What does top-p leave?",
  open: "filters",
  sheet: "sampling",
  find: (walk) => walk.stages(OTHERS),

  text: ({ word }) =>
    sentences(
      sentence`Top-p keeps the likeliest tokens, as few as needed for their probabilities to add up to p.`,
      sentence`Set the temperature to ${OTHERS.temperature} and top-p to ${OTHERS.top_p}, and leave the other
        settings as they are. Filters shows what they would do where ${word} was chosen. How many tokens are left?`,
    ),

  exercise(_walk, { info }) {
    const { n_kept: n } = info.stages.at(-1);
    return {
      label: "tokens",
      measured: n,
      tolerance: 0,
      written: plural(n, "token"),
      hint: "Filters’ summary gives the number of tokens left with the settings of the sliders.",
    };
  },

  marks: () => [[...document.querySelectorAll(".wf-summary")]],
};
