// Numbers of the matrices of all layers, as a table of layers × matrices, each cell as dark as it is large.

import { el, setVars } from "../../ui/dom.js";
import { figure } from "../../ui/format.js";
import { addHead } from "../shared/table.js";

/** Number of a matrix; `layer` null: of none, such as the embedding. @typedef {{layer: number | null, name: string, value: number}} MatrixNumber */

/** Rows of matrices outside the layers. */
const OUTSIDE = "other";

/**
 * Draw the table into `box`. `onChoose`: called with the number of a cell that is pressed, whose button
 * is then marked.
 *
 * @param {HTMLElement} box
 * @param {string} caption
 * @param {MatrixNumber[]} numbers
 * @param {(chosen: MatrixNumber) => void} [onChoose]
 */
export function drawLayerGrid(box, caption, numbers, onChoose) {
  const names = [...new Set(numbers.map(({ name }) => name))];
  const most = Math.max(...numbers.map(({ value }) => value)) || 1;
  const table = el("table", "table tr-grid");
  table.append(el("caption", "vh", caption));
  addHead(table, ["layer", ...shortened(names)]);
  const body = table.createTBody();
  const layers = [...new Set(numbers.map(({ layer }) => layer))];
  for (const layer of layers) {
    const row = body.insertRow();
    row.append(Object.assign(el("th", "", layer === null ? OUTSIDE : String(layer)), { scope: "row" }));
    for (const name of names) {
      const cell = row.insertCell();
      const number = numbers.find((each) => each.layer === layer && each.name === name);
      if (!number) continue;
      setVars(cell, { "--p": number.value / most });
      cell.append(onChoose ? chooser(table, number, onChoose) : figure(number.value));
    }
  }
  box.replaceChildren(table);
}

/** Last parts of the names, where they differ. @param {string[]} names */
function shortened(names) {
  const short = names.map((name) => name.replace(/^.*\.(?!bias$)/, ""));
  return new Set(short).size === names.length ? short : names;
}

/** @param {HTMLElement} table @param {MatrixNumber} number @param {(chosen: MatrixNumber) => void} onChoose */
function chooser(table, number, onChoose) {
  const button = el("button", "", figure(number.value));
  button.type = "button";
  button.ariaLabel = `${number.name} of layer ${number.layer ?? OUTSIDE}: ${figure(number.value)}`;
  button.addEventListener("click", () => {
    for (const other of table.querySelectorAll("button")) other.ariaPressed = String(other === button);
    onChoose(number);
  });
  return button;
}
