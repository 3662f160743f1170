// @ts-nocheck
// Checks of a request against the model and the ranges of the settings (gpu/sampling_params.py,
// gpu/engine/validation.py).

import { ContextExceeded, InvalidRequest } from "./shared/errors.js";
import { checkNoNewPatch, checkSpans, InterventionEncoder } from "./interventions/encode.js";
import { RunInterventions } from "./interventions/resolved.js";
import { countChars, decimal, general, quoted } from "./text/python-text.js";

export class RequestChecks {
  /**
   * `sampling`: declarations of the settings (app/http/page_data.py); `context`: tokens of a text;
   * `tokenize`: encodes the texts of interventions as plain prompts; `loras`: names of the adapters.
   */
  constructor(sampling, { vocabSize, context, nLayers, nHeads, tokenize, loras }) {
    this.sampling = sampling;
    this.interventions = new InterventionEncoder({ nLayers, nHeads, context, tokenize, loras });
    this.vocabSize = vocabSize;
    this.context = context;
    const inOrder = Object.keys(sampling.meanings); // in which the server names what is wrong
    this.settings = [
      ...sampling.settings,
      { name: "seed", integer: true, min: 0, max: BigInt(sampling.max_seed) },
      { name: "first_index", integer: true, min: 0, max: sampling.max_first_index },
    ].sort((a, b) => inOrder.indexOf(a.name) - inOrder.indexOf(b.name));
    this.live = sampling.settings.filter(({ live }) => live).map(({ name }) => name);
  }

  /** Return the RunInterventions of a request. Throws unless a run can be made of it. */
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

  /** Throw InvalidRequest for settings that are out of range, with all that are. */
  checkParams(params) {
    const faults = this.settings
      .map((setting) => [setting.name, this.faultOf(setting, params[setting.name])])
      .filter(([, fault]) => fault);
    if (faults.length)
      throw new InvalidRequest(faults.map(([, fault]) => fault).join("; "), faults[0][0]);
    if (params.stop) this.checkStops(params.stop);
    if (params.logit_bias) this.checkBiases(params.logit_bias);
  }

  /** Throw InvalidRequest for biases of tokens that the model has not. */
  checkBiasedIds(params) {
    for (const { id } of params.logit_bias)
      if (!(id >= 0 && id < this.vocabSize))
        throw new InvalidRequest(
          `logit_bias names token ${id}, but ids go from 0 to ${this.vocabSize - 1}`,
          "logit_bias",
        );
  }

  /** Throw InvalidRequest for changes of settings that cannot change, or out of range. */
  checkChanges(changes) {
    for (const name of Object.keys(changes))
      if (!this.live.includes(name))
        throw new InvalidRequest(
          `${name} cannot change while the text is written; these can: ${this.live.join(", ")}`,
          name,
        );
    this.checkParams(changes);
  }

  /** Return what is wrong with the value of a setting; "" if nothing is, or it has none. */
  faultOf({ name, integer, min, max }, value) {
    if (value === null || value === undefined) return "";
    if (value >= min && value <= max) return ""; // NaN fails the comparison as well
    const kind = integer ? "an integer" : "a number";
    const given = integer ? String(value) : decimal(value);
    const [least, most] = [min, max].map((end) =>
      integer ? BigInt(end).toLocaleString("en") : general(Number(end)),
    );
    return (
      `${name} must be ${kind} from ${least} to ${most} ` +
      `(${this.sampling.meanings[name]}), but got ${given}`
    );
  }

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

  checkBiases(biases) {
    const { max_logit_biases: most, max_bias: largest } = this.sampling;
    if (biases.length > most)
      throw new InvalidRequest(
        `logit_bias may name ${most} tokens at most, but got ${biases.length}`,
        "logit_bias",
      );
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
        throw refusedUpdate(n, error.message);
      }
    });
  }

  /** Return the encoded interventions of each update, null for one that changes none. */
  encodeUpdates(updates, first) {
    let now = first;
    return updates.map(({ reach }, n) => {
      if (!reach) return null;
      try {
        checkNoNewPatch(now, reach);
        now = reach;
        return this.interventions.encode(reach);
      } catch (error) {
        throw refusedUpdate(n, error.message);
      }
    });
  }
}

const refusedUpdate = (n, why) =>
  new InvalidRequest(`change ${n + 1} of the request: ${why}`, "changes");
