// Steps 10 to 12: what was kept, what it cost, and what can be done now.

import { byId } from "../dom.js";
import { bytes, count, duration, figure, plural } from "../format.js";
import { showCacheView } from "../look/cache.js";
import { shapeOf } from "../look/kvsize.js";
import { amount } from "../look/plandetail.js";
import { notAnswered } from "./missing.js";
import { plain, say, sentences, share } from "./words.js";

export const kept = {
  title: "What is not computed twice",
  open: "cache",
  at: ({ index }) => ({ index: index - 1, row: null }),

  /** Its chart is that of one run. */
  enter: () => showCacheView("run"),

  say({ hello, row, before, word, segment }) {
    const { perToken } = shapeOf(hello);
    const { promptReused: reused } = segment;
    const total = segment.prompt.length;
    const tokens = row + 1;
    return sentences(
      say`So that nothing is read twice, every layer keeps a key and a value of each token: the KV cache, ${bytes(perToken)} a token.`,
      say`When ${word} was chosen it held ${plural(tokens, "token")}, ${bytes(tokens * perToken)}. Only ${before} went through the layers; the ${count(row)} before it were not computed again.`,
      reused
        ? say`Of the prompt’s ${plural(total, "token")}, ${count(reused)} had been found there from an earlier run.`
        : null,
    );
  },

  marks: () => [[...document.querySelectorAll(".kv-chart")]],
};

/**
 * What a step moves and computes, under the roof of its device (Williams et al. 2009): operations a
 * byte, its `own` and those at the `ridge` of the roof; whether `memory` limits it; and the `floor`,
 * the milliseconds that the limit leaves it at least.
 */
export function boundOf({ n_bytes: moved, flops }, { bytes_per_s: fast, flops_per_s: most }) {
  const own = flops / moved;
  const ridge = most / fast;
  return { own, ridge, memory: own < ridge, floor: 1000 * Math.max(moved / fast, flops / most) };
}

export const cost = {
  title: "What that one token cost",
  open: "timeline",

  async find(walk) {
    const plan = await walk.plan();
    if (!plan.dispatches) return { plan: null };
    try {
      return { plan, peaks: await walk.peaks() };
    } catch (error) {
      if (error.code === "lost") throw error;
      return { plan, error };
    }
  },

  say({ word, token }, { plan, peaks, error }) {
    const { gpu, interval } = token.times;
    const time =
      gpu === null
        ? say`${duration(interval)} from the token before to ${word} (this device has no clock of its own).`
        : say`${duration(gpu)} on the device.`;
    if (!plan)
      return sentences(
        say`${word} took ${time}`,
        say`PyTorch runs this model, so there is no list of what the device did.`,
      );
    return sentences(
      say`For ${word} the device ran ${count(plan.dispatches.length)} dispatches, shader after shader: ${time}`,
      say`They move at least ${bytes(plan.n_bytes)} and do ${amount(plan.flops)} operations.`,
      peaks ? pace(plan, peaks, gpu) : notAnswered(error),
    );
  },

  marks: () => [[...document.querySelectorAll(".tl-roof")]],
};

function pace(plan, peaks, gpu) {
  if (!peaks.flops_per_s) return say`What the device could do at most is not known: it is no GPU.`;
  const { own, ridge, memory, floor } = boundOf(plan, peaks);
  const limit = plain(memory ? "memory" : "arithmetic");
  const beside = say`At ${figure(own)} operations a byte ${limit} is the limit; that changes at ${figure(ridge)}.`;
  if (gpu === null) return beside;
  return sentences(beside, say`This step came to ${share(floor / gpu)} of the limit.`);
}

export const yours = {
  title: "Now you",
  open: null,
  sheet: "sampling",

  say({ segment, answer, word }) {
    const seed = segment.request?.params.seed ?? segment.params.seed;
    return sentences(
      say`All of this was measured on your run of ${plural(answer.tokens.length, "token")}. With the same settings and seed ${seed} it is written again, word for word.`,
      say`So change one thing: take another candidate for ${word} under Next token, and the text goes on from there; or move a slider while the model writes.`,
      say`A replay keeps the run as it is now, to be looked at without an engine.`,
    );
  },

  marks: () => [
    [byId("presets"), byId("sliders")],
    [byId("cands"), byId("instead")],
    [byId("replay-open")],
  ],
};
