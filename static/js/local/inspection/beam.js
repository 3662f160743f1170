// Beam search for the most likely continuations of a text (gpu/inspection/beam.py).

import { InvalidRequest } from "../shared/errors.js";
import { floats, ints } from "./arrays.js";
import { logSoftmax, mostLikely } from "./numbers.js";

/**
 * @typedef {Required<Pick<FromPage.Beam, "ids" | "width" | "depth" | "length_penalty">>} BeamQuestion
 * @typedef {{ids: number[], logprobs: number[], ended: boolean}} Continuation
 */

/**
 * Throw InvalidRequest for a beam that is too wide, too deep, or longer than the context.
 *
 * @param {BeamQuestion} question
 * @param {number} context
 * @param {RequestLimits["questions"]} limits
 */
export function checkBeam(question, context, limits) {
  checkRange("width", question.width, 1, limits.beam_width);
  checkRange("depth", question.depth, 1, limits.beam_depth);
  checkRange("length_penalty", question.length_penalty, 0, limits.length_penalty);
  const n = question.ids.length;
  if (n + question.depth > context)
    throw new InvalidRequest(
      `${n} ids and ${question.depth} more do not fit the context of ${context} tokens; ask for a ` +
        `depth of ${context - n} or less`,
      "depth",
    );
}

/** @param {string} name @param {number} value @param {number} least @param {number} most */
function checkRange(name, value, least, most) {
  if (!(value >= least && value <= most))
    throw new InvalidRequest(`${name} should be from ${least} to ${most}, but is ${value}`, name);
}

/**
 * Return the answer. `logitsAfter(ids)` is an async generator of the logits after the last id.
 *
 * @param {BeamQuestion} question
 * @param {(ids: number[]) => AsyncGenerator<void, Float32Array>} logitsAfter
 * @param {number[]} endIds
 */
export async function* beamAnswer({ ids, width, depth, length_penalty: penalty }, logitsAfter, endIds) {
  /** @param {Continuation} one */
  const score = ({ ids: own, logprobs }) =>
    logprobs.reduce((sum, each) => sum + each, 0) / Math.max(1, own.length) ** penalty;
  /** @type {Continuation[]} */
  let beam = [{ ids: [], logprobs: [], ended: false }];
  for (let step = 0; step < depth && !beam.every(({ ended }) => ended); step++) {
    /** @type {Continuation[]} */
    const others = [];
    for (const one of beam) {
      if (one.ended) {
        others.push(one);
        continue;
      }
      const logs = logSoftmax(yield* logitsAfter([...ids, ...one.ids]));
      for (const id of mostLikely(logs, width))
        others.push({
          ids: [...one.ids, id],
          logprobs: [...one.logprobs, logs[id]],
          ended: endIds.includes(id),
        });
      yield;
    }
    beam = others.sort((a, b) => score(b) - score(a)).slice(0, width);
  }
  /** @param {"ids" | "logprobs"} name */
  const filled = (name) => beam.flatMap((one) => [...one[name], ...Array(depth).fill(0)].slice(0, depth));
  return {
    info: {},
    arrays: {
      ids: ints(filled("ids"), [beam.length, depth]),
      logprobs: floats(filled("logprobs"), [beam.length, depth]),
      lengths: ints(beam.map((one) => one.ids.length)),
      ended: ints(beam.map(({ ended }) => Number(ended))),
    },
  };
}
