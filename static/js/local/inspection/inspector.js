// Answers to questions about runs, computed piece by piece between the steps of the runs
// (gpu/engine/inspector.py). The arrays are those of gpu/inspection/requests.py.

import { actingTemperature } from "../gpu/step-buffer.js";
import { InvalidRequest, NotInBrowser } from "../shared/errors.js";
import { floats, ints } from "./arrays.js";
import { beamAnswer, checkBeam } from "./beam.js";
import { checkRepeat, dispatchTimes } from "./dispatch-times.js";
import { cacheAnswer, stepsAnswer } from "./engine-state.js";
import { planReport } from "./plan-report.js";
import { EffectReading, LossReading, lensReading } from "./readings.js";
import { waterfall } from "./waterfall.js";

/** Most rows of a piece that keeps more than keys and values. */
const PIECE_ROWS = 16;

/**
 * Questions that only the server answers, as the subject of a sentence.
 *
 * @type {Record<"digest" | "divergence" | "embedding" | "encode" | "encoder_attention" | "forward" | "neighbours" | "peaks" | "seq2seq", string>}
 */
const REFUSED = {
  digest: "digests of the weights are",
  divergence: "rounded keys and values and other windows are",
  embedding: "embeddings are",
  encode: "embeddings are",
  encoder_attention: "embeddings are",
  forward: "the vectors inside a layer are",
  neighbours: "neighbours of a token are",
  peaks: "the speed of the device is",
  seq2seq: "encoder-decoders are",
};

/**
 * Checks of request-checks.js, and what passes return of experts.
 *
 * @typedef {import("../gpu/inspection-passes.js").InspectionPasses} InspectionPasses
 * @typedef {Awaited<ReturnType<InspectionPasses["routes"]>>} RoutedRows
 * @typedef {{
 *   interventions: Pick<import("../interventions/encode.js").InterventionEncoder, "encodeSpans">,
 *   checkParams(params: Read.SamplingParams): void, checkBiasedIds(params: Read.SamplingParams): void,
 * }} QuestionChecks
 */

/**
 * How a question that was checked is answered, given the interventions on its text.
 *
 * @typedef {import("../interventions/active.js").InterventionSchedule} InterventionSchedule
 * @typedef {(schedule: InterventionSchedule) => Pieces<InspectionAnswer>} Ask
 */

export class Inspector {
  /**
   * `endIds`: ids that end a text.
   *
   * @param {{
   *   recomputer: import("../gpu/recompute.js").Recomputer,
   *   activations: import("../interventions/activation-cache.js").ActivationCache,
   *   engine: Pick<import("../gpu/engine.js").LocalEngine, "slots" | "scheduler" | "steps" | "info">,
   *   plan: Exported.PlanFile, checks: QuestionChecks, endIds: number[],
   *   limits: RequestLimits["questions"],
   * }} parts
   */
  constructor({ recomputer, activations, engine, plan, checks, endIds, limits }) {
    this.recomputer = recomputer;
    this.activations = activations;
    this.engine = engine;
    this.planFile = plan;
    this.checks = checks;
    this.endIds = endIds;
    this.limits = limits;
    /** Logits of the last waterfall. @type {{asked: string, logits: Float32Array} | null} */
    this.latest = null;
  }

  /**
   * Return an async generator of the answer, which yields after each piece of work. Throws what makes it
   * unanswerable.
   *
   * @param {Read.Inspect["question"]} question
   */
  start(question) {
    const ask = this.ask(question);
    const reached = "reached" in question ? question.reached : [];
    return this.under(this.checks.interventions.encodeSpans(reached), ask);
  }

  /** @param {Read.Inspect["question"]} question @returns {Ask} */
  ask(question) {
    switch (question.kind) {
      case "attention_from":
        return this.attention_from(question);
      case "attention_to":
        return this.attention_to(question);
      case "logit_lens":
        return this.logit_lens(question);
      case "waterfall":
        return this.waterfall(question);
      case "losses":
        return this.losses(question);
      case "intervention_effect":
        return this.intervention_effect(question);
      case "beam":
        return this.beam(question);
      case "routing":
        return this.routing(question);
      case "plan":
        return this.plan(question);
      case "profile":
        return this.profile(question);
      case "cache":
        return this.cache();
      case "steps":
        return this.steps(question);
      default:
        throw new NotInBrowser(REFUSED[question.kind]);
    }
  }

  /**
   * Answer with the interventions of `spans`.
   *
   * @param {import("../interventions/encode.js").EncodedSpan[]} spans
   * @param {Ask} ask
   * @returns {Pieces<InspectionAnswer>}
   */
  async *under(spans, ask) {
    return yield* ask(yield* this.activations.schedule(spans));
  }

  // ---- one method for each kind of question, which checks it and returns how it is answered ----

  /** @param {Read.AttentionFrom} question @returns {Ask} */
  attention_from({ ids, position }) {
    this.checkPlace(ids, position);
    this.checkBytes(position + 1);
    return (schedule) => this.attentionFrom(ids.slice(0, position + 1), schedule);
  }

  /** @param {Read.AttentionTo} question @returns {Ask} */
  attention_to({ ids, position }) {
    this.checkPlace(ids, position);
    this.checkBytes(ids.length - position);
    return (schedule) => this.attentionTo(ids, position, schedule);
  }

  /** @param {Read.LogitLens} question @returns {Ask} */
  logit_lens({ ids, position, chosen, top }) {
    this.checkPlace(ids, position);
    this.checkIds([chosen], "chosen");
    this.checkTop(top);
    return (schedule) => this.lens(ids.slice(0, position + 1), chosen, top, schedule);
  }

  /** @param {Read.Waterfall} question @returns {Ask} */
  waterfall(question) {
    const { ids, position, params, index, also, top, grammar } = question;
    this.checkPlace(ids, position);
    this.checkIds(also, "also");
    this.checkTop(top);
    if (also.length > this.limits.top)
      throw new InvalidRequest(`also has ${also.length} ids, but at most ${this.limits.top} are accepted`, "also");
    if (grammar) throw new NotInBrowser("grammars are", "grammar");
    this.checks.checkParams(params);
    this.checks.checkBiasedIds(params);
    if (params.seed === null)
      throw new InvalidRequest("seed should be that of the run; without it there is no draw", "seed");
    const most = 2 ** 32 - 1 - params.first_index;
    if (!(index >= 0 && index <= most))
      throw new InvalidRequest(`index should be from 0 to ${most}, but is ${index}`, "index");
    const temperature = actingTemperature(params, this.planFile.step);
    const acting = { ...question, params: { ...params, temperature, seed: BigInt(params.seed) } };
    return (schedule) => this.stages(ids.slice(0, position + 1), acting, schedule);
  }

  /** @param {Read.Losses} question @returns {Ask} */
  losses({ ids, first, top, rope, knockout }) {
    if (!rope) throw new NotInBrowser("texts without rotary positions are", "rope");
    if (knockout) throw new NotInBrowser("texts with masked attention are", "knockout");
    this.checkPlace(ids, 0);
    this.checkTop(top);
    if (ids.length < 2)
      throw new InvalidRequest("one token has nothing before it; give two ids", "ids");
    this.checkPlace(ids.slice(0, -1), first, "first");
    return (schedule) => this.textLosses(ids, first, top, schedule);
  }

  /** @param {Read.InterventionEffect} question @returns {Ask} */
  intervention_effect({ ids, first, base }) {
    this.checkPlace(ids, first, "first");
    const spans = this.checks.interventions.encodeSpans(base, null, "base");
    return (schedule) => this.textEffect(ids, first, spans, schedule);
  }

  /** @param {Read.Beam} question @returns {Ask} */
  beam(question) {
    this.checkPlace(question.ids, 0);
    checkBeam(question, this.planFile.limits.context, this.limits);
    return (schedule) =>
      beamAnswer(question, (ids) => this.logitsAfter(ids, schedule), this.endIds);
  }

  /** @param {Read.Routing} question @returns {Ask} */
  routing({ ids, first }) {
    if (!this.planFile.model.n_experts)
      throw new InvalidRequest("this model has no experts; ask one that has", "kind");
    this.checkPlace(ids, first, "first");
    return (schedule) => this.routes(ids, first, schedule);
  }

  /** @param {Read.StepPlan} question @returns {Ask} */
  plan(question) {
    const { report } = this.planOfStep(question);
    return () => answered({ info: report, arrays: {} });
  }

  /** @param {Read.Profile} question @returns {Ask} */
  profile({ repeat, ...question }) {
    checkRepeat(repeat, this.limits.repeat);
    const { report, recorded } = this.planOfStep(question);
    const { n_rows: rows, context } = question;
    const { clockMs } = this.engine.info;
    const measure = () => this.recomputer.times(recorded, rows, context);
    return () => dispatchTimes(report.dispatches, { repeat, clockMs }, measure);
  }

  /** @returns {Ask} */
  cache() {
    const { slots, scheduler } = this.engine;
    return () => answered(cacheAnswer(slots, scheduler.texts(), scheduler.runs()));
  }

  /** @param {Read.RecentSteps} question @returns {Ask} */
  steps({ after }) {
    return () => answered(stepsAnswer(this.engine.steps.read(after)));
  }

  // ---- their pieces ------------------------------------------------------------------------

  /** @param {Pick<Read.StepPlan, "n_rows" | "context">} step */
  planOfStep({ n_rows: rows, context }) {
    return planReport(this.planFile, this.recomputer.passes.lookup, { rows, context });
  }

  /** @param {number[]} ids @param {InterventionSchedule} schedule @returns {Pieces<InspectionAnswer>} */
  async *attentionFrom(ids, schedule) {
    const { n_layers: nLayers, n_heads: nHeads } = this.planFile.model;
    const found = yield* this.recomputer.attention(ids, ids.length - 1, 0, ids.length, schedule);
    return { info: {}, arrays: { weights: floats(found, [nLayers, nHeads, ids.length]) } };
  }

  /**
   * @param {number[]} ids
   * @param {number} position
   * @param {InterventionSchedule} schedule
   * @returns {Pieces<InspectionAnswer>}
   */
  async *attentionTo(ids, position, schedule) {
    const { n_layers: nLayers, n_heads: nHeads } = this.planFile.model;
    const most = Math.min(PIECE_ROWS, this.recomputer.passes.mostAttentionRows);
    const found = new Float32Array((ids.length - position) * nLayers * nHeads);
    for (let first = position; first < ids.length; ) {
      const end = schedule.nextChange(first, Math.min(first + most, ids.length));
      const part = yield* this.recomputer.attention(ids.slice(0, end), first, position, 1, schedule);
      found.set(part, (first - position) * nLayers * nHeads);
      first = end;
      yield;
    }
    return { info: {}, arrays: { weights: floats(found, [ids.length - position, nLayers, nHeads]) } };
  }

  /**
   * @param {number[]} ids
   * @param {number} chosen
   * @param {number} top
   * @param {InterventionSchedule} schedule
   * @returns {Pieces<InspectionAnswer>}
   */
  async *lens(ids, chosen, top, schedule) {
    return lensReading(yield* this.recomputer.lens(ids, schedule), chosen, top);
  }

  /**
   * The logits are kept, because a moving slider asks again.
   *
   * @param {number[]} ids
   * @param {Parameters<typeof waterfall>[2]} question
   * @param {InterventionSchedule} schedule
   * @returns {Pieces<InspectionAnswer>}
   */
  async *stages(ids, question, schedule) {
    const asked = `${ids} ${schedule.digestUpTo(ids.length)}`;
    const kept = this.latest?.asked === asked ? this.latest : null;
    const latest = kept ?? { asked, logits: yield* this.logitsAfter(ids, schedule) };
    this.latest = latest;
    return waterfall(latest.logits, ids, question);
  }

  /**
   * @param {number[]} ids
   * @param {number} first
   * @param {number} top
   * @param {InterventionSchedule} schedule
   * @returns {Pieces<InspectionAnswer>}
   */
  async *textLosses(ids, first, top, schedule) {
    const reading = new LossReading(top);
    const most = this.planFile.limits.max_samples;
    for (let at = first; at < ids.length - 1; ) {
      const end = schedule.nextChange(at, Math.min(at + most, ids.length - 1));
      const found = yield* this.recomputer.logits(ids.slice(0, end), at, schedule);
      for (const logits of found) reading.add(logits, ids[++at]);
      yield;
    }
    return reading.answer();
  }

  /**
   * `spans`: the interventions that those of `schedule` are compared with.
   *
   * @param {number[]} ids
   * @param {number} first
   * @param {import("../interventions/encode.js").EncodedSpan[]} spans
   * @param {InterventionSchedule} schedule
   * @returns {Pieces<InspectionAnswer>}
   */
  async *textEffect(ids, first, spans, schedule) {
    const base = yield* this.activations.schedule(spans);
    const reading = new EffectReading();
    const most = this.planFile.limits.max_samples;
    for (let at = first; at < ids.length; ) {
      const end = base.nextChange(at, schedule.nextChange(at, Math.min(at + most, ids.length)));
      const reference = yield* this.recomputer.logits(ids.slice(0, end), at, base);
      const kept = reference.map((row) => row.slice());
      yield;
      const found = yield* this.recomputer.logits(ids.slice(0, end), at, schedule);
      found.forEach((logits, i) => reading.add(kept[i], logits, ids[++at]));
      yield;
    }
    return reading.answer();
  }

  /** @param {number[]} ids @param {InterventionSchedule} schedule @returns {Pieces<Float32Array>} */
  async *logitsAfter(ids, schedule) {
    const [logits] = yield* this.recomputer.logits(ids, ids.length - 1, schedule);
    return logits;
  }

  /**
   * @param {number[]} ids
   * @param {number} first
   * @param {InterventionSchedule} schedule
   * @returns {Pieces<InspectionAnswer>}
   */
  async *routes(ids, first, schedule) {
    const { expert_layers: layers, experts_per_token: n, n_experts } = this.planFile.model;
    /** @type {RoutedRows[]} */
    const parts = [];
    for (let at = first; at < ids.length; ) {
      const end = schedule.nextChange(at, Math.min(at + PIECE_ROWS, ids.length));
      parts.push(yield* this.recomputer.routes(ids.slice(0, end), at, schedule));
      at = end;
      yield;
    }
    const shape = [ids.length - first, layers.length, n];
    /** @param {keyof RoutedRows} name */
    const joined = (name) => parts.flatMap((part) => [...part[name]]);
    return {
      info: { layers: [...layers], n_experts },
      arrays: {
        chosen: ints(joined("chosen"), shape),
        gates: floats(joined("gates"), shape),
        norms: floats(joined("norms"), shape),
      },
    };
  }

  // ---- checks ------------------------------------------------------------------------------

  /** @param {number[]} ids @param {string} param */
  checkIds(ids, param) {
    const last = this.planFile.model.vocab_size - 1;
    const wrong = ids.find((id) => !(id >= 0 && id <= last));
    if (wrong !== undefined)
      throw new InvalidRequest(`${param} should be from 0 to ${last}, but ${wrong} came`, param);
  }

  /** @param {number[]} ids @param {number} position @param {string} [param] */
  checkPlace(ids, position, param = "position") {
    this.checkIds(ids, "ids");
    const { context } = this.planFile.limits;
    if (ids.length > context)
      throw new InvalidRequest(`${ids.length} ids are more than the context of ${context} tokens`, "ids");
    if (!ids.length) throw new InvalidRequest("ids are missing; give those of the run", "ids");
    if (!(position >= 0 && position < ids.length))
      throw new InvalidRequest(
        `${param} should be from 0 to ${ids.length - 1}, but is ${position}`,
        param,
      );
  }

  /** Throw InvalidRequest if an answer of `n` weights per head is too large. @param {number} n */
  checkBytes(n) {
    const { n_layers: nLayers, n_heads: nHeads } = this.planFile.model;
    const bytes = 4 * n * nLayers * nHeads;
    const { answer_bytes: mostBytes } = this.limits;
    if (bytes <= mostBytes) return;
    const most = Math.floor(mostBytes / (4 * nLayers * nHeads));
    throw new InvalidRequest(
      `the answer would have ${bytes.toLocaleString("en")} bytes for the attention of ${n} tokens; ` +
        `ask about ${most} tokens or fewer`,
      "position",
    );
  }

  /** @param {number} top */
  checkTop(top) {
    const { top: most } = this.limits;
    if (!(top >= 1 && top <= most))
      throw new InvalidRequest(`top should be from 1 to ${most}, but is ${top}`, "top");
  }
}

/** An answer that is there at once. @param {InspectionAnswer} answer @returns {Pieces<InspectionAnswer>} */
async function* answered(answer) {
  return answer;
}
