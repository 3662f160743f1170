// What is changed inside the passes of a run: `Interventions` of the wire, as data and in words.
// Nothing here touches the page.

import { count, plural } from "./format.js";

/** A factor of 0 switches off, 1 leaves alone; the server takes these. */
export const FACTOR = { label: "factor", least: -8, most: 8 };
export const STRENGTH = { label: "strength", least: -16, most: 16 };
/** As many of each, and as many tokens of a text, as the server takes. */
export const MOST_STEERS = 8;
export const MOST_PATCHES = 16;

const LISTS = ["heads", "attention", "mlp", "steer", "patch", "loras"];
const NUMBERS = ["layer", "head", "position", "factor"];
const ORDER = [...NUMBERS, "name", "toward", "away", "strength", "prompt", "token"];
/** So many changes are told one by one at a mark. */
const MOST_TOLD = 3;

/** Fields in one order, so that what acts alike is written alike. */
const tidy = (one) =>
  Object.fromEntries(ORDER.filter((name) => name in one).map((name) => [name, one[name]]));

/** A vector that goes away from nothing may leave that out. */
const whole = (name, one) => (name === "steer" ? { away: "", ...one } : one);

const acts = ({ factor, strength }) => factor !== 1 && strength !== 0;

const byPlace = (a, b) =>
  (a.layer ?? 0) - (b.layer ?? 0) ||
  (a.head ?? 0) - (b.head ?? 0) ||
  (a.position ?? 0) - (b.position ?? 0) ||
  (a.name ?? "").localeCompare(b.name ?? "");

const listed = (name, list = []) =>
  list.filter(acts).map((one) => tidy(whole(name, one))).sort(byPlace);

/** The same interventions in one order, without those that change nothing. */
export function normal(reach) {
  const lists = LISTS.map((name) => [name, listed(name, reach?.[name])]);
  return Object.fromEntries(lists.filter(([, list]) => list.length));
}

const written = (reach) => JSON.stringify(normal(reach));

export const same = (a, b) => written(a) === written(b);

export const isNothing = (reach) => written(reach) === "{}";

/** How many things are changed. */
export const countOf = (reach) =>
  Object.values(normal(reach)).reduce((n, list) => n + list.length, 0);

// ---- where it acted ----------------------------------------------------------------------------

/**
 * `reached` of a question: what acted on the tokens of a run whose prompt has `nPrompt` tokens, from
 * the position `first` on. A run that begins with interventions has them on its whole prompt, but
 * is steered from the last token of it on.
 */
export function atStart(reach, nPrompt) {
  if (isNothing(reach)) return [];
  const { steer = [], ...rest } = normal(reach);
  if (!steer.length || nPrompt < 2) return [{ first: 0, reach: normal(reach) }];
  const before = isNothing(rest) ? [] : [{ first: 0, reach: rest }];
  return [...before, { first: nPrompt - 1, reach: normal(reach) }];
}

/** `reached` with another setting from a position on. */
export const changedFrom = (reached, first, reach) => [
  ...reached.filter((entry) => entry.first < first),
  { first, reach: normal(reach) },
];

/**
 * `reached` of a request whose ids go on from a text: the tokens before position `from` are computed
 * as they `ran`, those from there on, or from a patch on that has not acted yet, under `reach`. It
 * acts by itself from position `last` on, so that is left out; {} where nothing ever acted.
 */
export function goingOn(ran, from, last, reach) {
  const acted = new Set(ran.flatMap((entry) => entry.reach.patch ?? []).map(placeOf));
  const fresh = (reach.patch ?? []).filter((patch) => !acted.has(placeOf(patch)));
  const first = Math.min(from, ...fresh.map(({ position }) => position));
  const before = changedFrom(ran, first, reach).filter((entry) => entry.first < last);
  if (isNothing(reach) && before.every((entry) => isNothing(entry.reach))) return {};
  return { reached: before.length ? before : [{ first: 0, reach: {} }] };
}

const placeOf = ({ layer, position, prompt, token }) => JSON.stringify([layer, position, prompt, token]);

/** What acted at a position. */
export const inForce = (reached, position) =>
  reached.findLast(({ first }) => first <= position)?.reach ?? {};

/**
 * What goes into a question about the first `n` tokens of a generation: they are computed again
 * under what was changed inside the model when the run computed them.
 */
export function asTheyRan({ reached }, n) {
  const acted = reached.filter(({ first }) => first < n);
  return acted.length ? { reached: acted } : {};
}

// ---- in words ----------------------------------------------------------------------------------

const short = (value) => String(Number(value.toPrecision(4))).replace("-", "−");
const signed = (value) => (value > 0 ? `+${short(value)}` : short(value));

export const factorWords = (factor) =>
  factor === 0 ? "off" : factor === 1 ? "on" : `× ${short(factor)}`;

/** Layers of which both halves are off. */
function layersOff(attention, mlp) {
  const silent = mlp.filter(({ factor }) => factor === 0).map(({ layer }) => layer);
  const both = attention.filter(({ layer, factor }) => factor === 0 && silent.includes(layer));
  return new Set(both.map(({ layer }) => layer));
}

/** Key → words of each thing that is changed; both halves of a layer that are off are one. */
function things(reach) {
  const found = new Map();
  const { heads = [], attention = [], mlp = [], steer = [], patch = [], loras = [] } = normal(reach);
  const off = layersOff(attention, mlp);
  for (const layer of off) found.set(`layer ${layer}`, `layer ${layer} off`);
  for (const [name, list] of [["attention", attention], ["MLP", mlp]])
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
  return found;
}

/** What became of each thing between two settings: [key, words]. */
function moves(from, to) {
  const [before, after] = [things(from), things(to)];
  const told = [];
  for (const [key, words] of after) if (before.get(key) !== words) told.push([key, words]);
  for (const [key, words] of before)
    if (!after.has(key) && !halfOf(key, after)) told.push([key, undone(key, words)]);
  return told;
}

/** A layer that is no longer off as a whole is told by the half that still is. */
const halfOf = (key, after) =>
  key.startsWith("layer ") &&
  ["attention", "MLP"].some((half) => after.has(`${half} ${key.slice(6)}`));

function undone(key, words) {
  if (key.startsWith("adapter ")) return `${key} off`;
  return /^(steering|patch)/.test(key) ? `no more ${words}` : `${key} on`;
}

/** Which things differ, by their keys. */
export const touched = (from, to) => moves(from, to).map(([key]) => key);

const isAdaptersAlone = (reach) => Object.keys(normal(reach)).every((name) => name === "loras");

/** "head 2.3 off, steer +1.5 at layer 4": what a change did. */
export function describeMove(from, to) {
  if (isNothing(to) && isNothing(from)) return "";
  if (isNothing(to) && !isAdaptersAlone(from)) return "reset";
  const told = moves(from, to).map(([, words]) => words);
  if (told.length <= MOST_TOLD) return told.join(", ");
  return `${told.slice(0, MOST_TOLD - 1).join(", ")} and ${count(told.length - MOST_TOLD + 1)} more`;
}

/** All that is changed, in words. */
export const describe = (reach) => [...things(reach).values()].join(", ");

/** "1 change inside". */
export const changesInside = (reach) => `${plural(countOf(reach), "change")} inside`;
