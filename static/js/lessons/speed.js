// Steps of "What limits the speed?".

import { Missing } from "../look/shared/context.js";
import { amount } from "../look/plan/detail.js";
import { bytes, count, figure } from "../ui/format.js";
import { plain, sentence, sentences } from "../tour/words.js";

const TOKENS_PER_SECOND = 20;

/** The plan of the step of the followed token. @param {Walk} walk */
async function planOf(walk) {
  const plan = await walk.plan();
  if (!plan.dispatches) throw new Missing("PyTorch runs this model, so there is no list of dispatches");
  return plan;
}

/** @type {TourStep<Answers.PlanReport>} */
export const bytesStep = {
  title: "Every weight, for every token",
  open: "plan",
  find: planOf,

  text({ word, hello }, { n_bytes: moved, flops, dispatches }) {
    return sentences(
      sentence`To choose ${word}, the device moved ${bytes(moved)} in ${count(dispatches.length)} dispatches. Nearly all of it
        was weights, each read once; the model has ${count(hello.model.parameters)} of them.`,
      sentence`Each of these weights was used for one multiplication and one addition: ${plain(amount(flops))} operations in all,
        only ${figure(flops / moved)} per byte. A GPU can do many more in the time that it takes to read a byte.`,
    );
  },

  marks: () => [[...document.querySelectorAll(".pl-sums")]],
};

/** @type {TourStep<Answers.PlanReport>} */
export const bandwidthExercise = {
  title: "The bandwidth it takes",
  open: "plan",
  find: planOf,

  text: () =>
    sentence`Bytes per token times tokens per second is the least memory bandwidth that is needed. How much is that for
      ${`${TOKENS_PER_SECOND} tokens`} a second with this model, in GB/s (billions of bytes a second)?`,

  exercise(_walk, { n_bytes: moved }) {
    const rate = (moved * TOKENS_PER_SECOND) / 1e9;
    return {
      label: "GB/s",
      measured: rate,
      tolerance: 0.06,
      written: `${bytes(moved)} × ${TOKENS_PER_SECOND} = ${figure(rate)} GB/s`,
      hint: "Plan says how many bytes a step moves.",
    };
  },

  marks: () => [[...document.querySelectorAll(".pl-sums")]],
};
