// @ts-nocheck
// Finding the recorded plan of a step by its sizes, as docs/plan-format.md says.

export class PlanLookup {
  constructor({ plans, lookup }) {
    this.lookup = lookup;
    this.byKey = new Map(plans.map((plan) => [keyOf(plan), plan]));
  }

  /** Return the plan of a step: {kind, rows, samples, context, interventions, loras}. */
  find({ kind, rows, samples, context, interventions = false, loras = false }) {
    const { lookup } = this;
    const size = lookup.rows.find((bucket) => bucket >= rows);
    const key = keyOf({
      kind,
      rows: size,
      samples: lookup.samples.find((bucket) => bucket >= samples),
      splits: size > lookup.split_rows ? 1 : splitsOf(context, lookup.split_tokens),
      interventions,
      loras,
    });
    const plan = this.byKey.get(key);
    if (!plan) throw new Error(`the export has no plan ${key}; export the model again`);
    return plan;
  }
}

/** Parts in which attention reads a context: a power of two. */
function splitsOf(context, tokens) {
  let splits = 1;
  while (splits * tokens < context) splits *= 2;
  return splits;
}

const keyOf = ({ kind, rows, samples, splits, interventions = false, loras = false }) =>
  `${kind} of ${rows} rows, ${samples} samples, ${splits} splits` +
  `${interventions ? ", interventions" : ""}${loras ? ", adapters" : ""}`;
