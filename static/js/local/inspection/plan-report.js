// A recorded plan as the page lists it: dispatches with their bindings and costs, and the source of
// every kernel (gpu/plans/report_builder.py).

import { InvalidRequest } from "../shared/errors.js";
import { sumOfTerms } from "../gpu/step-cost.js";

const LAYER = /^layer(\d+)\./;
const OVERRIDE = /^override\s+(\w+)\s*:\s*(\w+)(?:\s*=\s*([^;]+?))?\s*;/gm;
const BINDING = /@binding\((\d+)\)\s*var(?:<[^>]*>)?\s+(\w+)/g;
/** @type {Record<Exported.PlanKernel["bindings"][number][1], Answers.PlanBinding["access"]>} */
const ACCESS = { uniform: "uniform", "read-only-storage": "read", storage: "read_write" };

/**
 * @typedef {import("../gpu/plan-lookup.js").PlanLookup} PlanLookup
 * @typedef {import("../gpu/step-cost.js").StepSize} StepSize
 */

/**
 * Return the plan of a step of `rows` tokens after `context` others, {recorded, report}: the plan as
 * it is in the file, and what the page is told of it. Throws InvalidRequest for a step that there is
 * not.
 *
 * @param {Exported.PlanFile} plan
 * @param {PlanLookup} lookup
 * @param {StepSize} step
 */
export function planReport(plan, lookup, { rows, context }) {
  const recorded = planOfStep(plan, lookup, { rows, context });
  const listed = dispatchesOf(plan, recorded);
  const kernels = [...new Set(listed.map(([, kernel]) => kernel))];
  const dispatches = listed.map((each) => reportOf(plan, each, kernels, { rows, context }));
  /** @type {Answers.PlanReport} */
  const report = {
    n_rows: rows,
    n_samples: 1,
    context,
    recorded_rows: recorded.rows,
    dispatches,
    kernels: kernels.map((kernel) => kernelReport(plan, plan.kernels[kernel])),
    n_bytes: sum(dispatches.map(({ n_bytes: n }) => n ?? 0)),
    flops: sum(dispatches.map(({ flops }) => flops ?? 0)),
  };
  return { recorded, report };
}

/** @param {Exported.PlanFile} plan @param {PlanLookup} lookup @param {StepSize} step */
function planOfStep({ limits }, lookup, { rows, context }) {
  if (!(rows >= 1 && rows <= limits.max_rows))
    throw new InvalidRequest(`n_rows is ${rows}, expected 1 to ${limits.max_rows}`, "n_rows");
  const most = limits.context - rows;
  if (!(context >= 0 && context <= most))
    throw new InvalidRequest(
      `context is ${context}, expected 0 to ${most}: it is what comes before the ${rows} rows, and ` +
        `${limits.context} tokens fit`,
      "context",
    );
  return lookup.find({ kind: "plain", rows, samples: 1, context: context + rows });
}

/**
 * Return the dispatches of a recorded plan, as they are in the file.
 *
 * @param {Exported.PlanFile} plan
 * @param {Exported.RecordedStep} recorded
 */
const dispatchesOf = (plan, recorded) =>
  recorded.dispatches.flatMap(([first, n]) => plan.dispatches.slice(first, first + n));

/**
 * @param {Exported.PlanFile} plan
 * @param {Exported.PlanDispatch} dispatch
 * @param {number[]} kernels
 * @param {StepSize} step
 * @returns {Answers.PlanDispatch}
 */
function reportOf(plan, [label, kernel, grid, views, cost], kernels, step) {
  const [flops, bytes] = cost === null ? [null, null] : plan.costs[cost];
  const bindings = bindingsOf(plan, plan.kernels[kernel], views);
  const sizes = new Map(bindings.map(({ tensor, n_bytes: n }) => [tensor, n]));
  const layer = LAYER.exec(label);
  return {
    label,
    layer: layer ? Number(layer[1]) : null,
    op: plan.kernels[kernel].name,
    kernel: kernels.indexOf(kernel),
    grid,
    bindings,
    bound_bytes: sum([...sizes.values()]),
    n_bytes: bytes && sumOfTerms(bytes, step),
    flops: flops && sumOfTerms(flops, step),
  };
}

/**
 * @param {Exported.PlanFile} plan
 * @param {Exported.PlanKernel} kernel
 * @param {number[]} views
 * @returns {Answers.PlanBinding[]}
 */
function bindingsOf(plan, { source, bindings }, views) {
  /** @type {Map<number, string>} */
  const names = new Map();
  for (const [, at, name] of plan.sources[source].matchAll(BINDING)) names.set(Number(at), name);
  return bindings.map(([at, type], i) => {
    const [, , bytes, tensor, dtype, shape] = plan.views[views[i]];
    return { name: names.get(at) ?? "", tensor, dtype, shape, n_bytes: bytes, access: ACCESS[type] };
  });
}

/**
 * The kernel with its source as it runs: a `const` in place of every `override`.
 *
 * @param {Exported.PlanFile} plan
 * @param {Exported.PlanKernel} kernel
 * @returns {Answers.PlanKernel}
 */
function kernelReport({ sources }, { name, source, constants, workgroup }) {
  /** @type {Record<string, boolean | number>} */
  const typed = {};
  /** @type {(all: string, override: string, type: string, initial: string) => string} */
  const asConst = (_, override, type, initial) => {
    if (override in constants) typed[override] = type === "bool" ? !!constants[override] : constants[override];
    const value = override in constants ? literal(type, constants[override]) : initial;
    return `const ${override}: ${type} = ${value};`;
  };
  const filled = sources[source].replace(OVERRIDE, asConst);
  return { op: name, workgroup_size: workgroup, constants: { ...constants, ...typed }, source: filled };
}

/** @param {string} type @param {number} value */
function literal(type, value) {
  if (type === "bool") return String(!!value);
  if (type === "u32") return `${Math.trunc(value)}u`;
  return type === "i32" ? `${Math.trunc(value)}i` : `${floatText(Math.fround(value))}f`;
}

/** A number as Python's `repr` writes it. @param {number} value */
function floatText(value) {
  if (!Number.isFinite(value) || value === 0) return Object.is(value, -0) ? "-0.0" : value.toFixed(1);
  const power = Math.floor(Math.log10(Math.abs(value)));
  if (power >= -4 && power < 16) return Number.isInteger(value) ? value.toFixed(1) : String(value);
  const [digits, exponent] = value.toExponential().split("e");
  const size = String(Math.abs(Number(exponent))).padStart(2, "0");
  return `${digits}e${exponent.startsWith("-") ? "-" : "+"}${size}`;
}

/** @param {number[]} numbers */
const sum = (numbers) => numbers.reduce((total, n) => total + n, 0);
