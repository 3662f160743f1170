// The sampling waterfall as data: probability mass that flows through columns, one for each stage.
//
// In every column the tokens are stacked by their logits after penalty and temperature. Ribbons
// therefore never cross, and a filter always removes the lower end, because every filter is a
// threshold on that logit (gpu/sampling_params.py). The last column is the cumulative curve that the
// random number falls on, from the top; with a watermark, which changes the order of the draw, it is
// marked as far within the share of the token that it chose.

import { FILTERS } from "../../settings/sampling-settings.js";

/** What the sizes of a band are computed from. @typedef {Pick<WaterfallRow, "raw" | "penalised" | "tempered" | "marked" | "cut" | "after">} Shares */

/** The engine's stages (gpu/inspection/waterfall.py), and the draw. */
export const STAGES = ["logits", "penalty", "temperature", ...FILTERS.map(({ name }) => name), "watermark"];
/** The column of the watermark. */
export const MARKED = STAGES.length - 1;
export const DRAW = STAGES.length;
/** A filter's column is this plus its number (`cut` of the engine's answer). */
export const BEFORE_FILTERS = 2;

/** Smaller shares are rounding errors of float32. */
const MIN_MASS = 1e-7;

/**
 * Return the engine's answer to `waterfall` with `top` as bands:
 *   bands   in order; `byId`: map from a token's id to its band
 *   stages  {name, n_kept, kept, removed, entropy}
 *   draw, chosen, greedy; `draw_at`: where the draw is marked
 *   allowed    {n, probability} of the tokens that a grammar allows, which all of this is about;
 *              undefined without a grammar
 *   forbidden  {id, share} of the most likely tokens that it forbids
 *
 * @param {FrameAnswer} answer
 * @param {number} top
 * @returns {Flow}
 */
export function flowOf({ info, arrays }, top) {
  const { forbidden_ids: forbiddenIds, forbidden_raw: forbiddenRaw, ...own } = arrays;
  const tokens = rowsOf(own);
  const stray = tokens.length > top ? tokens.pop() : undefined;
  const { stages, draw, draw_at, chosen, greedy, allowed } = /** @type {Flow} */ (info);
  const rest = restOf(tokens, stray, stages, greedy);
  const bands = stacked([...tokens.map((token) => ({ ...token, sizes: sizesOf(token) })), ...rest]);
  const forbidden = Array.from(forbiddenIds?.values ?? [], (id, i) => ({
    id,
    share: forbiddenRaw.values[i],
  }));
  const byId = new Map(bands.map((band) => [band.id, band]));
  return { stages, draw, draw_at, chosen, greedy, allowed, bands, forbidden, byId };
}

/** @param {FrameAnswer["arrays"]} arrays @returns {WaterfallRow[]} */
function rowsOf(arrays) {
  const { marked, above, marked_above: markedAbove } = arrays;
  const { ids, raw, penalised, tempered, after, cut, low, high, logit, seen, written } = arrays;
  return Array.from(ids.values, (id, i) => ({
    id,
    raw: raw.values[i],
    penalised: penalised.values[i],
    tempered: tempered.values[i],
    marked: marked.values[i],
    above: above.values[i],
    markedAbove: markedAbove.values[i],
    after: after.values[i],
    cut: cut.values[i],
    low: low.values[i],
    high: high.values[i],
    logit: logit.values[i],
    seen: seen.values[i],
    written: written.values[i],
    count: 1,
  }));
}

/** @param {Shares} row */
function sizesOf({ raw, penalised, tempered, marked, cut, after }) {
  const filtered = FILTERS.map((_, i) => (cut === 0 || cut > i ? tempered : 0));
  return [raw, penalised, tempered, ...filtered, marked, after];
}

/**
 * @template {string} Name
 * @param {Record<Name, number>[]} rows
 * @param {Name} name
 */
const sum = (rows, name) => rows.reduce((total, row) => total + row[name], 0);

/**
 * Group the tokens that are not listed by the filter that removed them, in order.
 *
 * @param {WaterfallRow[]} tokens
 * @param {WaterfallRow | undefined} stray
 * @param {WaterfallStage[]} stages
 * @param {boolean} greedy
 * @returns {Omit<Band, "tops">[]}
 */
function restOf(tokens, stray, stages, greedy) {
  const { kept, n_kept: nKept } = stages[stages.length - 1];
  const known = stray ? [...tokens, stray] : tokens;
  const parts = keptParts(tokens, stray, kept, nKept);
  for (let cut = FILTERS.length; cut > 0; cut -= 1) {
    const stage = stages[BEFORE_FILTERS + cut];
    const own = tokens.filter((token) => token.cut === cut);
    const count = stages[BEFORE_FILTERS + cut - 1].n_kept - stage.n_kept - own.length;
    parts.push({ cut, count, tempered: stage.removed - sum(own, "tempered"), marked: 0 });
  }
  const there = parts.filter(({ count, id }) => id !== undefined || count === null || count > 0);
  for (const part of there) {
    part.tempered = Math.max(0, part.tempered);
    part.marked = Math.max(0, part.marked);
  }
  const whole = {
    raw: Math.max(0, 1 - sum(known, "raw")),
    penalised: Math.max(0, 1 - sum(known, "penalised")),
  };
  const others = there.filter((part) => part.id === undefined);
  return there.map((part) => {
    if (part.id !== undefined) return { ...part, sizes: sizesOf(part) };
    const after = part.cut === 0 && !greedy ? part.marked / kept : 0;
    const row = { ...part, ...spread(part, others, whole), after, id: null };
    return { ...row, logit: null, seen: 0, written: 0, low: null, high: null, sizes: sizesOf(row) };
  });
}

/**
 * Return the kept part of the rest; `stray`, a drawn token that is not listed, divides it.
 *
 * @param {WaterfallRow[]} tokens
 * @param {WaterfallRow | undefined} stray
 * @param {number} kept
 * @param {number} nKept
 * @returns {(WaterfallRow | RestPart)[]}
 */
function keptParts(tokens, stray, kept, nKept) {
  const own = tokens.filter(({ cut }) => cut === 0);
  const count = nKept - own.length;
  const shown = { tempered: sum(own, "tempered"), marked: sum(own, "marked") };
  if (!stray) return [{ cut: 0, count, tempered: kept - shown.tempered, marked: kept - shown.marked }];
  const before = { tempered: stray.above - shown.tempered, marked: stray.markedAbove - shown.marked };
  const after = {
    tempered: kept - stray.above - stray.tempered,
    marked: kept - stray.markedAbove - stray.marked,
  };
  return [{ cut: 0, count: null, ...before }, stray, { cut: 0, count: null, ...after }];
}

/**
 * Estimate a part's shares before the temperature. Only their sum over all parts is known; it is
 * divided as the shares after the temperature are. All parts have one colour there.
 *
 * @param {RestPart} part
 * @param {RestPart[]} others
 * @param {{raw: number, penalised: number}} whole
 */
function spread(part, others, whole) {
  const mass = sum(others, "tempered");
  const share = mass > MIN_MASS ? part.tempered / mass : 1 / others.length;
  return { raw: share * whole.raw, penalised: share * whole.penalised };
}

/** @param {Omit<Band, "tops">[]} bands @returns {Band[]} */
function stacked(bands) {
  const at = Array(DRAW + 1).fill(0);
  return bands.map((band) => {
    const tops = [...at];
    band.sizes.forEach((size, column) => (at[column] += size));
    return { ...band, tops };
  });
}

/** Was the band removed by the filter of this column? @param {Band} band @param {number} column */
export const removedIn = ({ cut }, column) => cut > 0 && column === BEFORE_FILTERS + cut;

/** Does the band extend to this column? @param {Band} band @param {number} column */
export const extendsTo = ({ cut }, column) =>
  cut === 0 || column <= BEFORE_FILTERS + cut;

/**
 * Return the band at a share (0 … 1, from the top) of a column, or null.
 *
 * @param {Flow} flow
 * @param {number} column
 * @param {number} share
 */
export const bandAt = ({ bands }, column, share) =>
  bands.find(({ tops, sizes }) => share >= tops[column] && share < tops[column] + sizes[column]) ??
  null;
