// Bounded memory for measurements. The text is always kept in full.
//
// Beyond the bound the oldest tokens are summarised: first the heads of each layer are averaged
// (and only the most likely candidates kept), then neighbouring tokens share the mean of their
// layers, in groups that grow. Which offloaded experts a step used is dropped first of all. All runs
// of the conversation count, in order of arrival.
//
// A summary replaces the original in place: `stats.summary` is {heads, tokens}, and each layer's
// `entropy` holds one number.

import { meanOfMeasured } from "./metrics.js";

const MAX_BYTES = 64e6;
/** The newest tokens always keep full measurements. */
const RECENT = 256;
/** Initial number of tokens per summary. */
const GROUP = 16;
const CANDIDATES = 4;

/** Heap size per object (V8; measured by e2e/chat/test_retention.py). */
const LAYER_BYTES = 170;
const HEAD_BYTES = 8;
const CANDIDATE_BYTES = 110;
const ROUTE_BYTES = 100;
const CHOICE_BYTES = 12;

/** @type {Array<"residual" | "attention" | "mlp" | "attention_cosine" | "mlp_cosine">} */
const FIELDS = ["residual", "attention", "mlp", "attention_cosine", "mlp_cosine"];
/** @type {Array<"attention_ms" | "mlp_ms">} */
const TIMES = ["attention_ms", "mlp_ms"];

/** @param {ToPage.LayerStats[]} layers */
const layersBytes = (layers) =>
  layers.length * (LAYER_BYTES + HEAD_BYTES * layers[0].entropy.length);
/** @param {ToPage.ExpertChoice[] | undefined} routes */
const routesBytes = (routes) =>
  (routes ?? []).reduce((sum, { experts }) => sum + ROUTE_BYTES + CHOICE_BYTES * experts.length, 0);
/** @param {ToPage.ExpertUse | null | undefined} experts */
const expertsBytes = (experts) =>
  (experts?.layers ?? []).reduce(
    (sum, { found, brought, held }) =>
      sum + ROUTE_BYTES + CHOICE_BYTES * (found.length + brought.length + held.length),
    0,
  );
/** @param {Measured} measured */
const bytesOf = ({ stats, candidates, experts }) =>
  (stats ? layersBytes(stats.layers) + routesBytes(stats.routes) : 0) +
  CANDIDATE_BYTES * (candidates?.length ?? 0) +
  expertsBytes(experts);

/**
 * Measurements of one token: {segment, id, stats, candidates, experts}; `id` and `candidates` are
 * null for a prompt token, `stats` is null without capture. `experts` of a step of the prompt are
 * with its first token.
 *
 * @typedef {{segment: Segment, id: number | null, stats: Stats | null,
 *   candidates: ToPage.CandidateText[] | null, experts?: ToPage.ExpertUse | null}} Measured
 */

export class Retention {
  /** @type {Measured[]} full measurements, oldest first */
  #whole = [];
  /** @type {Measured[]} older tokens with averaged heads */
  #together = [];
  /**
   * Oldest tokens: {segment, members: stats that share their layers}.
   *
   * @type {Array<{segment: Segment, members: Stats[]}>}
   */
  #groups = [];
  /** Index of the next group to merge with its neighbour. */
  #next = 0;
  #bytes = 0;

  constructor(mostBytes = MAX_BYTES, recent = RECENT) {
    this.mostBytes = mostBytes;
    this.recent = recent;
  }

  /**
   * Record an event of a run.
   *
   * @param {Segment} segment
   * @param {RunEvent} event
   */
  record(segment, event) {
    if (event.type === "token") {
      const { id, stats, candidates, experts } = event;
      this.#add({ segment, id, stats, candidates, experts });
    }
    if (event.type === "prefill")
      (event.stats ?? []).forEach((stats, i) => {
        const experts = i ? null : event.experts;
        this.#add({ segment, id: null, stats, candidates: null, experts });
      });
    this.#shrink();
  }

  /** Drop measurements of segments that are not in `segments`. @param {Set<Segment>} segments */
  retainOnly(segments) {
    const isKept = (/** @type {{segment: Segment}} */ { segment }) => segments.has(segment);
    this.#whole = this.#whole.filter(isKept);
    this.#together = this.#together.filter(isKept);
    this.#groups = this.#groups.filter(isKept);
    this.#bytes = 0;
    for (const each of [...this.#whole, ...this.#together]) this.#bytes += bytesOf(each);
    for (const { members } of this.#groups) this.#bytes += layersBytes(members[0].layers);
  }

  /**
   * Current usage: `bytes` (estimate), number of tokens in full (`whole`), with averaged heads
   * (`together`) and with shared layers (`shared`, in groups of at most `largestGroup`).
   */
  get usage() {
    return {
      bytes: this.#bytes,
      whole: this.#whole.length,
      together: this.#together.length,
      shared: this.#groups.reduce((n, { members }) => n + members.length, 0),
      largestGroup: Math.max(0, ...this.#groups.map(({ members }) => members.length)),
    };
  }

  /** @param {Measured} measured */
  #add(measured) {
    this.#whole.push(measured);
    this.#bytes += bytesOf(measured);
  }

  #shrink() {
    while (this.#bytes > this.mostBytes) {
      const oldest = this.#whole.length > this.recent && this.#whole.shift();
      if (oldest) this.#putHeadsTogether(oldest);
      else if (this.#together.length) this.#share();
      else if (!this.#halve()) return;
    }
  }

  /** @param {Measured} measured */
  #putHeadsTogether(measured) {
    const { id, stats, candidates, experts } = measured;
    this.#bytes -= bytesOf(measured);
    if (experts?.layers) experts.layers = [];
    if (candidates) {
      const kept = candidates.filter((one, i) => i < CANDIDATES || one.id === id);
      candidates.splice(0, candidates.length, ...kept);
    }
    if (stats && !stats.summary) {
      stats.summary = { heads: stats.layers[0].entropy.length, tokens: 1 };
      for (const layer of stats.layers) layer.entropy = [meanOfMeasured(layer.entropy)];
    }
    this.#bytes += bytesOf(measured);
    this.#together.push(measured);
  }

  /** Replace the layers of the oldest tokens of one run by their mean. */
  #share() {
    const [{ segment }] = this.#together;
    const end = this.#together.findIndex((each) => each.segment !== segment);
    const oldest = this.#together.splice(0, Math.min(GROUP, end < 0 ? GROUP : end));
    for (const { candidates } of oldest) this.#bytes -= CANDIDATE_BYTES * (candidates?.length ?? 0);
    const members = oldest.map(({ stats }) => stats).filter((stats) => stats !== null);
    if (!members.length) return;
    for (const stats of members) {
      this.#bytes -= layersBytes(stats.layers) + routesBytes(stats.routes);
      if (stats.routes) stats.routes = []; // choices have no mean
    }
    this.#groups.push(this.#joined(segment, members, members.map(({ layers }) => layers)));
  }

  /**
   * @param {Segment} segment
   * @param {Stats[]} members
   * @param {ToPage.LayerStats[][]} parts
   */
  #joined(segment, members, parts) {
    const layers = meanLayers(parts);
    for (const stats of members) {
      stats.layers = layers;
      stats.summary = { heads: 1, ...stats.summary, tokens: members.length };
    }
    this.#bytes += layersBytes(layers);
    return { segment, members };
  }

  /** Merge the next two neighbouring groups of a run; false if there are none. */
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

/**
 * Mean of several tokens' layers, number by number; of times null where one was not measured.
 *
 * @param {ToPage.LayerStats[][]} parts
 */
function meanLayers(parts) {
  /**
   * @param {number} i
   * @param {(layer: ToPage.LayerStats) => number | null} pick
   */
  const over = (i, pick) => meanOfMeasured(parts.map((layers) => pick(layers[i])));
  return parts[0].map((first, i) => {
    const entropy = [over(i, (each) => each.entropy[0])];
    const layer = /** @type {ToPage.LayerStats} */ ({ entropy });
    for (const name of FIELDS)
      if (first[name] !== undefined) layer[name] = over(i, (each) => each[name]);
    for (const name of TIMES) {
      const known = parts.every((layers) => layers[i][name] != null);
      layer[name] = known ? over(i, (each) => each[name]) : null;
    }
    return layer;
  });
}

/** The measurements of this page. */
export const retention = new Retention();
