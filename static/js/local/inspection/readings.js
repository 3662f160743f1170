// Answers computed from logits: lens, losses and the effect of interventions (gpu/inspection/readings.py).

import { floats, ints } from "./arrays.js";
import { entropy, logSoftmax, mostLikely, rankOf } from "./numbers.js";

/**
 * Return the arrays of a lens. `stages`: logits after the embedding and every layer.
 *
 * @param {Float32Array[]} stages
 * @param {number} chosen
 * @param {number} top
 */
export function lensReading(stages, chosen, top) {
  const read = stages.map((logits) => {
    const logs = logSoftmax(logits);
    const ids = mostLikely(logs, top);
    const shares = logs.map(Math.exp);
    return {
      ids,
      probabilities: ids.map((id) => shares[id]),
      entropy: entropy(shares),
      rank: rankOf(logs, chosen),
      probability: shares[chosen],
    };
  });
  const shape = [stages.length, read[0].ids.length];
  return {
    info: { chosen },
    arrays: {
      ids: ints(read.flatMap(({ ids }) => ids), shape),
      probabilities: floats(read.flatMap(({ probabilities }) => probabilities), shape),
      entropy: floats(read.map((stage) => stage.entropy)),
      rank: ints(read.map(({ rank }) => rank)),
      probability: floats(read.map(({ probability }) => probability)),
    },
  };
}

/** Losses of the tokens of a text, added one after the other. */
export class LossReading {
  /** @type {{logprob: number, rank: number, entropy: number, best: number[], logprobs: number[]}[]} */
  read = [];

  /** @param {number} top */
  constructor(top) {
    this.top = top;
  }

  /** Add the logits after a token, which `id` followed. @param {Float32Array} logits @param {number} id */
  add(logits, id) {
    const logs = logSoftmax(logits);
    const best = mostLikely(logs, this.top);
    this.read.push({
      logprob: logs[id],
      rank: rankOf(logs, id),
      entropy: entropy(logs.map(Math.exp)),
      best,
      logprobs: best.map((each) => logs[each]),
    });
  }

  answer() {
    const { read } = this;
    const shape = [read.length, read[0].best.length];
    const mean = -read.reduce((sum, { logprob }) => sum + logprob, 0) / read.length;
    return {
      info: { mean_loss: mean, perplexity: Math.exp(mean) },
      arrays: {
        logprob: floats(read.map(({ logprob }) => logprob)),
        rank: ints(read.map(({ rank }) => rank)),
        entropy: floats(read.map((each) => each.entropy)),
        top_ids: ints(read.flatMap(({ best }) => best), shape),
        top_logprobs: floats(read.flatMap(({ logprobs }) => logprobs), shape),
      },
    };
  }
}

/** Effect of interventions on the predictions of a text, added one token after the other. */
export class EffectReading {
  /** @type {{kl: number, isSame: boolean, logprobs: [base: number, now: number] | null}[]} */
  read = [];

  /**
   * Add the logits after a token, which `id` followed; undefined: nothing did.
   *
   * @param {Float32Array} reference
   * @param {Float32Array} logits
   * @param {number | undefined} id
   */
  add(reference, logits, id) {
    const [base, now] = [logSoftmax(reference), logSoftmax(logits)];
    const kl = base.reduce((sum, log, i) => sum + Math.exp(log) * (log - now[i]), 0);
    const isSame = mostLikely(base, 1)[0] === mostLikely(now, 1)[0];
    this.read.push({ kl, isSame, logprobs: id === undefined ? null : [base[id], now[id]] });
  }

  answer() {
    const logprobs = this.read.flatMap((each) => (each.logprobs ? [each.logprobs] : []));
    return {
      info: {},
      arrays: {
        kl: floats(this.read.map(({ kl }) => kl)),
        same_top: ints(this.read.map(({ isSame }) => Number(isSame))),
        logprobs: floats([0, 1].flatMap((way) => logprobs.map((pair) => pair[way])), [2, logprobs.length]),
      },
    };
  }
}
