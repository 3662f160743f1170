// Checks of a request against the model and the ranges of the settings (gpu/sampling_params.py,
// gpu/engine/validation.py).

import { ContextExceeded, InvalidRequest, messageOf } from "./shared/errors.js";
import { checkPace } from "./gpu/run-pace.js";
import { checkNoNewPatch, checkSpans, InterventionEncoder } from "./interventions/encode.js";
import { RunInterventions } from "./interventions/resolved.js";
import { countChars, decimal, general, quoted } from "./text/python-text.js";

/**
 * Range of a setting, and values of some.
 *
 * @typedef {keyof NumberSettings | "seed" | "first_index"} SettingName
 * @typedef {{name: SettingName, integer: boolean, min: number, max: number | bigint}} SettingRange
 * @typedef {{[Name in SettingName]?: number | bigint | null}} SettingValues
 */

export class RequestChecks {
  /**
   * `sampling`: declarations of the settings, `limits` of interventions and of the pace
   * (app/http/page_data.py); `context`: tokens of a text;
   * `tokenize`: encodes the texts of interventions as plain prompts; `loras`: names of the adapters.
   *
   * @param {SamplingData} sampling
   * @param {RequestLimits} limits
   * @param {{
   *   vocabSize: number, context: number, nLayers: number, nHeads: number,
   *   tokenize: (text: string) => number[], loras?: string[],
   *   moe?: import("./interventions/encode.js").MoeSizes,
   * }} model
   */
  constructor(sampling, limits, { vocabSize, context, nLayers, nHeads, tokenize, loras, moe }) {
    this.sampling = sampling;
    this.limits = limits;
    const model = { nLayers, nHeads, context, tokenize, loras, moe };
    this.interventions = new InterventionEncoder(model, limits.interventions);
    this.vocabSize = vocabSize;
    this.context = context;
    const inOrder = Object.keys(sampling.meanings); // in which the server names what is wrong
    /** @type {SettingRange[]} */
    const settings = [
      ...sampling.settings,
      { name: "seed", integer: true, min: 0, max: BigInt(sampling.max_seed) },
      { name: "first_index", integer: true, min: 0, max: sampling.max_first_index },
    ];
    this.settings = settings.sort((a, b) => inOrder.indexOf(a.name) - inOrder.indexOf(b.name));
    /** @type {string[]} */
    this.live = sampling.settings.filter(({ live }) => live).map(({ name }) => name);
  }

  /**
   * Return the interventions of a request. Throws unless a run can be made of it.
   *
   * @param {{
   *   ids: number[], params: Read.SamplingParams | SamplerParams, updates: Read.ScheduledUpdate[],
   *   reach: Read.Interventions, reached: Read.InterventionSpan[],
   * }} request
   */
  check({ ids, params, updates, reach, reached }) {
    this.checkParams(params);
    this.checkBiasedIds(params);
    this.checkIds(ids);
    if (ids.length >= this.context) throw new ContextExceeded(ids.length, this.context);
    this.checkUpdates(updates);
    const encodedUpdates = this.encodeUpdates(updates, reach);
    checkSpans(reached, reach, ids.length - 1);
    const spans = this.interventions.encodeSpans(reached, ids.length);
    const first = this.interventions.encode(reach, "reach", ids.length);
    return new RunInterventions(first, ids.length, { updates: encodedUpdates, spans });
  }

  /**
   * Throw InvalidRequest for settings that are out of range.
   *
   * @param {Read.SamplingParams | SamplerParams} params
   */
  checkParams(params) {
    this.checkRanges(params);
    this.checkStops(params.stop);
    this.checkBiases(params.logit_bias);
  }

  /**
   * Throw InvalidRequest for numbers that are out of range, with all that are, and for a watermark.
   *
   * @param {SettingValues} values
   */
  checkRanges(values) {
    const faults = this.settings
      .map((setting) => [setting.name, this.faultOf(setting, values[setting.name])])
      .filter(([, fault]) => fault);
    if (faults.length)
      throw new InvalidRequest(faults.map(([, fault]) => fault).join("; "), faults[0][0]);
    this.checkWatermark(values.watermark_bias);
  }

  /**
   * Throw InvalidRequest for a watermark: exported plans draw once, without a greenlist.
   *
   * @param {number | bigint | null | undefined} bias
   */
  checkWatermark(bias) {
    if (bias)
      throw new InvalidRequest(
        "a watermark is written on the server only; set watermark_bias to 0, or choose the server's engine",
        "watermark_bias",
      );
  }

  /**
   * Throw InvalidRequest for biases of tokens that the model has not.
   *
   * @param {Pick<SamplerParams, "logit_bias">} params
   */
  checkBiasedIds(params) {
    for (const { id } of params.logit_bias)
      if (!(id >= 0 && id < this.vocabSize))
        throw new InvalidRequest(
          `logit_bias names token ${id}, but ids go from 0 to ${this.vocabSize - 1}`,
          "logit_bias",
        );
  }

  /**
   * Throw InvalidRequest for changes of settings that cannot change, or out of range.
   *
   * @param {Record<string, number>} changes
   */
  checkChanges(changes) {
    for (const name of Object.keys(changes))
      if (!this.live.includes(name))
        throw new InvalidRequest(
          `${name} cannot change while the text is written; these can: ${this.live.join(", ")}`,
          name,
        );
    this.checkRanges(changes);
  }

  /** Throw InvalidRequest for a pace out of range. @param {import("./gpu/run-pace.js").PaceChange} change */
  checkPace(change) {
    checkPace(change, this.limits.pace);
  }

  /**
   * Return what is wrong with the value of a setting; "" if nothing is, or it has none.
   *
   * @param {SettingRange} range
   * @param {number | bigint | null | undefined} value
   */
  faultOf({ name, integer, min, max }, value) {
    if (value === null || value === undefined) return "";
    if (value >= min && value <= max) return ""; // NaN fails the comparison as well
    const kind = integer ? "an integer" : "a number";
    const given = integer ? String(value) : decimal(Number(value));
    const [least, most] = [min, max].map((end) =>
      integer ? BigInt(end).toLocaleString("en") : general(Number(end)),
    );
    return (
      `${name} must be ${kind} from ${least} to ${most} ` +
      `(${this.sampling.meanings[name]}), but got ${given}`
    );
  }

  /** @param {string[]} stops */
  checkStops(stops) {
    const { max_stop_strings: most, max_stop_chars: longest } = this.sampling;
    if (stops.length > most)
      throw new InvalidRequest(
        `stop may hold ${most} strings at most, but got ${stops.length}`,
        "stop",
      );
    for (const stop of stops)
      if (!stop || countChars(stop) > longest)
        throw new InvalidRequest(
          `each stop string must have 1 to ${longest} characters, but got ${quoted(stop)}`,
          "stop",
        );
  }

  /** @param {Read.TokenBias[]} biases */
  checkBiases(biases) {
    const { max_logit_biases: most, max_bias: largest } = this.sampling;
    if (biases.length > most)
      throw new InvalidRequest(
        `logit_bias may name ${most} tokens at most, but got ${biases.length}`,
        "logit_bias",
      );
    /** @type {Set<number>} */
    const named = new Set();
    for (const { id, bias } of biases) {
      if (named.has(id))
        throw new InvalidRequest(`logit_bias names token ${id} twice`, "logit_bias");
      named.add(id);
      if (!(Math.abs(bias) <= largest))
        throw new InvalidRequest(
          `logit_bias of token ${id} must be a number from ${-largest} to ${largest}, but got ` +
            decimal(bias),
          "logit_bias",
        );
    }
  }

  /** @param {number[]} ids */
  checkIds(ids) {
    if (!ids.length)
      throw new InvalidRequest("the prompt is empty; give at least one token", "prompt");
    ids.forEach((id, i) => {
      if (!(id >= 0 && id < this.vocabSize))
        throw new InvalidRequest(
          `token ${i} of the prompt is ${id}, but ids go from 0 to ${this.vocabSize - 1}`,
          "prompt",
        );
    });
  }

  /**
   * Throw InvalidRequest for changes at known tokens that cannot be made, or not in their order.
   *
   * @param {Read.ScheduledUpdate[]} updates
   */
  checkUpdates(updates) {
    let earliest = 0;
    updates.forEach(({ index, params }, n) => {
      if (index < earliest)
        throw refusedUpdate(
          n,
          `its index must be ${earliest} or more, because changes come in the order of the tokens ` +
            `they act on, but got ${index}`,
        );
      earliest = index;
      try {
        this.checkChanges(params);
      } catch (error) {
        throw refusedUpdate(n, messageOf(error));
      }
    });
  }

  /**
   * Return the encoded interventions of each update, null for one that changes none.
   *
   * @param {Read.ScheduledUpdate[]} updates
   * @param {Read.Interventions} first
   */
  encodeUpdates(updates, first) {
    let now = first;
    return updates.map(({ reach }, n) => {
      if (!reach) return null;
      try {
        checkNoNewPatch(now, reach);
        now = reach;
        return this.interventions.encode(reach);
      } catch (error) {
        throw refusedUpdate(n, messageOf(error));
      }
    });
  }
}

/** @param {number} n @param {string} why */
const refusedUpdate = (n, why) =>
  new InvalidRequest(`change ${n + 1} of the request: ${why}`, "changes");
