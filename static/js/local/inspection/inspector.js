// @ts-nocheck
// Answers to questions about runs, computed piece by piece between the steps of the runs
// (gpu/engine/inspector.py). The arrays are those of gpu/inspection/requests.py.

import { InvalidRequest, NotInBrowser } from "../shared/errors.js";
import { floats, ints } from "./arrays.js";
import { beamAnswer, checkBeam } from "./beam.js";
import { checkRepeat, dispatchTimes } from "./dispatch-times.js";
import { cacheAnswer, stepsAnswer } from "./engine-state.js";
import { planReport } from "./plan-report.js";
import { LossReading, lensReading } from "./readings.js";
import { waterfall } from "./waterfall.js";

const MAX_TOP = 100;
/** Largest answer about the attention of a text. */
const MAX_ANSWER_BYTES = 64 * 2 ** 20;
/** Most rows of a piece that keeps more than keys and values. */
const PIECE_ROWS = 16;

/** Questions that only the server answers, as the subject of a sentence. */
const REFUSED = {
  embedding: "embeddings are",
  forward: "the vectors inside a layer are",
  peaks: "the speed of the device is",
};

export class Inspector {
  /**
   *   recomputer  Recomputer
   *   activations ActivationCache
   *   engine      LocalEngine: `slots`, `texts()`, `runs()`, `steps` and `info`
   *   plan        plan file
   *   checks      RequestChecks
   *   endIds      ids that end a text
   */
  constructor({ recomputer, activations, engine, plan, checks, endIds }) {
    Object.assign(this, { recomputer, activations, engine, planFile: plan, checks, endIds });
    this.latest = { asked: null, logits: null };
  }

  /**
   * Return an async generator of the answer, {info, arrays: {name: {shape, values}}}, which yields
   * after each piece of work. Throws what makes it unanswerable.
   */
  start(question) {
    const { kind } = question;
    if (kind in REFUSED) throw new NotInBrowser(REFUSED[kind]);
    const ask = this[kind](question);
    return this.under(this.checks.interventions.encodeSpans(question.reached ?? []), ask);
  }

  /** Answer with the interventions of `spans`, [{first, encoded}]: `ask(schedule)`. */
  async *under(spans, ask) {
    return yield* ask(yield* this.activations.schedule(spans));
  }

  // ---- one method for each kind of question, which checks it and returns how it is answered ----

  attention_from({ ids, position }) {
    this.checkPlace(ids, position);
    this.checkBytes(position + 1);
    return (schedule) => this.attentionFrom(ids.slice(0, position + 1), schedule);
  }

  attention_to({ ids, position }) {
    this.checkPlace(ids, position);
    this.checkBytes(ids.length - position);
    return (schedule) => this.attentionTo(ids, position, schedule);
  }

  logit_lens({ ids, position, chosen, top }) {
    this.checkPlace(ids, position);
    this.checkIds([chosen], "chosen");
    checkTop(top);
    return (schedule) => this.lens(ids.slice(0, position + 1), chosen, top, schedule);
  }

  waterfall(question) {
    const { ids, position, params, index, also, top, grammar } = question;
    this.checkPlace(ids, position);
    this.checkIds(also, "also");
    checkTop(top);
    if (also.length > MAX_TOP)
      throw new InvalidRequest(`also has ${also.length} ids, but ${MAX_TOP} are the most`, "also");
    if (grammar) throw new NotInBrowser("grammars are", "grammar");
    this.checks.checkParams(params);
    this.checks.checkBiasedIds(params);
    if (params.seed === null)
      throw new InvalidRequest("seed should be that of the run; without it there is no draw", "seed");
    const most = 2 ** 32 - 1 - params.first_index;
    if (!(index >= 0 && index <= most))
      throw new InvalidRequest(`index should be from 0 to ${most}, but is ${index}`, "index");
    const seeded = { ...question, params: { ...params, seed: BigInt(params.seed) } };
    return (schedule) => this.stages(ids.slice(0, position + 1), seeded, schedule);
  }

  losses({ ids, first, top }) {
    this.checkPlace(ids, 0);
    checkTop(top);
    if (ids.length < 2)
      throw new InvalidRequest("one token has nothing before it; give two ids", "ids");
    this.checkPlace(ids.slice(0, -1), first, "first");
    return (schedule) => this.textLosses(ids, first, top, schedule);
  }

  beam(question) {
    this.checkPlace(question.ids, 0);
    checkBeam(question, this.planFile.limits.context);
    return (schedule) =>
      beamAnswer(question, (ids) => this.logitsAfter(ids, schedule), this.endIds);
  }

  routing({ ids, first }) {
    if (!this.planFile.model.n_experts)
      throw new InvalidRequest("this model has no experts; ask one that has", "kind");
    this.checkPlace(ids, first, "first");
    return (schedule) => this.routes(ids, first, schedule);
  }

  plan(question) {
    const { report } = this.planOfStep(question);
    return () => answered({ info: report, arrays: {} });
  }

  profile({ repeat, ...question }) {
    checkRepeat(repeat);
    const { report, recorded } = this.planOfStep(question);
    const { n_rows: rows, context } = question;
    const { clockMs } = this.engine.info;
    const measure = () => this.recomputer.times(recorded, rows, context);
    return () => dispatchTimes(report.dispatches, { repeat, clockMs }, measure);
  }

  cache() {
    const { slots } = this.engine;
    return () => answered(cacheAnswer(slots, this.engine.texts(), this.engine.runs()));
  }

  steps({ after }) {
    return () => answered(stepsAnswer(this.engine.steps.read(after)));
  }

  // ---- their pieces ------------------------------------------------------------------------

  planOfStep({ n_rows: rows, context }) {
    return planReport(this.planFile, this.recomputer.passes.lookup, { rows, context });
  }

  async *attentionFrom(ids, schedule) {
    const { n_layers: nLayers, n_heads: nHeads } = this.planFile.model;
    const found = yield* this.recomputer.attention(ids, ids.length - 1, 0, ids.length, schedule);
    return { info: {}, arrays: { weights: floats(found, [nLayers, nHeads, ids.length]) } };
  }

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

  async *lens(ids, chosen, top, schedule) {
    return lensReading(yield* this.recomputer.lens(ids, schedule), chosen, top);
  }

  /** The logits are kept, because a moving slider asks again. */
  async *stages(ids, question, schedule) {
    const asked = `${ids} ${schedule.digestUpTo(ids.length)}`;
    if (this.latest.asked !== asked)
      this.latest = { asked, logits: yield* this.logitsAfter(ids, schedule) };
    return waterfall(this.latest.logits, ids, question);
  }

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

  async *logitsAfter(ids, schedule) {
    const [logits] = yield* this.recomputer.logits(ids, ids.length - 1, schedule);
    return logits;
  }

  async *routes(ids, first, schedule) {
    const { expert_layers: layers, experts_per_token: n, n_experts } = this.planFile.model;
    const parts = [];
    for (let at = first; at < ids.length; ) {
      const end = schedule.nextChange(at, Math.min(at + PIECE_ROWS, ids.length));
      parts.push(yield* this.recomputer.routes(ids.slice(0, end), at, schedule));
      at = end;
      yield;
    }
    const shape = [ids.length - first, layers.length, n];
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

  checkIds(ids, param) {
    const last = this.planFile.model.vocab_size - 1;
    const wrong = ids.find((id) => !(id >= 0 && id <= last));
    if (wrong !== undefined)
      throw new InvalidRequest(`${param} should be from 0 to ${last}, but ${wrong} came`, param);
  }

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

  /** Throw InvalidRequest if an answer of `n` weights per head is too large. */
  checkBytes(n) {
    const { n_layers: nLayers, n_heads: nHeads } = this.planFile.model;
    const bytes = 4 * n * nLayers * nHeads;
    if (bytes <= MAX_ANSWER_BYTES) return;
    const most = Math.floor(MAX_ANSWER_BYTES / (4 * nLayers * nHeads));
    throw new InvalidRequest(
      `the answer would have ${bytes.toLocaleString("en")} bytes for the attention of ${n} tokens; ` +
        `ask about ${most} tokens or fewer`,
      "position",
    );
  }
}

function checkTop(top) {
  if (!(top >= 1 && top <= MAX_TOP))
    throw new InvalidRequest(`top should be from 1 to ${MAX_TOP}, but is ${top}`, "top");
}

/** An answer that is there at once. */
async function* answered(answer) {
  return answer;
}
