// Finding the recorded plan of a step by its sizes, as docs/plan-format.md says.

/**
 * What a plan must have; as little as a plan may leave out.
 *
 * @typedef {{kind: string, rows: number, samples: number, context: number} & Acting} StepToFind
 * @typedef {Pick<Exported.RecordedStep, "kind" | "rows" | "samples" | "splits"> & Acting} PlanKey
 */

export class PlanLookup {
  /** @param {Pick<Exported.PlanFile, "plans" | "lookup">} plan */
  constructor({ plans, lookup }) {
    this.lookup = lookup;
    this.byKey = new Map(plans.map((plan) => [keyOf(plan), plan]));
  }

  /** Return the plan of a step. @param {StepToFind} step */
  find({ kind, rows, samples, context, interventions = false, loras = false }) {
    const { lookup } = this;
    const size = smallest(lookup.rows, rows);
    const key = keyOf({
      kind,
      rows: size,
      samples: smallest(lookup.samples, samples),
      splits: size > lookup.split_rows ? 1 : splitsOf(context, lookup.split_tokens),
      interventions,
      loras,
    });
    const plan = this.byKey.get(key);
    if (!plan) throw new Error(`the export has no plan ${key}; export the model again`);
    return plan;
  }
}

/**
 * The smallest of rising sizes that is not less than `n`; without one there is no plan.
 *
 * @param {number[]} sizes
 * @param {number} n
 */
const smallest = (sizes, n) => sizes.find((size) => size >= n) ?? NaN;

/**
 * Parts in which attention reads a context: a power of two.
 *
 * @param {number} context
 * @param {number} tokens
 */
function splitsOf(context, tokens) {
  let splits = 1;
  while (splits * tokens < context) splits *= 2;
  return splits;
}

/** @param {PlanKey} key */
const keyOf = ({ kind, rows, samples, splits, interventions = false, loras = false }) =>
  `${kind} of ${rows} rows, ${samples} samples, ${splits} splits` +
  `${interventions ? ", interventions" : ""}${loras ? ", adapters" : ""}`;
