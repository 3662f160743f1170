// @ts-nocheck
// Interventions as the page sends them, checked and with their texts as token ids
// (gpu/interventions/messages.py).

import { InvalidRequest } from "../shared/errors.js";
import { countChars, decimal, general, quoted } from "../text/python-text.js";

const FACTORS = [-8, 8];
const STRENGTHS = [-16, 16];
export const MAX_STEERS = 8;
export const MAX_PATCHES = 16;
const MAX_TEXT_TOKENS = 256;
/** Longer texts are refused before they are tokenized. */
const MAX_TEXT_CHARS = 64 * 1024;
/** Characters of a name in an error. */
const MAX_NAME = 80;

/** Lists of what changes the model's own parts. */
const BASE_LISTS = ["heads", "attention", "mlp", "steer", "patch"];
const LISTS = [...BASE_LISTS, "loras"];

/**
 * Checked interventions: {requested, toward, away, patch}. `requested` has all lists; the others have
 * the ids of each steer's two texts (an `away` may be empty) and of each patch's prompt up to its
 * token.
 */
export const NONE_ENCODED = { requested: filled({}), toward: [], away: [], patch: [] };

/** Texts whose last token's residual stream is needed. */
export const textsOf = ({ toward, away, patch }) =>
  [...toward, ...away, ...patch].filter((ids) => ids.length);

/** What plans must have for encoded interventions, as `PlanLookup` finds them. */
export const actingOf = ({ requested }) => ({
  interventions: BASE_LISTS.some((name) => requested[name].length > 0),
  loras: requested.loras.some(({ strength }) => strength !== 0),
});

/** Interventions with all lists. */
function filled(wanted) {
  return Object.fromEntries(LISTS.map((name) => [name, wanted[name] ?? []]));
}

/** Interventions as the server tells them: without empty lists and empty texts. */
export function told(requested) {
  const steer = requested.steer.map(({ away, ...rest }) => (away ? { ...rest, away } : rest));
  const lists = Object.entries({ ...requested, steer });
  return Object.fromEntries(lists.filter(([, entries]) => entries.length));
}

/** Encodes interventions for one model. */
export class InterventionEncoder {
  /**
   * `tokenize`: encodes a plain prompt, including the tokens that the tokenizer begins one with.
   * `loras`: names of the adapters that are there.
   */
  constructor({ nLayers, nHeads, context, tokenize, loras = [] }) {
    Object.assign(this, { nLayers, nHeads, tokenize, loras });
    this.mostTokens = Math.min(MAX_TEXT_TOKENS, context);
  }

  /**
   * Return `wanted`, checked. `param`: field that errors name; `nPrompt`: tokens that patches may
   * name, null: any. Throws InvalidRequest.
   */
  encode(wanted, param = "reach", nPrompt = null) {
    const requested = filled(wanted);
    if (LISTS.every((name) => !requested[name].length)) return NONE_ENCODED;
    const check = new Check(this, param);
    for (const name of ["heads", "attention", "mlp"]) check.factors(name, requested[name]);
    check.loras(requested.loras);
    const { toward, away } = check.steers(requested.steer);
    return { requested, toward, away, patch: check.patches(requested.patch, nPrompt) };
  }

  /**
   * Return [{first, encoded}] of interventions under which the tokens of a text from position `first`
   * on were computed. Throws InvalidRequest.
   */
  encodeSpans(spans, nPrompt = null) {
    let earliest = 0;
    return spans.map(({ first, reach }) => {
      if (first < earliest)
        throw new InvalidRequest(
          `first must be ${earliest} or more, because positions must increase, but got ${first}`,
          "reached",
        );
      earliest = first + 1;
      return { first, encoded: this.encode(reach, "reached", nPrompt) };
    });
  }
}

/** Text that is equal for equal patches. */
const keyOf = ({ layer, position, prompt, token }) =>
  JSON.stringify([layer, position, prompt, token]);

/**
 * Throw InvalidRequest if `spans`, under which a text was computed, and `wanted`, which acts from
 * position `last` on, do not fit together. Without spans there is nothing to check.
 */
export function checkSpans(spans, wanted, last) {
  if (!spans.length) return;
  if (spans.at(-1).first >= last)
    throw new InvalidRequest(
      `first must be less than ${last}, the last position of ids, where reach begins, but got ` +
        spans.at(-1).first,
      "reached",
    );
  const acted = new Set(spans.flatMap(({ reach }) => reach.patch ?? []).map(keyOf));
  for (const patch of wanted.patch ?? [])
    if (patch.position < last && !acted.has(keyOf(patch)))
      throw new InvalidRequest(
        `reach begins at position ${last}, so it cannot patch the token at ${patch.position}; put ` +
          "that patch into reached",
        "reach.patch",
      );
}

/** Throw InvalidRequest for a patch that `now` does not have: its token is computed already. */
export function checkNoNewPatch(now, wanted) {
  const known = new Set((now.patch ?? []).map(keyOf));
  for (const patch of wanted.patch ?? [])
    if (!known.has(keyOf(patch)))
      throw new InvalidRequest(
        `the token at position ${patch.position} is computed already, so it cannot be patched while ` +
          "the run writes; write again from there with the patch",
        "reach.patch",
      );
}

/** Checks the entries of interventions; errors name the field. */
class Check {
  constructor({ nLayers, nHeads, mostTokens, tokenize, loras }, param) {
    Object.assign(this, { nLayers, nHeads, mostTokens, tokenize, loaded: loras, param });
  }

  factors(name, entries) {
    for (const entry of entries) {
      this.below(name, "layer", entry.layer, this.nLayers);
      if (name === "heads") this.below(name, "head", entry.head, this.nHeads);
      this.number(name, "factor", entry.factor, FACTORS);
    }
    this.once(name, entries.map(({ layer, head = 0 }) => `(${layer}, ${head})`));
  }

  loras(entries) {
    for (const { name, strength } of entries) {
      if (!this.loaded.includes(name)) {
        const shown = [...quoted(name)].slice(0, MAX_NAME).join("");
        const there = this.loaded.length ? `loaded: ${this.loaded.join(", ")}` : "none is loaded";
        throw this.refused("loras", `there is no adapter ${shown}; ${there}`);
      }
      this.number("loras", "strength", strength, FACTORS);
    }
    this.once("loras", entries.map(({ name }) => name));
  }

  /** Return the ids of the two texts of each steer; [] for an empty `away`. */
  steers(steers) {
    this.atMost("steer", steers.length, MAX_STEERS);
    const found = { toward: [], away: [] };
    for (const { layer, strength, toward, away = "" } of steers) {
      this.below("steer", "layer", layer, this.nLayers);
      this.number("steer", "strength", strength, STRENGTHS);
      found.toward.push(this.text("steer", "toward", toward));
      found.away.push(away ? this.text("steer", "away", away) : []);
    }
    return found;
  }

  /** Return the ids of each prompt up to its token. */
  patches(patches, nPrompt) {
    this.atMost("patch", patches.length, MAX_PATCHES);
    this.once("patch", patches.map(({ layer, position }) => `(${layer}, ${position})`));
    return patches.map(({ layer, position, prompt, token }) => {
      this.below("patch", "layer", layer, this.nLayers);
      if (position < 0 || (nPrompt !== null && position >= nPrompt)) {
        const place = nPrompt === null ? "0 or more" : `from 0 to ${nPrompt - 1}`;
        throw this.refused("patch", `position must be ${place}, but got ${position}`);
      }
      const ids = this.text("patch", "prompt", prompt);
      if (!(token >= 0 && token < ids.length))
        throw this.refused(
          "patch",
          `token must be from 0 to ${ids.length - 1}, because its prompt has ${ids.length} tokens, ` +
            `but got ${token}`,
        );
      return ids.slice(0, token + 1);
    });
  }

  text(name, field, text) {
    const range = `${field} must have 1 to ${this.mostTokens} tokens, but it has`;
    const n = countChars(text);
    if (n > MAX_TEXT_CHARS)
      throw this.refused(
        name,
        `${range} ${n.toLocaleString("en")} characters, too many to tokenise`,
      );
    const ids = text ? this.tokenize(text) : [];
    if (!(ids.length >= 1 && ids.length <= this.mostTokens))
      throw this.refused(name, `${range} ${ids.length}`);
    return ids;
  }

  below(name, field, value, n) {
    if (value >= 0 && value < n) return;
    throw this.refused(name, `${field} must be an integer from 0 to ${n - 1}, but got ${value}`);
  }

  number(name, field, value, [least, most]) {
    if (value >= least && value <= most) return; // NaN fails the comparison as well
    const range = `${general(least)} to ${general(most)}`;
    throw this.refused(name, `${field} must be a number from ${range}, but got ${decimal(value)}`);
  }

  atMost(name, n, most) {
    if (n > most) throw this.refused(name, `${most} entries are taken at most, but got ${n}`);
  }

  once(name, places) {
    const twice = places.find((place, i) => places.indexOf(place) < i);
    if (twice) throw this.refused(name, `there are two entries for ${twice}; give one`);
  }

  refused(name, why) {
    return new InvalidRequest(`${this.param}.${name}: ${why}`, `${this.param}.${name}`);
  }
}
