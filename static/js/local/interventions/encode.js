// Interventions as the page sends them, checked and with their texts as token ids
// (gpu/interventions/messages.py).

import { InvalidRequest } from "../shared/errors.js";
import { countChars, decimal, general, quoted } from "../text/python-text.js";

/** Characters of a name in an error. */
const MAX_NAME = 80;

/**
 * Checked interventions: the others than `requested` have the ids of each steer's two texts (an `away` may
 * be empty) and of each patch's prompt up to its token.
 *
 * @typedef {Required<Read.Interventions>} RequestedInterventions
 * @typedef {{requested: RequestedInterventions, toward: number[][], away: number[][], patch: number[][]}} EncodedInterventions
 * @typedef {{first: number, encoded: EncodedInterventions}} EncodedSpan
 */

/** Experts of a model: the layers that have them, how many each has, and how many a token uses. @typedef {{layers: number[], n: number, perToken: number}} MoeSizes */

/** @type {MoeSizes} */
const NO_EXPERTS = { layers: [], n: 0, perToken: 0 };

/** @type {EncodedInterventions} */
export const NONE_ENCODED = { requested: filled({}), toward: [], away: [], patch: [] };

/** Texts whose last token's residual stream is needed. @param {EncodedInterventions} encoded */
export const textsOf = ({ toward, away, patch }) =>
  [...toward, ...away, ...patch].filter((ids) => ids.length);

/**
 * What plans must have for encoded interventions, as `PlanLookup` finds them.
 *
 * @param {EncodedInterventions} encoded
 * @returns {Required<Acting>}
 */
export function actingOf({ requested: { loras, ...base } }) {
  return {
    interventions: Object.values(base).some((entries) => entries.length > 0),
    loras: loras.some(({ strength }) => strength !== 0),
  };
}

/** Interventions with all lists. @param {Read.Interventions} wanted @returns {RequestedInterventions} */
function filled({
  heads = [], attention = [], mlp = [], steer = [], patch = [], loras = [], experts = [],
}) {
  return { heads, attention, mlp, steer, patch, loras, experts };
}

/**
 * Interventions as the server tells them: without empty lists and empty texts.
 *
 * @param {RequestedInterventions} requested
 * @returns {ToPage.Interventions}
 */
export function told({ heads, attention, mlp, steer, patch, loras, experts }) {
  return {
    ...(heads.length && { heads }),
    ...(attention.length && { attention }),
    ...(mlp.length && { mlp }),
    ...(steer.length && { steer: steer.map(({ away, ...rest }) => (away ? { ...rest, away } : rest)) }),
    ...(patch.length && { patch }),
    ...(loras.length && { loras }),
    ...(experts.length && { experts }),
  };
}

/** Encodes interventions for one model. */
export class InterventionEncoder {
  /**
   * `tokenize`: encodes a plain prompt, including the tokens that the tokenizer begins one with.
   * `loras`: names of the adapters that are there.
   *
   * @param {{
   *   nLayers: number, nHeads: number, context: number,
   *   tokenize: (text: string) => number[], loras?: string[], moe?: MoeSizes,
   * }} model
   * @param {RequestLimits["interventions"]} limits
   */
  constructor({ nLayers, nHeads, context, tokenize, loras = [], moe = NO_EXPERTS }, limits) {
    this.nLayers = nLayers;
    this.nHeads = nHeads;
    this.tokenize = tokenize;
    this.loras = loras;
    this.moe = moe;
    this.limits = limits;
    this.mostTokens = Math.min(limits.text_tokens, context);
  }

  /**
   * Return `wanted`, checked. `param`: field that errors name; `nPrompt`: tokens that patches may
   * name, null: any. Throws InvalidRequest.
   *
   * @param {Read.Interventions} wanted
   * @param {string} [param]
   * @param {number | null} [nPrompt]
   * @returns {EncodedInterventions}
   */
  encode(wanted, param = "reach", nPrompt = null) {
    const requested = filled(wanted);
    if (Object.values(requested).every((entries) => !entries.length)) return NONE_ENCODED;
    const check = new Check(this, param);
    check.factors("heads", requested.heads);
    check.factors("attention", requested.attention);
    check.factors("mlp", requested.mlp);
    check.experts(requested.experts);
    check.loras(requested.loras);
    const { toward, away } = check.steers(requested.steer);
    return { requested, toward, away, patch: check.patches(requested.patch, nPrompt) };
  }

  /**
   * Return interventions under which the tokens of a text from position `first` on were computed. Throws
   * InvalidRequest.
   *
   * @param {Read.InterventionSpan[]} spans
   * @param {number | null} [nPrompt]
   * @param {string} [param]
   * @returns {EncodedSpan[]}
   */
  encodeSpans(spans, nPrompt = null, param = "reached") {
    let earliest = 0;
    return spans.map(({ first, reach }) => {
      if (first < earliest)
        throw new InvalidRequest(
          `first must be ${earliest} or more, because positions must increase, but got ${first}`,
          "reached",
        );
      earliest = first + 1;
      return { first, encoded: this.encode(reach, param, nPrompt) };
    });
  }
}

/** Text that is equal for equal patches. @param {Read.Patch} patch */
const keyOf = ({ layer, position, prompt, token }) =>
  JSON.stringify([layer, position, prompt, token]);

/**
 * Throw InvalidRequest if `spans`, under which a text was computed, and `wanted`, which acts from
 * position `last` on, do not fit together. Without spans there is nothing to check.
 *
 * @param {Read.InterventionSpan[]} spans
 * @param {Read.Interventions} wanted
 * @param {number} last
 */
export function checkSpans(spans, wanted, last) {
  const latest = spans.at(-1);
  if (!latest) return;
  if (latest.first >= last)
    throw new InvalidRequest(
      `first must be less than ${last}, the last position of ids, where reach begins, but got ` +
        latest.first,
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

/**
 * Throw InvalidRequest for a patch that `now` does not have: its token is computed already.
 *
 * @param {Read.Interventions} now
 * @param {Read.Interventions} wanted
 */
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
  /** @param {InterventionEncoder} encoder @param {string} param */
  constructor(encoder, param) {
    this.encoder = encoder;
    this.param = param;
  }

  /** @param {string} name @param {import("./active.js").Factor[]} entries */
  factors(name, entries) {
    for (const entry of entries) {
      this.below(name, "layer", entry.layer, this.encoder.nLayers);
      if (entry.head !== undefined) this.below(name, "head", entry.head, this.encoder.nHeads);
      this.number(name, "factor", entry.factor, this.encoder.limits.factor);
    }
    this.once(name, entries.map(({ layer, head = 0 }) => `(${layer}, ${head})`));
  }

  /** @param {Read.ExpertOff[]} entries */
  experts(entries) {
    const { nLayers, moe } = this.encoder;
    /** @type {Map<number, number>} */
    const nOff = new Map();
    for (const { layer, expert } of entries) {
      this.below("experts", "layer", layer, nLayers);
      if (!moe.layers.includes(layer)) throw this.refused("experts", `layer ${layer} has no experts`);
      this.below("experts", "expert", expert, moe.n);
      nOff.set(layer, (nOff.get(layer) ?? 0) + 1);
    }
    this.once("experts", entries.map(({ layer, expert }) => `(${layer}, ${expert})`));
    for (const [layer, n] of nOff)
      if (moe.n - n < moe.perToken)
        throw this.refused(
          "experts",
          `at most ${moe.n - moe.perToken} experts of layer ${layer} can be off, because each token ` +
            `uses ${moe.perToken} of ${moe.n}; got ${n}`,
        );
  }

  /** @param {Read.LoraStrength[]} entries */
  loras(entries) {
    const { loras: loaded, limits } = this.encoder;
    for (const { name, strength } of entries) {
      if (!loaded.includes(name)) {
        const shown = [...quoted(name)].slice(0, MAX_NAME).join("");
        const there = loaded.length ? `loaded: ${loaded.join(", ")}` : "none is loaded";
        throw this.refused("loras", `there is no adapter ${shown}; ${there}`);
      }
      this.number("loras", "strength", strength, limits.factor);
    }
    this.once("loras", entries.map(({ name }) => name));
  }

  /** Return the ids of the two texts of each steer; [] for an empty `away`. @param {Read.Steer[]} steers */
  steers(steers) {
    const { nLayers, limits } = this.encoder;
    this.atMost("steer", steers.length, limits.steers);
    const texts = steers.map(({ layer, strength, toward, away = "" }) => {
      this.below("steer", "layer", layer, nLayers);
      this.number("steer", "strength", strength, limits.strength);
      return [this.text("steer", "toward", toward), away ? this.text("steer", "away", away) : []];
    });
    return { toward: texts.map(([toward]) => toward), away: texts.map(([, away]) => away) };
  }

  /**
   * Return the ids of each prompt up to its token.
   *
   * @param {Read.Patch[]} patches
   * @param {number | null} nPrompt
   */
  patches(patches, nPrompt) {
    const { nLayers, limits } = this.encoder;
    this.atMost("patch", patches.length, limits.patches);
    this.once("patch", patches.map(({ layer, position }) => `(${layer}, ${position})`));
    return patches.map(({ layer, position, prompt, token }) => {
      this.below("patch", "layer", layer, nLayers);
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

  /** @param {string} name @param {string} field @param {string} text */
  text(name, field, text) {
    const { mostTokens, tokenize, limits } = this.encoder;
    const range = `${field} must have 1 to ${mostTokens} tokens, but it has`;
    const n = countChars(text);
    if (n > limits.text_chars)
      throw this.refused(
        name,
        `${range} ${n.toLocaleString("en")} characters, too many to tokenise`,
      );
    const ids = text ? tokenize(text) : [];
    if (!(ids.length >= 1 && ids.length <= mostTokens))
      throw this.refused(name, `${range} ${ids.length}`);
    return ids;
  }

  /** @param {string} name @param {string} field @param {number} value @param {number} n */
  below(name, field, value, n) {
    if (value >= 0 && value < n) return;
    throw this.refused(name, `${field} must be an integer from 0 to ${n - 1}, but got ${value}`);
  }

  /** @param {string} name @param {string} field @param {number} value @param {number[]} range */
  number(name, field, value, [least, most]) {
    if (value >= least && value <= most) return; // NaN fails the comparison as well
    const range = `${general(least)} to ${general(most)}`;
    throw this.refused(name, `${field} must be a number from ${range}, but got ${decimal(value)}`);
  }

  /** @param {string} name @param {number} n @param {number} most */
  atMost(name, n, most) {
    if (n > most) throw this.refused(name, `${most} entries are taken at most, but got ${n}`);
  }

  /** @param {string} name @param {string[]} places */
  once(name, places) {
    const twice = places.find((place, i) => places.indexOf(place) < i);
    if (twice) throw this.refused(name, `there are two entries for ${twice}; give one`);
  }

  /** @param {string} name @param {string} why */
  refused(name, why) {
    return new InvalidRequest(`${this.param}.${name}: ${why}`, `${this.param}.${name}`);
  }
}
