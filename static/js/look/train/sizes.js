// What a training takes in memory, from the sizes of the model's matrices: in float32, as it is trained.

const FLOAT = 4;

/**
 * Numbers that are trained, and bytes of an adapter's training beside those of a full fine-tune with
 * Adam: weights, a gradient for each trained number, and two moments.
 *
 * @param {Pick<Answers.TrainOffer, "parameters" | "targets">} offer
 * @param {{rank: number, targets: readonly string[]}} settings
 */
export function costs({ parameters, targets }, { rank, targets: chosen }) {
  const width = targets.filter(({ name }) => chosen.includes(name)).reduce((sum, each) => sum + each.width, 0);
  const trained = rank * width;
  const rows = [
    { name: "weights", adapter: FLOAT * (parameters + trained), full: FLOAT * parameters },
    { name: "gradients", adapter: FLOAT * trained, full: FLOAT * parameters },
    { name: "Adam’s moments", adapter: 2 * FLOAT * trained, full: 2 * FLOAT * parameters },
  ];
  const sum = (/** @type {"adapter" | "full"} */ of) => rows.reduce((all, row) => all + row[of], 0);
  rows.push({ name: "together", adapter: sum("adapter"), full: sum("full") });
  return { trained, rows };
}
