// Steps 10, 11 and 13: KV cache, cost, and what to try next.

import { byId } from "../ui/dom.js";
import { bytes, count, duration, figure, plural } from "../ui/format.js";
import { showCacheView } from "../look/cache/cache.js";
import { kvShape } from "../look/cache/kv-size.js";
import { amount } from "../look/plan/detail.js";
import { isFault, PEAK_FAULT } from "../look/plan/roofline-costs.js";
import { showRequest } from "../look/timeline/timeline.js";
import { notAnswered } from "./missing.js";
import { plain, sentence, sentences, share } from "./words.js";

/** @typedef {{plan: Answers.PlanReport | null, peaks?: KnownPeaks, error?: Problem}} CostFound */

/** @type {TourStep} */
export const cacheStep = {
  title: "The KV cache",
  open: "cache",
  at: ({ index }) => ({ index: index - 1, row: null }),

  /** Show the chart of this run. */
  enter: () => showCacheView("run"),

  text({ hello, row, before, word, segment }) {
    const { perToken } = kvShape(hello);
    const { promptReused: reused } = segment;
    const total = segment.prompt.length;
    const tokens = row + 1;
    return sentences(
      sentence`Each layer stores a key and a value for every token, so that none is computed twice:
        the KV cache, ${bytes(perToken)} per token.`,
      sentence`When ${word} was chosen it held ${plural(tokens, "token")},
        ${bytes(tokens * perToken)}. Only ${before} went through the layers; the ${count(row)}
        tokens before it were not recomputed.`,
      reused
        ? sentence`Of the prompt’s ${plural(total, "token")}, ${count(reused)} were already there
          from an earlier run.`
        : null,
    );
  },

  marks: () => [[...document.querySelectorAll(".kv-chart")]],
};

/**
 * Return a step's place on the device's roofline (Williams et al. 2009): operations per byte of the
 * step (`own`) and at the `ridge`; whether `memory` is the limit; and `floor`, the minimum time in
 * ms.
 *
 * @param {Pick<Answers.PlanReport, "n_bytes" | "flops">} cost
 * @param {Peaks} peaks
 */
export function boundOf({ n_bytes: moved, flops }, { bytes_per_s: fast, flops_per_s: most }) {
  const own = flops / moved;
  const ridge = most / fast;
  return { own, ridge, memory: own < ridge, floor: 1000 * Math.max(moved / fast, flops / most) };
}

/** @type {TourStep<CostFound>} */
export const costStep = {
  title: "The cost of one token",
  open: "timeline",
  enter: () => showRequest(),

  async find(walk) {
    const plan = await walk.plan();
    if (!plan.dispatches) return { plan: null };
    try {
      return { plan, peaks: (await walk.peaks()) ?? undefined };
    } catch (error) {
      const problem = /** @type {Problem} */ (error);
      if (problem.code === "lost") throw error;
      return { plan, error: problem };
    }
  },

  text({ word, token }, { plan, peaks, error }) {
    const { gpu, interval } = token.times;
    const time =
      gpu === null
        ? sentence`${duration(interval)} (since the previous token; this device has no timestamps).`
        : sentence`${duration(gpu)} on the device.`;
    if (!plan)
      return sentences(
        sentence`${word} took ${time}`,
        sentence`PyTorch runs this model, so there is no list of dispatches.`,
      );
    return sentences(
      sentence`For ${word} the engine ran ${count(plan.dispatches.length)} dispatches in ${time}`,
      sentence`They move at least ${bytes(plan.n_bytes)} and do ${amount(plan.flops)} operations.`,
      peaks ? pace(plan, peaks, gpu) : notAnswered(error ?? { message: "" }),
    );
  },

  marks: () => [[...document.querySelectorAll(".tl-roof")]],
};

/**
 * Return what limits a step of `gpu` ms, and how near it came to that.
 *
 * @param {Answers.PlanReport} plan
 * @param {KnownPeaks} peaks
 * @param {number | null} gpu
 */
export function pace(plan, peaks, gpu) {
  if (!peaks.flops_per_s) return sentence`The limits of this device are unknown: it is not a GPU.`;
  const { own, ridge, memory, floor } = boundOf(plan, peaks);
  const limit = plain(memory ? "memory" : "arithmetic");
  const beside = sentence`At ${figure(own)} operations per byte, ${limit} is the limit; the two
    balance at ${figure(ridge)}.`;
  if (gpu === null) return beside;
  if (isFault(floor / gpu))
    return sentences(
      beside,
      sentence`This step was faster than that limit: ${plain(PEAK_FAULT)}.`,
    );
  return sentences(beside, sentence`This step reached ${share(floor / gpu)} of the limit.`);
}

/** @type {TourStep} */
export const tryStep = {
  title: "Your turn",
  open: null,
  sheet: "sampling",
  follows: true,

  text({ segment, answer, word }) {
    const seed = segment.request?.params.seed ?? segment.params?.seed ?? "";
    return sentences(
      sentence`All of this was measured on your run of ${plural(answer.tokens.length, "token")}.
        With the same settings and seed ${seed} the model generates the same text again.`,
      sentence`Now change one thing: pick another candidate for ${word} under Next token and the
        text continues from there. Or ask again, pause (P) and write token by token (full stop).`,
      sentence`A replay saves this run, to be opened later without an engine.`,
    );
  },

  marks: () => [
    [byId("presets"), byId("sliders")],
    [byId("cands"), byId("replace-token")],
    [byId("replay-open")],
  ],
};
