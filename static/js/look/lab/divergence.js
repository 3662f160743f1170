// Experiments in which attention reads other keys and values of the same text: rounded to fewer bits, or
// only those of a window. The engine computes each token with both and compares.

import { count, plural } from "../../ui/format.js";
import { drawPanels } from "./panels.js";

/**
 * A change of what attention reads: its name in columns, and the fields of the question.
 *
 * @typedef {{name: string, change: Pick<FromPage.Divergence, "keys" | "values" | "window">}} Variant
 */

/** Tokens of the text, and of a question about it. */
const TOKENS = 64;
const CHUNK = 16;
/** Windows for a model that has none of its own. */
const WINDOWS = [32, 8];
/** A model with a wider window is not compared with itself without it: that takes too long a text. */
const WIDEST = 256;
const SOURCE =
  "The engine computed each token twice, without and with the change. The text is the last answer with its prompt, " +
  "if there is one. Attention: mean over all heads and layers.";

/** @type {Variant[]} */
const ROUNDED = [
  { name: "K8 V4", change: { keys: "q8", values: "q4" } },
  { name: "K4 V8", change: { keys: "q4", values: "q8" } },
];

/**
 * Return the variants for the model, and how many tokens show their difference.
 *
 * @param {ToPage.Hello} hello
 * @returns {{n: number, variants: Variant[]}}
 */
function windowed({ limits }) {
  /** @param {number} window */
  const narrow = (window) => ({ name: `window ${window}`, change: { window } });
  const own = Math.min(...(limits.kv_groups ?? []).map(({ window }) => window ?? Infinity));
  if (own > WIDEST) return { n: TOKENS, variants: WINDOWS.map(narrow) };
  const without = { name: "no window", change: { window: 0 } };
  return { n: own + TOKENS, variants: [without, narrow(Math.ceil(own / 2))] };
}

/** Two significant digits: "0.0047". @param {number} value */
const brief = (value) => String(Number(value.toPrecision(2)));

/** @param {LabRow} row @param {string} column */
const at = (row, column) => Number(row[column]);

/**
 * Ask about a text piece by piece, and show its rows as they fill. `withBlocks`: with the KV blocks it holds.
 *
 * @param {Bench} bench
 * @param {number} n
 * @param {Variant[]} variants
 * @param {boolean} withBlocks
 */
async function compare({ ask, text, show, hello }, n, variants, withBlocks) {
  const { tokens, spans } = await text(Math.min(n, hello.limits.context));
  const rows = tokens.map((token, i) => emptyRow(i + 1, token.text, variants, withBlocks));
  show(rows);
  for (let first = 0; first < tokens.length; first += CHUNK) {
    const ids = tokens.slice(0, first + CHUNK).map(({ id }) => id);
    for (const { name, change } of variants) {
      const answer = await ask({ kind: "divergence", ids, first, ...change, ...spans });
      fill(rows, name, answer, first, name === variants[0].name);
      show([...rows]);
    }
  }
}

/** @param {number} token @param {string} text @param {Variant[]} variants @param {boolean} withBlocks @returns {LabRow} */
function emptyRow(token, text, variants, withBlocks) {
  /** @type {LabRow} */
  const row = { token, text, likeliest: null };
  for (const { name } of variants)
    for (const column of ["KL", "likeliest", "moved %"]) row[`${column}, ${name}`] = null;
  row["attention got"] = null;
  for (const { name } of variants) row[`gained, ${name}`] = null;
  if (withBlocks) for (const name of ["blocks", ...variants.map(({ name }) => `blocks, ${name}`)]) row[name] = null;
  return row;
}

/**
 * Add an answer about the tokens from `first` on to the rows; `isFirst`: and what all variants share.
 *
 * @param {LabRow[]} rows
 * @param {string} name
 * @param {FrameAnswer} answer
 * @param {number} first
 * @param {boolean} isFirst
 */
function fill(rows, name, { arrays, info }, first, isFirst) {
  const { kl, top_ids: top, moved, received, blocks } = arrays;
  const [n, all] = [kl.values.length, received.shape[1]];
  /** @param {number} i */
  const piece = (i) => info.pieces?.[top.values[i]] ?? String(top.values[i]);
  for (let i = 0; i < n; i += 1) {
    const row = rows[first + i];
    row[`KL, ${name}`] = kl.values[i];
    row[`likeliest, ${name}`] = piece(n + i);
    row[`moved %, ${name}`] = 100 * moved.values[i];
    if (isFirst) row.likeliest = piece(i);
    if (`blocks, ${name}` in row) {
      row.blocks = blocks.values[i];
      row[`blocks, ${name}`] = blocks.values[n + i];
    }
  }
  for (let i = 0; i < all; i += 1) {
    const row = rows[i];
    const [own, changed] = [received.values[i], received.values[all + i]];
    if (isFirst) row["attention got"] = at(row, "attention got") + own;
    row[`gained, ${name}`] = at(row, `gained, ${name}`) + changed - own;
  }
}

/** Names of the variants that the rows are about. @param {LabRow[]} rows */
const namesOf = (rows) =>
  Object.keys(rows[0] ?? {}).flatMap((column) => (column.startsWith("KL, ") ? [column.slice(4)] : []));

/** Mean of a column over the rows that have it. @param {LabRow[]} rows @param {string} column */
function mean(rows, column) {
  const known = rows.filter((row) => row[column] !== null);
  return known.reduce((sum, row) => sum + at(row, column), 0) / known.length;
}

/** Lines of a measure, one for each variant. @param {LabRow[]} rows @param {string} measure @returns {LabLine[]} */
const linesOf = (rows, measure) =>
  namesOf(rows).map((name, i) => ({ column: `${measure}, ${name}`, colour: i ? "lamp" : "data" }));

/** @param {LabRow[]} rows @returns {LabPanel} */
const divergence = (rows) => ({ kind: "bars", unit: "nats", lines: linesOf(rows, "KL") });

/** @type {Experiment} */
export const kvBits = {
  name: "bits",
  tab: "K and V bits",
  title: "Keys in 8 bits and values in 4 (K8 V4), or the other way round (K4 V8)",
  what:
    "A text whose keys and values are rounded as a quantised cache stores them: how far the distribution of each " +
    "next token moves (KL divergence), and which tokens gain or lose attention.",
  x: "token",
  isLog: false,
  unit: "nats",
  lines: [],
  draw: drawPanels,
  panels: (rows) => [divergence(rows), { kind: "bars", unit: "attention", lines: linesOf(rows, "gained") }],
  source: SOURCE,
  run: (bench) => compare(bench, TOKENS, ROUNDED, false),
  says(rows) {
    const [first, second] = ROUNDED.map(({ name }) => mean(rows, `KL, ${name}`));
    if (!(first > 0 && second > 0)) return "";
    const [still, moved] = ROUNDED.map(({ name }) => `${brief(mean(rows, `moved %, ${name}`))} %`);
    const why =
      second > first
        ? " Keys need more bits: the softmax is exponential in q·k, so an error in a key multiplies weights, while errors in values are averaged."
        : "";
    return (
      `K8 V4 moves the distribution by ${brief(first)} nats on average, K4 V8 by ${brief(second)}, ` +
      `${brief(second / first)} times as far; ${still} and ${moved} of the attention go to other tokens.${why}`
    );
  },
};

/** @type {Experiment} */
export const slidingWindow = {
  name: "window",
  tab: "Window",
  title: "With and without a sliding window",
  what:
    "A text when every layer sees only the latest tokens: how far the distribution of each next token moves (KL " +
    "divergence), and how many KV blocks the text holds.",
  x: "token",
  isLog: false,
  unit: "nats",
  lines: [],
  draw: drawPanels,
  panels: (rows) => [
    divergence(rows),
    { kind: "steps", unit: "blocks", lines: [{ column: "blocks", colour: "ink-2" }, ...linesOf(rows, "blocks")] },
  ],
  source: SOURCE,
  run(bench) {
    const { n, variants } = windowed(bench.hello);
    return compare(bench, n, variants, true);
  },
  says(rows) {
    const last = rows.findLast((row) => namesOf(rows).every((name) => row[`KL, ${name}`] !== null));
    if (!last) return "";
    const each = namesOf(rows).map(
      (name) =>
        `${count(at(last, `blocks, ${name}`))} with ${name}, which moves the distribution by ` +
        `${brief(mean(rows, `KL, ${name}`))} nats on average`,
    );
    const sink = at(rows[0], "attention got") / rows.filter((row) => row.likeliest !== null).length;
    return (
      `After ${count(at(last, "token"))} tokens the text holds ${plural(at(last, "blocks"), "block")}; ${each.join("; ")}. ` +
      "What falls out of a window cannot be read any more" +
      (sink > 0.1 ? `: first the first token, which gets ${brief(100 * sink)} % of all attention (an attention sink).` : ".")
    );
  },
};
