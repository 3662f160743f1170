// What the page keeps of measurements, within a bound of bytes. The text is always kept whole. Beyond
// the bound the oldest tokens are summarised: first the heads of each layer are put together (and of
// the candidates the likeliest stay), then neighbouring tokens share the mean of their layers, of
// ever more tokens. All runs of the conversation count, in the order their measurements came.
//
// A summary is put in the place of what it summarises, so whoever looks at a token finds it there:
// `stats.summary` is {heads, tokens}, and each layer's `entropy` holds one number.

const MOST_BYTES = 64e6;
/** The newest tokens stay whole, whatever they take. */
const RECENT = 256;
/** So many tokens share a summary at first. */
const GROUP = 16;
const CANDIDATES = 4;

/** What a browser takes for one (V8, measured: e2e/test_keeping.py holds these to its heap). */
const LAYER_BYTES = 170;
const HEAD_BYTES = 8;
const CANDIDATE_BYTES = 110;
const ROUTE_BYTES = 100;
const CHOICE_BYTES = 12;

const FIELDS = ["residual", "attention", "mlp", "attention_cosine", "mlp_cosine"];
const TIMES = ["attention_ms", "mlp_ms"];

const layersBytes = (layers) => layers.length * (LAYER_BYTES + HEAD_BYTES * layers[0].entropy.length);
const routesBytes = (routes) =>
  (routes ?? []).reduce((sum, { experts }) => sum + ROUTE_BYTES + CHOICE_BYTES * experts.length, 0);
const bytesOf = ({ stats, candidates }) =>
  (stats ? layersBytes(stats.layers) + routesBytes(stats.routes) : 0) +
  CANDIDATE_BYTES * (candidates?.length ?? 0);

/**
 * What came with one token: {segment, id, stats, candidates}, `id` and `candidates` null for one of
 * the prompt, `stats` null for one that was not captured.
 *
 * @typedef {{segment: object, id: number|null, stats: object|null, candidates: object[]|null}} Measured
 */

export class Keeping {
  /** @type {Measured[]} oldest first */
  #whole = [];
  /** @type {Measured[]} older than those, their heads put together */
  #together = [];
  /** Older still: {segment, members: stats that share their layers}. */
  #groups = [];
  /** Which of them is joined with its neighbour next. */
  #next = 0;
  #bytes = 0;

  constructor(mostBytes = MOST_BYTES, recent = RECENT) {
    this.mostBytes = mostBytes;
    this.recent = recent;
  }

  /** An event of a run was taken. */
  take(segment, { type, id, stats, candidates }) {
    if (type === "token") this.#add({ segment, id, stats, candidates });
    if (type === "prefill")
      for (const each of stats ?? []) this.#add({ segment, id: null, stats: each, candidates: null });
    this.#shrink();
  }

  /** Let go of what belongs to segments that are not in `segments`. */
  keepOnly(segments) {
    const [whole, together, groups] = [this.#whole, this.#together, this.#groups].map((all) =>
      all.filter(({ segment }) => segments.has(segment)),
    );
    this.#whole = whole;
    this.#together = together;
    this.#groups = groups;
    this.#bytes = 0;
    for (const each of [...whole, ...together]) this.#bytes += bytesOf(each);
    for (const { members } of groups) this.#bytes += layersBytes(members[0].layers);
  }

  /**
   * How much is kept: bytes (about), tokens that are `whole`, those whose heads are `together`, and
   * those that share their layers with others (`shared`, at most `most` of them together).
   */
  get extent() {
    return {
      bytes: this.#bytes,
      whole: this.#whole.length,
      together: this.#together.length,
      shared: this.#groups.reduce((n, { members }) => n + members.length, 0),
      most: Math.max(0, ...this.#groups.map(({ members }) => members.length)),
    };
  }

  #add(measured) {
    this.#whole.push(measured);
    this.#bytes += bytesOf(measured);
  }

  #shrink() {
    while (this.#bytes > this.mostBytes) {
      if (this.#whole.length > this.recent) this.#putHeadsTogether(this.#whole.shift());
      else if (this.#together.length) this.#share();
      else if (!this.#halve()) return;
    }
  }

  #putHeadsTogether(measured) {
    const { id, stats, candidates } = measured;
    this.#bytes -= bytesOf(measured);
    if (candidates) {
      const kept = candidates.filter((one, i) => i < CANDIDATES || one.id === id);
      candidates.splice(0, candidates.length, ...kept);
    }
    if (stats && !stats.summary) {
      stats.summary = { heads: stats.layers[0].entropy.length, tokens: 1 };
      for (const layer of stats.layers) layer.entropy = [mean(layer.entropy)];
    }
    this.#bytes += bytesOf(measured);
    this.#together.push(measured);
  }

  /** The oldest neighbours of one run share the mean of their layers. */
  #share() {
    const [{ segment }] = this.#together;
    const end = this.#together.findIndex((each) => each.segment !== segment);
    const oldest = this.#together.splice(0, Math.min(GROUP, end < 0 ? GROUP : end));
    for (const { candidates } of oldest) this.#bytes -= CANDIDATE_BYTES * (candidates?.length ?? 0);
    const members = oldest.map(({ stats }) => stats).filter(Boolean);
    if (!members.length) return;
    for (const stats of members) {
      this.#bytes -= layersBytes(stats.layers) + routesBytes(stats.routes);
      if (stats.routes) stats.routes = []; // there is no mean of choices
    }
    this.#groups.push(this.#joined(segment, members, members.map(({ layers }) => layers)));
  }

  #joined(segment, members, parts) {
    const layers = meanLayers(parts);
    for (const stats of members) {
      stats.layers = layers;
      stats.summary = { ...stats.summary, tokens: members.length };
    }
    this.#bytes += layersBytes(layers);
    return { segment, members };
  }

  /** The next two neighbouring groups of a run, the oldest first, become one. False without any. */
  #halve() {
    const groups = this.#groups;
    for (let n = 0; n < groups.length; n += 1) {
      const i = (this.#next + n) % groups.length;
      const [one, other] = [groups[i], groups[i + 1]];
      if (other?.segment !== one.segment) continue;
      const parts = [one, other].map(({ members }) => members[0].layers);
      for (const layers of parts) this.#bytes -= layersBytes(layers);
      groups.splice(i, 2, this.#joined(one.segment, [...one.members, ...other.members], parts));
      this.#next = i + 1;
      return true;
    }
    return false;
  }
}

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

/** The mean of several tokens' layers, number by number; null where one was not measured. */
function meanLayers(parts) {
  const over = (i, pick) => mean(parts.map((layers) => pick(layers[i])));
  return parts[0].map((first, i) => {
    const layer = { entropy: [over(i, ({ entropy }) => entropy[0])] };
    for (const name of FIELDS)
      if (first[name] !== undefined) layer[name] = over(i, (each) => each[name]);
    for (const name of TIMES) {
      const known = parts.every((layers) => layers[i][name] != null);
      layer[name] = known ? over(i, (each) => each[name]) : null;
    }
    return layer;
  });
}

/** Those of this page. */
export const keeping = new Keeping();
