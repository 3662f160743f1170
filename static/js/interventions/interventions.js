// Interventions of a run (`Interventions`, the field `reach` of the wire), which the instrument
// Reach in sets: comparison, position spans, and text. No elements.

import { count, plural } from "../ui/format.js";
import { pageData } from "../ui/page-data.js";

/** @type {RequestLimits} */
const { interventions: LIMITS } = pageData("limits-data");

/** Ranges the server accepts: a factor of 0 switches off, 1 means unchanged. */
export const FACTOR = rangeOf("factor", LIMITS.factor);
export const STRENGTH = rangeOf("strength", LIMITS.strength);
export const LORA_STRENGTH = rangeOf("strength", LIMITS.factor);
/** Maximum numbers of vectors and patches the server accepts. */
export const MAX_STEERS = LIMITS.steers;
export const MAX_PATCHES = LIMITS.patches;

/** @param {string} label @param {[number, number]} range */
function rangeOf(label, [min, max]) {
  return { label, min, max };
}

/**
 * @typedef {Partial<FromPage.HeadFactor & FromPage.Steer & FromPage.Patch & FromPage.LoraStrength &
 *   FromPage.ExpertOff>} One
 */

/** @type {Array<keyof FromPage.Interventions>} */
const LISTS = ["heads", "attention", "mlp", "steer", "patch", "loras", "experts"];
/** @type {Array<keyof One>} */
const NUMBERS = ["layer", "head", "expert", "position", "factor"];
/** @type {Array<keyof One>} */
const ORDER = [...NUMBERS, "name", "toward", "away", "strength", "prompt", "token"];
/** Maximum number of changes named at a mark. */
const MAX_NAMED_CHANGES = 3;

/**
 * Return the fields in a fixed order, so that equal interventions compare equal.
 *
 * @param {One} one
 */
const orderFields = (one) =>
  Object.fromEntries(ORDER.filter((name) => name in one).map((name) => [name, one[name]]));

/**
 * Add the default of `away`, which a steering vector may omit.
 *
 * @param {string} name
 * @param {One} one
 */
const withDefaults = (name, one) => (name === "steer" ? { away: "", ...one } : one);

/** @param {One} one */
const hasEffect = ({ factor, strength }) => factor !== 1 && strength !== 0;

/**
 * @param {One} a
 * @param {One} b
 */
const byPlace = (a, b) =>
  (a.layer ?? 0) - (b.layer ?? 0) ||
  (a.head ?? 0) - (b.head ?? 0) ||
  (a.expert ?? 0) - (b.expert ?? 0) ||
  (a.position ?? 0) - (b.position ?? 0) ||
  (a.name ?? "").localeCompare(b.name ?? "");

/**
 * @param {string} name
 * @param {One[]} [list]
 */
const normalizedList = (name, list = []) =>
  list.filter(hasEffect).map((one) => orderFields(withDefaults(name, one))).sort(byPlace);

/**
 * Return the interventions in a fixed order, without those that have no effect.
 *
 * @param {FromPage.Interventions | null | undefined} reach
 * @returns {FromPage.Interventions}
 */
export function normalize(reach) {
  const lists = LISTS.map((name) => [name, normalizedList(name, reach?.[name])]);
  return Object.fromEntries(lists.filter(([, list]) => list.length));
}

/** @param {FromPage.Interventions | null | undefined} reach */
const written = (reach) => JSON.stringify(normalize(reach));

/**
 * @param {FromPage.Interventions | null | undefined} a
 * @param {FromPage.Interventions | null | undefined} b
 */
export const sameInterventions = (a, b) => written(a) === written(b);

/** @param {FromPage.Interventions | null | undefined} reach */
export const isEmpty = (reach) => written(reach) === "{}";

/** Number of interventions. @param {FromPage.Interventions} reach */
const countInterventions = (reach) =>
  Object.values(normalize(reach)).reduce((n, list) => n + list.length, 0);

// ---- position spans ----------------------------------------------------------------------------

/**
 * Return the spans of a run that starts with interventions, for a prompt of `nPrompt` tokens. They
 * act on the whole prompt, except steering, which acts from its last token on.
 *
 * @param {FromPage.Interventions} reach
 * @param {number} nPrompt
 */
export function spansFromStart(reach, nPrompt) {
  if (isEmpty(reach)) return [];
  const { steer = [], ...rest } = normalize(reach);
  if (!steer.length || nPrompt < 2) return [{ first: 0, reach: normalize(reach) }];
  const before = isEmpty(rest) ? [] : [{ first: 0, reach: rest }];
  return [...before, { first: nPrompt - 1, reach: normalize(reach) }];
}

/**
 * Return the spans with other interventions from a position on.
 *
 * @param {FromPage.InterventionSpan[]} reached
 * @param {number} first
 * @param {FromPage.Interventions} reach
 */
export const withSpanFrom = (reached, first, reach) => [
  ...reached.filter((entry) => entry.first < first),
  { first, reach: normalize(reach) },
];

/**
 * Return `reached` of a request that continues a text: tokens before position `from` are computed
 * as they `ran`, those from there on (or from the first patch that has not acted yet) under
 * `reach`. The request itself covers positions from `last` on, so those are left out; {} if nothing
 * ever acted.
 *
 * @param {FromPage.InterventionSpan[]} ran
 * @param {number} from
 * @param {number} last
 * @param {FromPage.Interventions} reach
 */
export function continuedSpans(ran, from, last, reach) {
  const acted = new Set(ran.flatMap((entry) => entry.reach.patch ?? []).map(placeOf));
  const fresh = (reach.patch ?? []).filter((patch) => !acted.has(placeOf(patch)));
  const first = Math.min(from, ...fresh.map(({ position }) => position));
  const before = withSpanFrom(ran, first, reach).filter((entry) => entry.first < last);
  if (isEmpty(reach) && before.every((entry) => isEmpty(entry.reach))) return {};
  return { reached: before.length ? before : [{ first: 0, reach: {} }] };
}

/** @param {{layer: number, position: number, prompt: string, token: number}} options */
const placeOf = ({ layer, position, prompt, token }) =>
  JSON.stringify([layer, position, prompt, token]);

/**
 * Interventions active at a position.
 *
 * @param {FromPage.InterventionSpan[]} reached
 * @param {number} position
 */
export const activeAt = (reached, position) =>
  reached.findLast(({ first }) => first <= position)?.reach ?? {};

/**
 * Return `reached` of an inspection of the first `n` tokens of a run, which are recomputed under
 * the interventions that were active when the run computed them.
 *
 * @param {Segment} segment
 * @param {number} n
 */
export function spansUpTo({ interventionSpans }, n) {
  const acted = interventionSpans.filter(({ first }) => first < n);
  return acted.length ? { reached: acted } : {};
}

// ---- text --------------------------------------------------------------------------------------

/** @param {number} value */
const short = (value) => String(Number(value.toPrecision(4))).replace("-", "−");
/** @param {number} value */
const signed = (value) => (value > 0 ? `+${short(value)}` : short(value));

/** @param {number} factor */
export const factorWords = (factor) =>
  factor === 0 ? "off" : factor === 1 ? "on" : `× ${short(factor)}`;

/**
 * Layers whose attention and MLP are both off.
 *
 * @param {FromPage.LayerFactor[]} attention
 * @param {FromPage.LayerFactor[]} mlp
 */
function layersOff(attention, mlp) {
  const silent = mlp.filter(({ factor }) => factor === 0).map(({ layer }) => layer);
  const both = attention.filter(({ layer, factor }) => factor === 0 && silent.includes(layer));
  return new Set(both.map(({ layer }) => layer));
}

/**
 * Key → label of each intervention; a layer with both halves off is one entry.
 *
 * @param {FromPage.Interventions} reach
 */
function labelsByKey(reach) {
  const found = new Map();
  const normal = normalize(reach);
  const { heads = [], attention = [], mlp = [], steer = [], patch = [], loras = [], experts = [] } = normal;
  const off = layersOff(attention, mlp);
  for (const layer of off) found.set(`layer ${layer}`, `layer ${layer} off`);
  for (const [name, list] of Object.entries({ attention, MLP: mlp }))
    for (const { layer, factor } of list)
      if (!off.has(layer)) found.set(`${name} ${layer}`, `${name} ${layer} ${factorWords(factor)}`);
  for (const { layer, head, factor } of heads)
    found.set(`head ${layer}.${head}`, `head ${layer}.${head} ${factorWords(factor)}`);
  for (const { layer, toward, away, strength } of steer)
    found.set(
      `steering ${layer} ${toward} − ${away}`,
      `steer ${signed(strength)} at layer ${layer}`,
    );
  for (const { layer, position, prompt, token } of patch)
    found.set(`patch ${layer} ${position} ${prompt} ${token}`, `patch at layer ${layer}`);
  for (const { name, strength } of loras)
    found.set(`adapter ${name}`, `adapter ${name} ${factorWords(strength)}`);
  for (const { layer, expert } of experts)
    found.set(`expert ${layer}.${expert}`, `expert ${layer}.${expert} off`);
  return found;
}

/**
 * Labels of what changed between two settings: [key, label].
 *
 * @param {FromPage.Interventions} from
 * @param {FromPage.Interventions} to
 */
function labelChanges(from, to) {
  const [before, after] = [labelsByKey(from), labelsByKey(to)];
  /** @type {Array<[string, string]>} */
  const labels = [];
  for (const [key, words] of after) if (before.get(key) !== words) labels.push([key, words]);
  for (const [key, words] of before)
    if (!after.has(key) && !isHalfStillOff(key, after))
      labels.push([key, removalLabel(key, words)]);
  return labels;
}

/**
 * Is a layer that is no longer off as a whole still listed by one of its halves?
 *
 * @param {string} key
 * @param {Map<string, string>} after
 */
const isHalfStillOff = (key, after) =>
  key.startsWith("layer ") &&
  ["attention", "MLP"].some((half) => after.has(`${half} ${key.slice(6)}`));

/**
 * @param {string} key
 * @param {string} words
 */
function removalLabel(key, words) {
  if (key.startsWith("adapter ")) return `${key} off`;
  return /^(steering|patch)/.test(key) ? `${words} removed` : `${key} on`;
}

/**
 * Keys of the interventions that differ.
 *
 * @param {FromPage.Interventions} from
 * @param {FromPage.Interventions} to
 */
export const changedKeys = (from, to) => labelChanges(from, to).map(([key]) => key);

/** @param {FromPage.Interventions} reach */
const isAdaptersAlone = (reach) => Object.keys(normalize(reach)).every((name) => name === "loras");

/**
 * Describe a change: "head 2.3 off, steer +1.5 at layer 4".
 *
 * @param {FromPage.Interventions} from
 * @param {FromPage.Interventions} to
 */
export function describeInterventionChange(from, to) {
  if (isEmpty(to) && isEmpty(from)) return "";
  if (isEmpty(to) && !isAdaptersAlone(from)) return "reset";
  const labels = labelChanges(from, to).map(([, words]) => words);
  if (labels.length <= MAX_NAMED_CHANGES) return labels.join(", ");
  const named = labels.slice(0, MAX_NAMED_CHANGES - 1);
  return `${named.join(", ")} and ${count(labels.length - named.length)} more`;
}

/** List all interventions as text. @param {FromPage.Interventions} reach */
export const describeInterventions = (reach) => [...labelsByKey(reach).values()].join(", ");

/** "1 intervention". @param {FromPage.Interventions} reach */
export const interventionCountText = (reach) => plural(countInterventions(reach), "intervention");
