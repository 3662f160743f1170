// Steps of "How does text become numbers?".

import { showForwardLine } from "../look/forward/forward.js";
import { number } from "../look/forward/vectors.js";
import { count } from "../ui/format.js";
import { sentence, sentences } from "../tour/words.js";

/** The row's token, before layer 0. @type {Pick<TourStep<FrameAnswer>, "open" | "find" | "at" | "enter" | "marks">} */
const LOOKUP = {
  open: "forward",
  find: (walk) => walk.forward(0),
  at: ({ index }) => ({ index: index - 1, row: { layer: 0, part: 0 } }),
  enter: () => showForwardLine("embedding"),
  marks: () => [[...document.querySelectorAll('.fw-lines [data-line="embedding"]')]],
};

/** @param {FrameAnswer} answer */
const rowOf = ({ arrays }) => [...arrays.embedding.values];

/** @type {TourStep<FrameAnswer>} */
export const lookupStep = {
  ...LOOKUP,
  title: "A row of W_E",

  text({ before, hello }, answer) {
    const row = rowOf(answer);
    return sentences(
      sentence`The embeddings are the rows of one matrix, W_E. This is the row of ${before}: ${count(row.length)}
        numbers, the first of them ${number(row[0])}.`,
      sentence`A single one means little by itself, but words that are used alike have rows that point in similar directions.
        These vectors are all that the ${count(hello.model.n_layers)} layers get to know of the words.`,
    );
  },
};

/** @type {TourStep<FrameAnswer>} */
export const vectorsExercise = {
  ...LOOKUP,
  title: "Read a vector",

  text: ({ before }) =>
    sentence`Each bar of the strip is one number of the row of ${before}; point at it, or move along it with the
      arrow keys. What is the largest number in the row?`,

  exercise(_walk, answer) {
    const most = Math.max(...rowOf(answer));
    return {
      label: "",
      measured: most,
      tolerance: 0.02,
      written: number(most),
      hint: "The open line, W_E lookup, gives the smallest and the largest number of the row.",
    };
  },
};
