// @ts-nocheck
// Beam search for the most likely continuations of a text (gpu/inspection/beam.py).

import { InvalidRequest } from "../shared/errors.js";
import { floats, ints } from "./arrays.js";
import { logSoftmax, mostLikely } from "./numbers.js";

const RANGES = { width: [1, 16], depth: [1, 128], length_penalty: [0, 10] };

/** Throw InvalidRequest for a beam that is too wide, too deep, or longer than the context. */
export function checkBeam(question, context) {
  for (const [name, [least, most]] of Object.entries(RANGES)) {
    const value = question[name];
    if (!(value >= least && value <= most))
      throw new InvalidRequest(`${name} should be from ${least} to ${most}, but is ${value}`, name);
  }
  const n = question.ids.length;
  if (n + question.depth > context)
    throw new InvalidRequest(
      `${n} ids and ${question.depth} more do not fit the context of ${context} tokens; ask for a ` +
        `depth of ${context - n} or less`,
      "depth",
    );
}

/** Return the answer. `logitsAfter(ids)` is an async generator of the logits after the last id. */
export async function* beamAnswer({ ids, width, depth, length_penalty: penalty }, logitsAfter, endIds) {
  const score = ({ ids: own, logprobs }) =>
    logprobs.reduce((sum, each) => sum + each, 0) / Math.max(1, own.length) ** penalty;
  let beam = [{ ids: [], logprobs: [], ended: false }];
  for (let step = 0; step < depth && !beam.every(({ ended }) => ended); step++) {
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
