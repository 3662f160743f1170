// Head scores: the share of a head's attention on places that indicate its function.
//
//   first     the first token of the context. An attention sink: Xiao et al. 2023, "Efficient
//             Streaming Language Models with Attention Sinks"
//   previous  the previous token
//   copy      the tokens after earlier copies of this one. An induction head: Olsson et al. 2022,
//             "In-context Learning and Induction Heads" (there: the prefix matching score)
//   self      the token itself

/** @type {HeadPlace[]} */
export const PLACES = ["first", "previous", "copy", "self"];

/**
 * Return what `make` makes of each place.
 *
 * @template T
 * @param {(place: HeadPlace) => T} make
 * @returns {Record<HeadPlace, T>}
 */
const byPlace = (make) => ({
  first: make("first"),
  previous: make("previous"),
  copy: make("copy"),
  self: make("self"),
});

/** Minimum share of its attention for a head to be named after a place … */
export const NAMED_FROM = 0.25;
/** … and minimum ratio to uniform attention. */
export const NAMED_TIMES = 3;

/**
 * Return the positions of each place for the token at `position` of `ids`, or null. Places are
 * disjoint, so that a share belongs to one of them.
 *
 * @param {number[]} ids
 * @param {number} position
 * @returns {HeadPlaces}
 */
export function placesOf(ids, position) {
  const copies = [];
  for (let j = 1; j < position - 1; j += 1) if (ids[j - 1] === ids[position]) copies.push(j);
  return {
    first: position > 0 ? [0] : null,
    previous: position > 1 ? [position - 1] : null,
    copy: copies.length ? copies : null,
    self: position > 0 ? [position] : null,
  };
}

/**
 * Return the scores of all heads from `weights` {shape: [n_layers, n_heads, n], values}: per place
 * a Float32Array of summed weights by layer · n_heads + head, or null. `even` holds the scores of
 * uniform attention.
 *
 * @param {FrameArray} weights
 * @param {HeadPlaces} places
 * @returns {HeadScores}
 */
export function scoresOf({ shape: [nLayers, nHeads, n], values }, places) {
  const ofPlace = byPlace((place) => {
    const where = places[place];
    if (!where) return null;
    const sumOf = (/** @type {number} */ i) => where.reduce((sum, at) => sum + values[i * n + at], 0);
    return new Float32Array(nLayers * nHeads).map((_, i) => sumOf(i));
  });
  return { ...ofPlace, even: byPlace((place) => (places[place]?.length ?? 0) / n) };
}

/** Entropy of every head's attention, in bits. @param {FrameArray} weights */
export function entropies({ shape: [nLayers, nHeads, n], values }) {
  const bits = new Float32Array(nLayers * nHeads);
  for (let i = 0; i < bits.length; i += 1) {
    let sum = 0;
    for (let at = i * n; at < (i + 1) * n; at += 1)
      if (values[at] > 0) sum -= values[at] * Math.log2(values[at]);
    bits[i] = sum;
  }
  return bits;
}

/**
 * Return the place head `i` is named after, {place, score}, or null if none scores enough.
 *
 * @param {HeadScores} scores
 * @param {number} i
 * @returns {{place: HeadPlace, score: number} | null}
 */
export function nameOf(scores, i) {
  let best = null;
  for (const place of PLACES) {
    const score = scores[place]?.[i] ?? 0;
    const bound = Math.max(NAMED_FROM, NAMED_TIMES * scores.even[place]);
    if (score >= bound && score > (best?.score ?? 0)) best = { place, score };
  }
  return best;
}

/** Count the heads named after each place. @param {HeadScores} scores @param {number} nAll */
export function namedBy(scores, nAll) {
  const counts = { first: 0, previous: 0, copy: 0, self: 0 };
  for (let i = 0; i < nAll; i += 1) {
    const name = nameOf(scores, i);
    if (name) counts[name.place] += 1;
  }
  return counts;
}

/**
 * Mean scores of several tokens; each place is averaged over the tokens that have it.
 *
 * @param {HeadScores[]} all
 * @returns {HeadScores}
 */
export function meanScores(all) {
  const ofPlace = byPlace((place) => {
    const some = all.map((scores) => scores[place]).filter((one) => one !== null);
    return some.length ? some[0].map((_, i) => meanOf(some.map((one) => one[i]))) : null;
  });
  const even = byPlace((place) =>
    meanOf(all.filter((scores) => scores[place]).map((scores) => scores.even[place])),
  );
  return { ...ofPlace, even };
}

/** @param {number[]} values */
const meanOf = (values) => (values.length ? values.reduce((a, b) => a + b) / values.length : 0);

/**
 * Return the weights of one head, or the mean of several, over a sequence of `n` tokens: attention
 * from the token up to `position`, attention to it afterwards (NaN where unknown). `heads`: numbers
 * layer · n_heads + head. `to` {shape: [n_rows, …], values} or null. `line`, if given, is
 * overwritten and returned.
 *
 * @param {Pick<AttentionNow, "from" | "to" | "position" | "n">} now
 * @param {number[]} heads
 * @param {Float32Array} [line]
 */
export function lineOf({ from, to, position, n }, heads, line = new Float32Array(n)) {
  const rows = Math.min(to?.shape[0] ?? 0, n - position);
  const known = position + Math.max(1, rows);
  line.fill(0, 0, known).fill(NaN, known);
  const [nLayers, nHeads] = from.shape;
  for (const i of heads) {
    const start = i * (position + 1);
    if (heads.length === 1) line.set(from.values.subarray(start, start + position + 1));
    else for (let j = 0; j <= position; j += 1) line[j] += from.values[start + j];
    for (let row = 1; to && row < rows; row += 1)
      line[position + row] += to.values[row * nLayers * nHeads + i];
  }
  for (let j = 0; heads.length > 1 && j < known; j += 1) line[j] /= heads.length;
  return line;
}

/**
 * Numbers of the heads in a selection: all, those of a layer, or one.
 *
 * @param {HeadChoice} choice
 * @param {number} nLayers
 * @param {number} nHeads
 */
export function headsOf({ layer, head }, nLayers, nHeads) {
  if (layer === null) return Array.from({ length: nLayers * nHeads }, (_, i) => i);
  if (head !== null) return [layer * nHeads + head];
  return Array.from({ length: nHeads }, (_, i) => layer * nHeads + i);
}
