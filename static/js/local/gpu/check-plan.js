// Checks of a plan file before anything is made of it.
//
// WebGPU checks what a shader may touch; these checks give a bad file a clear error, and bound the
// memory and the loops of this page.

const FORMAT = "tokenglass-plan";
const VERSION = 1;
const MAX_BUFFER_BYTES = 4 * 2 ** 30;
const LISTS = ["sources", "kernels", "dispatches", "plans", "buffers", "views", "weights"];

/** Return `plan`; throws an Error that says what is wrong with it. */
export function checkPlan(plan) {
  expect(plan?.format === FORMAT, "it is not a plan of Tokenglass");
  expect(Math.trunc(plan.version) === VERSION, `its version is ${plan.version}, expected ${VERSION}`);
  for (const name of LISTS) expect(Array.isArray(plan[name]), `${name} is not a list`);
  plan.buffers.forEach((buffer, i) => checkBuffer(plan, buffer, i));
  plan.views.forEach(([buffer, offset, bytes], i) => {
    const size = plan.buffers[buffer]?.bytes;
    expect(isCount(offset) && isCount(bytes) && offset + bytes <= size, `view ${i} is outside of its buffer`);
  });
  for (const [name, { view }] of Object.entries(plan.tensors))
    expect(view in plan.views, `tensor ${name} has no view`);
  plan.kernels.forEach((kernel, i) => {
    expect(typeof plan.sources[kernel.source] === "string", `kernel ${i} has no source`);
  });
  plan.dispatches.forEach(([, kernel, , views], i) => {
    const bound = plan.kernels[kernel]?.bindings.length;
    const known = views.length === bound && views.every((view) => view in plan.views);
    expect(known, `dispatch ${i} does not fit its kernel`);
  });
  plan.plans.forEach((each, i) => checkRecorded(plan, each, i));
  checkLimits(plan);
  return plan;
}

function checkBuffer(plan, buffer, i) {
  expect(isCount(buffer.bytes) && buffer.bytes <= MAX_BUFFER_BYTES, `buffer ${i} has no valid size`);
  if (buffer.weight === undefined) return;
  const weight = plan.weights[buffer.weight];
  const first = buffer.first ?? 0;
  const fits = weight && isCount(first) && isCount(buffer.rows) && first + buffer.rows <= weight.n;
  expect(fits && isCount(weight.at) && isCount(weight.bytes / weight.n), `buffer ${i} has no weight`);
  const bytes = (buffer.rows * weight.bytes) / weight.n;
  expect(bytes <= buffer.bytes, `the weight of buffer ${i} is larger than the buffer`);
}

function checkRecorded(plan, each, i) {
  const whole = each.dispatches.every(
    ([first, n]) => isCount(first) && isCount(n) && first + n <= plan.dispatches.length,
  );
  expect(whole, `plan ${i} has dispatches that do not exist`);
  const end = each.samples * plan.results.words * 4;
  expect(isCount(each.result_bytes) && end <= each.result_bytes, `plan ${i} has no room for its results`);
  for (const kept of each.kept ?? []) {
    const [, , bytes] = plan.views[kept.view] ?? [];
    expect(kept.at + bytes <= each.result_bytes, `plan ${i} has no room for its ${kept.name}`);
  }
}

function checkLimits({ limits, step }) {
  for (const name of ["slots", "context", "max_rows", "max_samples", "n_blocks", "block_tokens", "max_blocks"])
    expect(isCount(limits[name]) && limits[name] > 0, `limits.${name} is not a positive number`);
  const end = step.rows_at + limits.max_rows * step.row.length * 4;
  expect(end <= step.bytes, "the step's buffer is smaller than a step");
}

const isCount = (value) => Number.isSafeInteger(value) && value >= 0;

function expect(holds, wrong) {
  if (!holds) throw new Error(`the plan file cannot be used: ${wrong}; export the model again`);
}
