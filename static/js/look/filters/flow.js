// @ts-nocheck
// The sampling waterfall as data: probability mass that flows through columns, one for each stage.
//
// In every column the tokens are stacked by their logits after penalty and temperature. Ribbons
// therefore never cross, and a filter always removes the lower end, because every filter is a
// threshold on that logit (gpu/sampling_params.py). The last column is the cumulative curve that the
// random number falls on, from the top.

import { FILTERS } from "../../settings/sampling-settings.js";

/** The engine's stages (gpu/inspection/waterfall.py), and the draw. */
export const STAGES = ["logits", "penalty", "temperature", ...FILTERS.map(({ name }) => name)];
export const DRAW = STAGES.length;
/** A filter's column is this plus its number (`cut` of the engine's answer). */
export const BEFORE_FILTERS = 2;

/** Smaller shares are rounding errors of float32. */
const MIN_MASS = 1e-7;

/**
 * A token, or a part of the remaining ones.
 *   id, cut, seen, written, logit, low, high   of the engine's answer; null for a part of the rest
 *   count   number of tokens in it; null when not known
 *   cut     number of the filter that removed it; 0: it was kept
 *   sizes   its share in each column, including that of the filter that removes it
 *   tops    sum of the sizes above it in each column
 * @typedef {{id: number?, count: number?, cut: number, sizes: number[], tops: number[]}} Band
 */

/**
 * Return the engine's answer to `waterfall` with `top` as bands:
 *   bands   in order; `byId`: map from a token's id to its band
 *   stages  {name, n_kept, kept, removed, entropy}
 *   draw, chosen, greedy
 *   allowed    {n, probability} of the tokens that a grammar allows, which all of this is about;
 *              undefined without a grammar
 *   forbidden  {id, share} of the most likely tokens that it forbids
 */
export function flowOf({ info, arrays }, top) {
  const { forbidden_ids: forbiddenIds, forbidden_raw: forbiddenRaw, ...own } = arrays;
  const tokens = rowsOf(own).map((row) => ({ ...row, count: 1 }));
  const stray = tokens.length > top ? tokens.pop() : null;
  const { stages } = info;
  const rest = restOf(tokens, stray, info);
  const bands = [...tokens.map((token) => ({ ...token, sizes: sizesOf(token) })), ...rest];
  stack(bands);
  const forbidden = Array.from(forbiddenIds?.values ?? [], (id, i) => ({
    id,
    share: forbiddenRaw.values[i],
  }));
  return { ...info, stages, bands, forbidden, byId: new Map(bands.map((band) => [band.id, band])) };
}

function rowsOf(arrays) {
  const names = Object.keys(arrays);
  return Array.from({ length: arrays.ids.values.length }, (_, i) => {
    const row = Object.fromEntries(names.map((name) => [name, arrays[name].values[i]]));
    return { ...row, id: row.ids };
  });
}

function sizesOf({ raw, penalised, tempered, cut, after }) {
  const filtered = FILTERS.map((_, i) => (cut === 0 || cut > i ? tempered : 0));
  return [raw, penalised, tempered, ...filtered, after];
}

const sum = (rows, name) => rows.reduce((total, row) => total + row[name], 0);

/** Group the tokens that are not listed by the filter that removed them, in order. */
function restOf(tokens, stray, { stages, greedy }) {
  const kept = stages.at(-1).kept;
  const known = stray ? [...tokens, stray] : tokens;
  const parts = keptParts(tokens, stray, kept, stages.at(-1).n_kept);
  for (let cut = FILTERS.length; cut > 0; cut -= 1) {
    const stage = stages[BEFORE_FILTERS + cut];
    const own = tokens.filter((token) => token.cut === cut);
    const count = stages[BEFORE_FILTERS + cut - 1].n_kept - stage.n_kept - own.length;
    parts.push({ cut, count, tempered: stage.removed - sum(own, "tempered") });
  }
  const there = parts.filter(({ count, id }) => id !== undefined || count === null || count > 0);
  for (const part of there) part.tempered = Math.max(0, part.tempered);
  const whole = {
    raw: Math.max(0, 1 - sum(known, "raw")),
    penalised: Math.max(0, 1 - sum(known, "penalised")),
  };
  return there.map((part) => {
    if (part.id !== undefined) return { ...part, sizes: sizesOf(part) };
    const after = part.cut === 0 && !greedy ? part.tempered / kept : 0;
    const row = { ...part, ...spread(part, there, whole), after };
    return { id: null, logit: null, seen: 0, written: 0, low: null, high: null, ...row, sizes: sizesOf(row) };
  });
}

/** Return the kept part of the rest; `stray`, a drawn token that is not listed, divides it. */
function keptParts(tokens, stray, kept, nKept) {
  const own = tokens.filter(({ cut }) => cut === 0);
  const count = nKept - own.length;
  const shown = sum(own, "tempered");
  if (!stray) return [{ cut: 0, count, tempered: kept - shown }];
  const before = stray.low * kept - shown;
  const after = (1 - stray.high) * kept;
  return [
    { cut: 0, count: null, tempered: before },
    stray,
    { cut: 0, count: null, tempered: after },
  ];
}

/**
 * Estimate a part's shares before the temperature. Only their sum over all parts is known; it is
 * divided as the shares after the temperature are. All parts have one colour there.
 */
function spread(part, parts, whole) {
  const others = parts.filter(({ id }) => id === undefined);
  const mass = sum(others, "tempered");
  const share = mass > MIN_MASS ? part.tempered / mass : 1 / others.length;
  return { raw: share * whole.raw, penalised: share * whole.penalised };
}

function stack(bands) {
  const at = Array(DRAW + 1).fill(0);
  for (const band of bands) {
    band.tops = [...at];
    band.sizes.forEach((size, column) => (at[column] += size));
  }
}

/** Was the band removed by the filter of this column? */
export const removedIn = ({ cut }, column) => cut > 0 && column === BEFORE_FILTERS + cut;

/** Does the band extend to this column? */
export const extendsTo = ({ cut }, column) =>
  cut === 0 || column <= BEFORE_FILTERS + cut;

/** Return the band at a share (0 … 1, from the top) of a column, or null. */
export const bandAt = ({ bands }, column, share) =>
  bands.find(({ tops, sizes }) => share >= tops[column] && share < tops[column] + sizes[column]) ??
  null;
