// Interventions on the device: tables that the shaders look up by the slot of a row
// (gpu/plans/intervention_buffers.py, gpu/plans/lora_buffers.py; `interventions.*` and
// `lora.strengths` in docs/plan-format.md).

import { NONE_ACTIVE } from "../interventions/active.js";
import { padded } from "./padded.js";

/** Factors of a layer's updates, in the order of a row. */
const SUBLAYERS = ["attention", "mlp"];

/**
 * Numbers of each table, and a slot's rows of all of them, layer after layer.
 *
 * @typedef {import("../interventions/active.js").ActiveInterventions} ActiveInterventions
 * @typedef {"heads" | "updates" | "vectors" | "keeps" | "experts"} TableName
 * @typedef {Record<TableName, Float32Array<ArrayBuffer>>} TableRows
 */

/** Those of every model; one with experts has a table of them, too. @type {TableName[]} */
const TABLES = ["heads", "updates", "vectors", "keeps"];

export class InterventionTables {
  /**
   * `buffers`: Buffers, or what writes to tensors in their place.
   *
   * @param {Pick<import("./buffers.js").Buffers, "plan" | "write">} buffers
   * @param {Pick<Exported.PlanFile, "limits" | "model">} plan
   */
  constructor(buffers, { limits, model }) {
    this.buffers = buffers;
    this.model = model;
    /** Names of the adapters, in the order of their strengths. */
    this.loras = (model.loras ?? []).map(({ name }) => name);
    /** What acts on each slot. @type {ActiveInterventions[]} */
    this.held = Array(limits.slots + 1).fill(NONE_ACTIVE);
  }

  /**
   * Set the interventions on a slot's rows for all steps submitted from now on.
   *
   * @param {number} slot
   * @param {ActiveInterventions} active
   */
  set(slot, active) {
    const before = this.held[slot];
    if (active.baseDigest !== before.baseDigest) this.setBase(slot, active, before);
    if (active.loraDigest !== before.loraDigest) this.setStrengths(slot, active);
    this.held[slot] = active;
  }

  /** @param {number} slot @param {ActiveInterventions} active @param {ActiveInterventions} before */
  setBase(slot, active, before) {
    const [old, rows] = [before, active].map((each) => this.rowsOf(each));
    for (const name of this.tables) this.write(name, slot, rows[name], old[name]);
  }

  /** @returns {TableName[]} */
  get tables() {
    return "interventions.experts" in this.buffers.plan.tensors ? [...TABLES, "experts"] : TABLES;
  }

  /** @param {number} slot @param {ActiveInterventions} active */
  setStrengths(slot, { loras }) {
    const strengths = new Map(loras.map(({ name, strength }) => [name, strength]));
    const row = Float32Array.from(this.loras, (name) => strengths.get(name) ?? 0);
    this.buffers.write("lora.strengths", row, slot * row.byteLength);
  }

  /** Numbers of a slot in a layer of each table. */
  get widths() {
    const { n_heads: heads, hidden_size: hidden, n_experts: experts = 0 } = this.model;
    return { heads, updates: SUBLAYERS.length, vectors: padded(hidden), keeps: 1, experts };
  }

  /**
   * Write the rows of a slot in the layers where they are not as before.
   *
   * @param {TableName} name
   * @param {number} slot
   * @param {Float32Array<ArrayBuffer>} rows
   * @param {Float32Array} old
   */
  write(name, slot, rows, old) {
    const width = this.widths[name];
    const [, stride] = this.buffers.plan.tensors[`interventions.${name}`].shape;
    for (let layer = 0; layer < this.model.n_layers; layer++) {
      const at = layer * width;
      const row = rows.subarray(at, at + width);
      if (row.every((value, i) => value === old[at + i])) continue;
      this.buffers.write(`interventions.${name}`, row, (layer * stride + slot * width) * 4);
    }
  }

  /** Rows of a slot. @param {ActiveInterventions} active @returns {TableRows} */
  rowsOf({ heads, attention, mlp, steer, patch, experts }) {
    const { n_layers: nLayers } = this.model;
    const { widths } = this;
    /** @param {TableName} name @param {number} value */
    const filled = (name, value) => new Float32Array(nLayers * widths[name]).fill(value);
    const rows = {
      heads: filled("heads", 1),
      updates: filled("updates", 1),
      vectors: filled("vectors", 0),
      keeps: filled("keeps", 1),
      experts: filled("experts", 1),
    };
    for (const { layer, expert } of experts) rows.experts[layer * widths.experts + expert] = 0;
    for (const { layer, head, factor } of heads) rows.heads[layer * widths.heads + head] = factor;
    [attention, mlp].forEach((factors, part) => {
      for (const { layer, factor } of factors) rows.updates[layer * widths.updates + part] = factor;
    });
    for (const [layer, { vector }] of patch) {
      rows.vectors.set(vector, layer * widths.vectors);
      rows.keeps[layer] = 0;
    }
    for (const [layer, { vector }] of steer)
      vector.forEach((value, i) => (rows.vectors[layer * widths.vectors + i] += value));
    return rows;
  }
}
