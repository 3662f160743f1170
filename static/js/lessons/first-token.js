// Steps of "Why is the first token slow?".

import { intervalsOf } from "../look/timeline/spans.js";
import { showRequest } from "../look/timeline/timeline.js";
import { quantile } from "../look/shared/quantile.js";
import { count, duration, figure, plural } from "../ui/format.js";
import { sentence, sentences } from "../tour/words.js";

/** Number of prompt tokens that were computed, and the milliseconds they took. @param {Walk} walk */
function prefillOf({ segment, answer }) {
  const { prefill, promptReused, prompt, timings } = answer.promptSegment ?? segment;
  return { n: prompt.length - promptReused, reused: promptReused, ms: timings?.prompt_ms ?? prefill.ms };
}

/** Median milliseconds from one token to the next. @param {Walk} walk */
const stepOf = ({ answer }) => quantile(intervalsOf(answer.tokens), 0.5);

/** @type {TourStep} */
export const prefillStep = {
  title: "First the prompt is read",
  open: "timeline",
  enter: () => showRequest(),

  text(walk) {
    const { n, reused, ms } = prefillOf(walk);
    return sentences(
      sentence`Before it can write a word, the model has to read the prompt: this is the prefill. Its ${plural(n, "token")}
        went through the layers together, in ${duration(ms)}.`,
      reused ? sentence`${count(reused)} more were still in the KV cache from an earlier run and did not have to be computed.` : null,
      sentence`They are all known in advance, so a weight that is read from memory serves all of them. The longer
        the prompt, the more the prefill is limited by arithmetic.`,
    );
  },

  marks: () => [[...document.querySelectorAll(".tl-plot")]],
};

/** @type {TourStep} */
export const decodeStep = {
  title: "Then one token at a time",
  open: "timeline",
  enter: () => showRequest(),

  text(walk) {
    const { n, ms } = prefillOf(walk);
    const step = stepOf(walk);
    return sentences(
      sentence`Each further token took ${duration(step)}: it depends on the one before it, so only one goes
        through the layers at a time.`,
      sentence`A token of the prompt took ${duration(ms / n)} on average; writing one takes ${figure((step * n) / ms)} times as long.`,
      sentence`Decoding reads the weights again for every single token, so what usually limits it is memory bandwidth.`,
    );
  },

  marks: () => [[...document.querySelectorAll(".tl-below canvas, .tl-roof")]],
};

/** @type {TourStep} */
export const prefillExercise = {
  title: "How fast is it read?",
  open: "timeline",
  enter: () => showRequest(),

  text(walk) {
    const { n } = prefillOf(walk);
    return sentence`The ${plural(n, "token")} of the prompt were read while you waited for the first word. How many
      tokens a second is that?`;
  },

  exercise(walk) {
    const { n, ms } = prefillOf(walk);
    const rate = (1000 * n) / ms;
    return {
      label: "tokens a second",
      measured: rate,
      tolerance: 0.1,
      written: `${figure(rate)} tokens a second`,
      hint: `Divide ${count(n)} by the seconds that the prefill took: see Timeline’s table, or Time at the foot of the page.`,
    };
  },

  marks: () => [[...document.querySelectorAll(".tl-plot")]],
};
