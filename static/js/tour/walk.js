// The followed token, and the engine's answers about it.

import { inspect, tokenize } from "../net/inspect.js";
import { meanScores, placesOf, scoresOf } from "../look/attention/scores.js";
import { Missing, sequenceOf } from "../look/shared/context.js";
import { askOnce } from "../look/shared/answer-cache.js";
import { samplingOf, waterfallOf } from "../look/shared/waterfall.js";
import { measurePeaks, knownPeaks, costsError } from "../look/plan/roofline-costs.js";
import { isPaused } from "../chat/pace.js";
import { startBranch } from "../chat/session.js";
import { spansUpTo } from "../interventions/interventions.js";
import { lastTurn, shownAnswer, state } from "../state.js";
import { view } from "../view.js";
import { wordOf } from "./words.js";

/** Number of tokens over which a head's pattern is averaged. */
const HABIT_TOKENS = 8;
/** Before this position the head types cannot be told apart. */
const MIN_POSITION = 2;
/** Number of candidates requested with the sampler's stages. */
const TOP = 20;

export class Walk {
  /** What was asked, by name. @type {Map<string, Promise<unknown>>} */
  #asked = new Map();
  /** The version of the answer that `writeOn` began, or null. @type {Answer | null} */
  #rest = null;

  /**
   * `index`: number of a generated token of `answer`, at least 1.
   *
   * @param {Answer} answer
   * @param {number} index
   */
  constructor(answer, index) {
    const token = answer.tokens[index];
    const { segment, ids, texts, position } = sequenceOf({ answer, token, index });
    if (!state.hello) throw new Missing("no model is loaded");
    this.answer = answer;
    this.index = index;
    this.token = token;
    this.segment = segment;
    this.ids = ids;
    this.texts = texts;
    /** Position of the row that sampled it, that of the previous token. */
    this.row = position - 1;
    this.hello = state.hello;
    this.word = wordOf(token.text);
    this.before = wordOf(texts[this.row]);
  }

  /** Is the token still on the page, and its model still loaded? */
  get shown() {
    const { model } = state.hello ?? this.hello;
    const { name, dtype } = this.hello.model;
    const same = model.name === name && model.dtype === dtype;
    return same && this.isHere && this.answer.tokens[this.index] === this.token;
  }

  /** Is the answer shown, or its version that `writeOn` began? */
  get isHere() {
    return view.answer === this.answer || view.answer === this.newest;
  }

  /** The answer, or its version that `writeOn` began. */
  get newest() {
    return lastTurn()?.answers.find((answer) => answer === this.#rest) ?? this.answer;
  }

  /**
   * Have the text written again from behind token `index` on, as another version of the answer; nothing
   * if it is being written.
   *
   * @param {number} index
   */
  writeOn(index) {
    if (state.active) return;
    const { id, text, eos, logprob, rank } = this.newest.tokens[index];
    startBranch(this.newest, index, [{ id, text, eos, logprob, rank, candidates: null }]);
    this.#rest = shownAnswer(lastTurn());
  }

  /** Statistics of the row that sampled it, or null. */
  get stats() {
    return this.token.stats ?? null;
  }

  /** The tokenized prompt: `Tokenized` of app/protocol/messages.py. */
  cut() {
    const { messages, prompt, continue_final, tools } = this.segment.originalRequest;
    const what = messages ? { messages, continue_final: !!continue_final, ...(tools && { tools }) } : { prompt };
    return this.#once("cut", () => tokenize(what));
  }

  /** Request fields of a row, computed as in the run. @param {number} position */
  #upTo(position) {
    const ids = this.ids.slice(0, position + 1);
    return { ids, position, ...spansUpTo(this.segment, ids.length) };
  }

  /**
   * Attention weights of the row: {shape: [n_layers, n_heads, row + 1], values}.
   *
   * @param {number} [position]
   * @returns {Promise<FrameArray>}
   */
  attention(position = this.row) {
    /** @type {FromPage.AttentionFrom} */
    const question = { kind: "attention_from", ...this.#upTo(position) };
    const ask = async () => (await askOnce(question)).arrays.weights;
    return this.#once(`attention ${position}`, ask);
  }

  /**
   * What the row's forward pass gave in a layer, and in one of its heads.
   *
   * @param {number} layer
   * @param {number} [head]
   * @returns {Promise<FrameAnswer>}
   */
  forward(layer, head = 0) {
    /** @type {FromPage.ForwardPass} */
    const question = { kind: "forward", ...this.#upTo(this.row), layer, head, top: 1 };
    return this.#once(`forward ${layer} ${head}`, () => askOnce(question));
  }

  /**
   * Head scores at the row (`here`), their mean over it and earlier rows, and the number of rows.
   */
  async habits() {
    const all = [];
    const first = Math.min(this.row, Math.max(MIN_POSITION, this.row - HABIT_TOKENS + 1));
    for (let at = first; at <= this.row; at += 1)
      all.push(scoresOf(await this.attention(at), placesOf(this.ids, at)));
    return { mean: meanScores(all), here: all.at(-1), n: all.length };
  }

  /** The logit lens at the row. */
  lens() {
    const { row, token } = this;
    /** @type {FromPage.LogitLens} */
    const question = { kind: "logit_lens", ...this.#upTo(row), chosen: token.id, top: 1 };
    return this.#once("lens", () => askOnce(question));
  }

  /**
   * The logits of the row after each stage of the sampler, with the run's settings, but for `others`.
   *
   * @param {NamedSettings} [others]
   */
  stages(others = {}) {
    const settings = samplingOf({ ...this.settings, ...others });
    const question = waterfallOf(this, settings, { top: TOP });
    return this.#once(`stages ${JSON.stringify(others)}`, () => askOnce(question));
  }

  get settings() {
    return this.answer.settingsAt(this.token);
  }

  /** The plan of its step: `gpu.plans.plan_report.PlanReport`. */
  plan() {
    /** @type {FromPage.StepPlan} */
    const question = { kind: "plan", n_rows: 1, context: this.row };
    const ask = async () => /** @type {Answers.PlanReport} */ ((await inspect(question)).info);
    return this.#once("plan", ask);
  }

  /**
   * Peak rates of the device. Measuring blocks the engine for about a second, so not during a run.
   */
  async peaks() {
    if (knownPeaks()) return knownPeaks();
    if (state.active && !isPaused(state.active.segment)) throw new Missing("a run is in progress");
    await measurePeaks();
    if (!knownPeaks()) throw new Missing(costsError);
    return knownPeaks();
  }

  /**
   * Ask once per name; a failed question may be asked again.
   *
   * @template T
   * @param {string} name
   * @param {() => Promise<T>} ask
   */
  async #once(name, ask) {
    const asked = /** @type {Promise<T> | undefined} */ (this.#asked.get(name)) ?? ask();
    this.#asked.set(name, asked);
    try {
      return await asked;
    } catch (error) {
      this.#asked.delete(name);
      throw error;
    }
  }
}
