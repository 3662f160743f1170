// Weights by kind: parameters, bytes on the device, bytes read per token.

import { el, setText } from "../../ui/dom.js";
import { bytes, count, parameters, percent } from "../../ui/format.js";
import { addRow, clearRows, newTable, numeric, shareBar } from "../shared/table.js";

const KINDS = [
  ["embedding", "embedding"],
  ["attention", "attention"],
  ["mlp", "MLP"],
  ["norm", "norms"],
  ["head", "output head"],
  ["unused", "unused"],
];

/**
 * Return {kind, name, parameters, share, device, token, tied} of the kinds present.
 *
 * @param {Pick<Answers.Inventory, "tensors">} inventory
 */
function kindsOf({ tensors }) {
  return KINDS.map(([kind, name]) => {
    const own = tensors.filter((tensor) => tensor.kind === kind);
    /** @param {"parameters" | "share" | "device_bytes" | "token_bytes"} key */
    const sum = (key) => own.reduce((total, tensor) => total + (tensor[key] ?? 0), 0);
    return {
      kind,
      name,
      n: own.length,
      parameters: sum("parameters"),
      share: sum("share"),
      device: sum("device_bytes"),
      token: sum("token_bytes"),
      tied: own.some((tensor) => tensor.tied_to),
    };
  }).filter(({ n }) => n > 0);
}

export class WeightsKinds {
  /** @param {HTMLElement} root */
  constructor(root) {
    this.root = root.appendChild(el("div", "wt-kinds"));
    this.head = this.root.appendChild(el("p", "wt-what"));
    const columns = numeric(["parameters", "%", "read per token"]);
    this.list = newTable("", "Parameters by kind of tensor", ["", "", ...columns]);
    this.root.append(this.list);
    /** @type {Answers.Inventory | null} */
    this.drawn = null;
    this.root.append(el("p", "wt-hint", "Select a tensor to see its values."));
  }

  /** @param {Answers.Inventory} inventory */
  draw(inventory) {
    if (inventory === this.drawn) return;
    this.drawn = inventory;
    setText(this.head, describe(inventory));
    const kinds = kindsOf(inventory);
    const largest = Math.max(...kinds.map(({ share }) => share));
    clearRows(this.list);
    for (const { kind, name, share, tied, token, parameters: n } of kinds) {
      const read = inventory.dtype ? bytes(token) : "";
      const figures = tied ? ["tied", "", ""] : [parameters(n), percent(share), read];
      addRow(this.list, [name, shareBar(share / largest, kind), ...figures]);
    }
  }
}

/** @param {Answers.Inventory} inventory */
function describe(inventory) {
  const { parameters: n, n_bytes: saved, dtype } = inventory;
  const { device_bytes: device, token_bytes: token } = inventory;
  const files = `${count(n)} parameters, ${bytes(saved)} in the files.`;
  if (!dtype || device === null || token === null) return files;
  const stored = `As ${dtype} ${bytes(device)} on the device`;
  return `${files} ${stored}, of which a decode step reads ${bytes(token)}.`;
}
