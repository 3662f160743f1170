// The most likely tokens in the place of the first predicted one, before and after a change, in two columns.

import { percent, tokenLabel } from "../../ui/format.js";
import { addRow, clearRows, newTable } from "../shared/table.js";

/** @typedef {import("./measure.js").Reading} Reading */
/** @typedef {import("./measure.js").Likely} Likely */

export class LikelyTable {
  constructor() {
    this.box = newTable(
      "ab-likely",
      "Most likely next, in %",
      ["as it is", ["", "n"], "changed", ["", "n"]],
      "",
    );
  }

  /** @param {Reading | null} before @param {Reading | null} after */
  draw(before, after) {
    clearRows(this.box);
    this.box.hidden = !before || !after;
    if (!before || !after) return;
    before.likely.forEach((one, i) => addRow(this.box, [...cellsOf(one), ...cellsOf(after.likely[i])]));
  }
}

/** @param {Likely} likely */
const cellsOf = ({ text, share }) => [tokenLabel(text, "·"), percent(share)];
