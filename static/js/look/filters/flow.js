// The sampling waterfall as shares of one mass that flow through columns, top to bottom.
//
// Tokens lie on each other in the order of their logits after penalty and temperature, in all
// columns: then ribbons never cross, and what a filter takes is always the lower end, because every
// filter is a threshold on that logit (gpu/sampling.py). The last column is the cumulative curve the
// random number falls on, from its top.

/** The engine's stages (gpu/inspect/waterfall.py), and the draw. */
export const STAGES = ["logits", "penalty", "temperature", "top_k", "top_p", "min_p"];
export const DRAW = STAGES.length;
/** A filter's column is its number (`cut` of the engine's answer) and this. */
export const BEFORE_FILTERS = 2;

/** Shares below this are float32's rounding, not tokens. */
const NOTHING = 1e-7;

/**
 * A token, or a part of the rest.
 *   id, cut, seen, logit, low, high   of the engine's answer; null for a part of the rest
 *   count   tokens in it; null when not known
 *   cut     number of the filter that removed it, 0: it was kept
 *   sizes   its share in each column; what a filter removes still stands in that filter's column
 *   tops    where it begins in each column: the sizes of all before it
 * @typedef {{id: number?, count: number?, cut: number, sizes: number[], tops: number[]}} Band
 */

/**
 * What the engine answered to `waterfall` with `top`:
 *   bands   in order; `byId` finds a token's
 *   stages  {name, n_kept, kept, removed, entropy}
 *   draw, chosen, greedy
 */
export function flowOf({ info, arrays }, top) {
  const tokens = rowsOf(arrays).map((row) => ({ ...row, count: 1 }));
  const stray = tokens.length > top ? tokens.pop() : null;
  const { stages } = info;
  const rest = restOf(tokens, stray, info);
  const bands = [...tokens.map((token) => ({ ...token, sizes: sizesOf(token) })), ...rest];
  stack(bands);
  return { ...info, stages, bands, byId: new Map(bands.map((band) => [band.id, band])) };
}

function rowsOf(arrays) {
  const names = Object.keys(arrays);
  return Array.from({ length: arrays.ids.values.length }, (_, i) => {
    const row = Object.fromEntries(names.map((name) => [name, arrays[name].values[i]]));
    return { ...row, id: row.ids };
  });
}

function sizesOf({ raw, penalised, tempered, cut, after }) {
  const filtered = [1, 2, 3].map((filter) => (cut === 0 || cut >= filter ? tempered : 0));
  return [raw, penalised, tempered, ...filtered, after];
}

const sum = (rows, name) => rows.reduce((total, row) => total + row[name], 0);

/** The tokens beyond the most likely ones, in parts by what became of them, in order. */
function restOf(tokens, stray, { stages, greedy }) {
  const kept = stages.at(-1).kept;
  const known = stray ? [...tokens, stray] : tokens;
  const parts = keptParts(tokens, stray, kept, stages.at(-1).n_kept);
  for (const cut of [3, 2, 1]) {
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
    return { id: null, logit: null, seen: 0, low: null, high: null, ...row, sizes: sizesOf(row) };
  });
}

/** What was kept of the rest; a token drawn from it (`stray`) stands at its place among it. */
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
 * A part's shares before the temperature. Only those of all parts together are known; they lie on
 * each other in one colour there, divided as they are later.
 */
function spread(part, parts, whole) {
  const others = parts.filter(({ id }) => id === undefined);
  const mass = sum(others, "tempered");
  const share = mass > NOTHING ? part.tempered / mass : 1 / others.length;
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

/** Is the band still there in this column? */
export const reaches = ({ cut }, column) =>
  cut === 0 || column <= BEFORE_FILTERS + cut;

/** The band at a share (0 … 1, from the top) of a column, or null. */
export const bandAt = ({ bands }, column, share) =>
  bands.find(({ tops, sizes }) => share >= tops[column] && share < tops[column] + sizes[column]) ??
  null;
