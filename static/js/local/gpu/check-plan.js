// Checks of a plan file before anything is made of it.
//
// WebGPU checks what a shader may touch; these checks give a bad file a clear error, and bound the
// memory and the loops of this page.

import { planShape } from "./plan-shape.js";
import { ShapeError } from "./shape.js";

/** @type {Exported.PlanFile["format"]} */
const FORMAT = "tokenglass-plan";
/** @type {Exported.PlanFile["version"]} */
const VERSION = 1;
/** Tensors that every run reads or writes. */
const TENSORS = ["step", "results", "block_tables", "seen", "counts", "biases"];
/** Tensor of the adapters' strengths, if there are adapters. */
const STRENGTHS = "lora.strengths";
/** Tensors of the plans that answer questions, by their kind. */
const QUESTION_TENSORS = new Map([
  ["weights", ["keys", "weights"]],
  ["states", ["states"]],
  ["routes", ["chosen", "gates", "norms"]],
]);

/**
 * Return `plan`; throws an Error that says what is wrong with it.
 *
 * @param {unknown} plan
 * @returns {Exported.PlanFile}
 */
export function checkPlan(plan) {
  expectShape(plan);
  plan.buffers.forEach((buffer, i) => checkBuffer(plan, buffer, i));
  plan.views.forEach(([buffer, offset, bytes], i) => {
    const size = plan.buffers[buffer]?.bytes;
    expect(offset + bytes <= size, `view ${i} is outside of its buffer`);
  });
  checkTensors(plan, plan.tensors);
  for (const name of TENSORS) expect(Object.hasOwn(plan.tensors, name), `it has no tensor ${name}`);
  plan.kernels.forEach((kernel, i) => {
    expect(kernel.source < plan.sources.length, `kernel ${i} has no source`);
  });
  plan.dispatches.forEach(([, kernel, , views, cost], i) => {
    const bound = plan.kernels[kernel]?.bindings.length;
    const known = views.length === bound && views.every((view) => view < plan.views.length);
    expect(known, `dispatch ${i} does not fit its kernel`);
    expect(cost === null || cost < plan.costs.length, `dispatch ${i} has no cost`);
  });
  plan.plans.forEach((each, i) => checkRecorded(plan, each, i));
  checkLayouts(plan);
  checkLoras(plan);
  return plan;
}

/** @param {unknown} plan @returns {asserts plan is Exported.PlanFile} */
function expectShape(plan) {
  /** @type {{format?: unknown, version?: unknown}} */
  const { format, version } = Object(plan);
  expect(format === FORMAT, "it is not a plan of Tokenglass");
  expect(Math.trunc(Number(version)) === VERSION, `its version is ${version}, expected ${VERSION}`);
  try {
    planShape(plan, "");
  } catch (error) {
    if (error instanceof ShapeError) expect(false, error.message);
    throw error;
  }
}

/** @param {Exported.PlanFile} plan @param {Exported.PlanFile["tensors"]} tensors */
function checkTensors({ views }, tensors) {
  for (const [name, { view, shape }] of Object.entries(tensors)) {
    expect(view < views.length, `tensor ${name} has no view`);
    expect(shape.reduce((n, size) => n * size, 1) <= 2 ** 40, `tensor ${name} is too large`);
  }
}

/** @param {Exported.PlanFile} plan @param {Exported.PlanBuffer} buffer @param {number} i */
function checkBuffer(plan, buffer, i) {
  if (typeof buffer.weight !== "number") return;
  const weight = plan.weights[buffer.weight];
  const { first = 0, rows = 0 } = buffer;
  const fits = weight && first + rows <= weight.n && Number.isInteger(weight.bytes / weight.n);
  expect(!!fits, `buffer ${i} has no weight`);
  const bytes = (rows * weight.bytes) / weight.n;
  expect(bytes <= buffer.bytes, `the weight of buffer ${i} is larger than the buffer`);
}

/** @param {Exported.PlanFile} plan @param {Exported.RecordedStep} each @param {number} i */
function checkRecorded(plan, each, i) {
  const whole = each.dispatches.every(([first, n]) => first + n <= plan.dispatches.length);
  expect(whole, `plan ${i} has dispatches that do not exist`);
  const end = each.samples * plan.results.words * 4;
  expect(end <= each.result_bytes, `plan ${i} has no room for its results`);
  for (const { name, view, at, parts, stride } of each.kept ?? []) {
    const [, , bytes] = plan.views[view] ?? [];
    const fits = at % 4 === 0 && at + bytes <= each.result_bytes && 4 * parts * stride <= bytes;
    expect(fits, `plan ${i} has no room for its ${name}`);
  }
  const own = each.tensors ?? {};
  checkTensors(plan, own);
  for (const name of QUESTION_TENSORS.get(each.kind) ?? [])
    expect(Object.hasOwn(own, name), `plan ${i} has no tensor ${name}`);
  const room = own.weights?.shape[1] ?? 0;
  if (each.kind === "weights")
    expect(room >= each.rows * plan.model.n_heads, `plan ${i} has no room for the weights of one key`);
}

/** @param {Exported.PlanFile} plan */
function checkLayouts({ limits, step, results, lookup }) {
  const aligned = step.samples_at % 4 === 0 && step.rows_at % 4 === 0 && step.bytes % 4 === 0;
  expect(aligned, "the step's buffer does not consist of words");
  const samplesEnd = step.samples_at + limits.max_samples * step.sample.length * 4;
  const end = step.rows_at + limits.max_rows * step.row.length * 4;
  expect(samplesEnd <= step.bytes && end <= step.bytes, "the step's buffer is smaller than a step");
  const sampleEnd = results.sample.length + results.n_candidates * results.candidate.length;
  expect(sampleEnd <= results.words, "a result is smaller than its candidates");
  expect(Math.max(...lookup.rows) >= limits.max_rows, "no plan has as many rows as a step");
  const room = limits.max_blocks * limits.block_tokens;
  expect(room >= limits.context, "the block tables are smaller than the context");
}

/**
 * Check that each adapter has a name of its own, and a strength in every slot.
 *
 * @param {Exported.PlanFile} plan
 */
function checkLoras({ model: { loras = [] }, limits, tensors, views }) {
  if (!loras.length) return;
  expect(new Set(loras.map(({ name }) => name)).size === loras.length, "two adapters have one name");
  const table = Object.hasOwn(tensors, STRENGTHS) ? tensors[STRENGTHS] : null;
  expect(table !== null, `it has no tensor ${STRENGTHS}`);
  const bytes = table ? views[table.view][2] : 0;
  const needed = 4 * (limits.slots + 1) * loras.length;
  expect(bytes >= needed, `tensor ${STRENGTHS} has no room for ${loras.length} adapters`);
}

/** @param {boolean} holds @param {string} wrong */
function expect(holds, wrong) {
  if (!holds) throw new Error(`the plan file cannot be used: ${wrong}; export the model again`);
}
