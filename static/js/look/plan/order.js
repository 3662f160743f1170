// Order of a plan's dispatches: rows before, within and after the layers, and data dependencies.


/**
 * Group dispatches into rows {title, layer, cells}, in order. A cell lists dispatches of one label
 * (shards of a matrix, say), each with its `number` in the plan.
 *
 * @param {Answers.PlanDispatch[]} dispatches
 */
export function rowsOf(dispatches) {
  /** @type {PlanRow[]} */
  const rows = [];
  dispatches.forEach((dispatch, number) => {
    const { layer, label } = dispatch;
    let row = rows.at(-1);
    if (!row || row.layer !== layer) {
      row = { title: titleOf(layer, rows.length), layer, cells: [] };
      rows.push(row);
    }
    const cell = row.cells.at(-1);
    if (cell?.label === label) cell.numbers.push(number);
    else row.cells.push({ label, name: nameIn(label), numbers: [number] });
  });
  return rows;
}

/** @param {number | null} layer @param {number} before */
function titleOf(layer, before) {
  if (layer !== null) return `layer ${layer}`;
  return before ? "after" : "before";
}

/** Return "qkv" for layer03.attn.qkv. @param {string} label */
const nameIn = (label) => label.replace(/^layer\d+\.(attn|mlp)\./, "");

/** Labels within the layers, without repetition: the columns of the picture. @param {PlanRow[]} rows */
export function columnsOf(rows) {
  const inLayers = rows.filter(({ layer }) => layer !== null);
  return [...new Set(inLayers.flatMap(({ cells }) => cells.map(({ name }) => name)))];
}

/**
 * Return the numbers of the dispatches whose results dispatch `number` reads (the last writer of
 * each buffer), and of those that read its results before they are overwritten. Shards of a matrix,
 * which share a label, write one result together.
 *
 * @param {Answers.PlanDispatch[]} dispatches
 * @param {number} number
 */
export function neighbours(dispatches, number) {
  /** @param {number} i @param {string} access */
  const bound = (i, access) => dispatches[i].bindings.filter((b) => b.access === access);
  /** @param {number} i @param {string} access @param {string} name */
  const touches = (i, access, name) => bound(i, access).some(({ tensor }) => tensor === name);
  /** @param {number} i @param {number} j */
  const together = (i, j) => dispatches[i].label === dispatches[j].label;
  /** @type {Set<number>} */
  const from = new Set();
  for (const { tensor } of bound(number, "read")) {
    /** @type {number | null} */
    let writer = null;
    for (let i = number - 1; i >= 0 && (writer === null || together(i, writer)); i -= 1)
      if (touches(i, "read_write", tensor)) from.add((writer = i));
  }
  /** @type {Set<number>} */
  const to = new Set();
  for (const { tensor } of bound(number, "read_write"))
    for (let i = number + 1; i < dispatches.length; i += 1) {
      if (touches(i, "read", tensor)) to.add(i);
      if (touches(i, "read_write", tensor) && !together(i, number)) break;
    }
  return { from, to };
}
