// Details of one dispatch: its cost, its bindings, and the compiled shader.

import { drawPairs, el, setText } from "../../ui/dom.js";
import { bytes, count, figure } from "../../ui/format.js";
import { addRow, clearRows, newTable } from "../shared/table.js";
import { short } from "./graph.js";

/** @typedef {[name: string, value: string]} Figure */

const ACCESS = { uniform: "uniform", read: "read", read_write: "written" };

export class PlanDetail {
  /** @param {HTMLElement} root */
  constructor(root) {
    this.root = root.appendChild(el("div", "pl-detail"));
    this.root.tabIndex = 0;
    this.root.setAttribute("role", "region");
    this.root.setAttribute("aria-label", "Selected dispatch");
    this.name = this.root.appendChild(el("h3"));
    this.what = this.root.appendChild(el("p", "pl-what"));
    this.figures = this.root.appendChild(el("dl", "figures pl-figures"));
    const columns = ["binding", "tensor", "type and shape", "bytes", "use"];
    this.bound = newTable("pl-bound", "Buffers", columns.map((name) => [name, name === "bytes" ? "n" : ""]));
    this.root.append(this.bound);
    this.constants = this.root.appendChild(el("p", "pl-what"));
    /** @type {{plan: Answers.PlanReport, number: number, ms: number | null} | null} */
    this.drawn = null;
    this.source = this.root.appendChild(el("pre", "pl-source"));
  }

  /**
   * `reads`: what the dispatch reads, by the names of articles; `ms`: its GPU time; `total`: that of
   * the step, or null.
   *
   * @param {Answers.PlanReport} plan
   * @param {number} number
   * @param {string} reads
   * @param {number | null} ms
   * @param {number | null} total
   */
  draw(plan, number, reads, ms, total) {
    if (this.drawn?.plan === plan && this.drawn.number === number && this.drawn.ms === ms) return;
    if (this.drawn?.number !== number) this.root.scrollTop = 0;
    this.drawn = { plan, number, ms };
    const dispatch = plan.dispatches[number];
    const kernel = plan.kernels[dispatch.kernel];
    setText(this.name, dispatch.label);
    const place = `kernel ${dispatch.kernel + 1} of ${plan.kernels.length}`;
    setText(this.what, `${kernel.op}.wgsl, ${place}`);
    /** @type {Figure[]} */
    const named = reads ? [["reads", reads]] : [];
    drawPairs(this.figures, [...named, ...figuresOf(dispatch, kernel, plan, ms, total)]);
    this.#bindings(dispatch.bindings);
    const values = Object.entries(kernel.constants).map(([name, value]) => `${name} ${value}`);
    setText(this.constants, `Constants: ${values.join(", ")}.`);
    setText(this.source, kernel.source);
  }

  /** @param {Answers.PlanBinding[]} bindings */
  #bindings(bindings) {
    clearRows(this.bound);
    for (const { name, tensor, dtype, shape, n_bytes: n, access } of bindings)
      addRow(this.bound, [name, tensor, `${dtype} ${shape.join(" × ")}`, bytes(n), ACCESS[access]]);
  }
}

/**
 * @param {Answers.PlanDispatch} dispatch
 * @param {Answers.PlanKernel} kernel
 * @param {Answers.PlanReport} plan
 * @param {number | null} ms
 * @param {number | null} total
 * @returns {Figure[]}
 */
function figuresOf(dispatch, kernel, plan, ms, total) {
  const { n_bytes: n, flops, grid, bound_bytes: bound } = dispatch;
  /** @param {number} part @param {number | null} all */
  const share = (part, all) => (all ? `, ${((100 * part) / all).toFixed(1)} %` : "");
  const size = kernel.workgroup_size.reduce((a, b) => a * b);
  const invocations = [...grid, ...kernel.workgroup_size].reduce((a, b) => a * b, 1);
  /** @type {Figure[]} */
  const rows = [
    ["workgroups", `${grid.join(" × ")} of ${size}`],
    ["invocations", count(invocations)],
    ["bound buffers", bytes(bound)],
    ["minimum traffic", n === null ? "unknown" : `${bytes(n)}${share(n, plan.n_bytes)}`],
    ["operations", flops === null ? "unknown" : `${amount(flops)}${share(flops, plan.flops)}`],
  ];
  if (n && flops !== null) rows.push(["operations per byte", figure(flops / n)]);
  if (ms !== null) rows.push(["GPU time", `${short(ms)}${share(ms, total)}`]);
  if (ms && n) rows.push(["memory", `${figure(n / ms / 1e6)} GB/s`]);
  if (ms && flops) rows.push(["arithmetic", `${figure(flops / ms / 1e6)} Gop/s`]);
  return rows;
}

const PREFIXES = ["", " K", " M", " G", " T"];

/** "7.1 M" operations. @param {number} n */
export function amount(n) {
  let power = 0;
  while (n >= 999.5 && power < PREFIXES.length - 1) {
    n /= 1000;
    power += 1;
  }
  return `${power && n < 100 ? n.toFixed(1) : Math.round(n)}${PREFIXES[power]}`;
}
