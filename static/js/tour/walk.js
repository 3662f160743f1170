// The token that is followed, and what the engine says about it when it is asked.

import { inspect, tokenize } from "../inspect.js";
import { meanScores, placesOf, scoresOf } from "../look/attentionscores.js";
import { Missing, sequenceOf } from "../look/context.js";
import { askOnce } from "../look/kept.js";
import { measurePeaks, peaksNow, fault } from "../look/roofcosts.js";
import { SLIDERS } from "../params.js";
import { asTheyRan } from "../reach.js";
import { state } from "../state.js";
import { view } from "../view.js";
import { wordOf } from "./words.js";

/** A habit is what a head did at so many tokens. */
export const HABIT_TOKENS = 8;
/** The places of heads are not apart before this position. */
const LEAST_POSITION = 2;
/** So many of the most likely tokens come with the sampler's stages. */
const TOP = 20;

export class Walk {
  #asked = new Map();

  /** `index`: number of a written token in `answer`, from 1 on. */
  constructor(answer, index) {
    const token = answer.tokens[index];
    const { segment, ids, texts, position } = sequenceOf({ answer, token, index });
    Object.assign(this, { answer, index, token, segment, ids, texts });
    /** It was chosen by the row of the token before it. */
    this.row = position - 1;
    this.hello = state.hello;
    this.word = wordOf(token.text);
    this.before = wordOf(texts[this.row]);
  }

  /** Is the token still on the page, and the model still the one that wrote it? */
  get shown() {
    const { model } = state.hello ?? this.hello;
    const same = ["name", "dtype"].every((key) => model[key] === this.hello.model[key]);
    return same && view.answer === this.answer && this.answer.tokens[this.index] === this.token;
  }

  /** Statistics of the row that chose it, or null. */
  get stats() {
    return this.token.stats ?? null;
  }

  /** The prompt as the tokenizer cuts it: `Tokenized` of app/protocol.py. */
  cut() {
    const { messages, prompt, continue_final } = this.segment.asked;
    const what = messages ? { messages, continue_final: !!continue_final } : { prompt };
    return this.#once("cut", () => tokenize(what));
  }

  /** A row of the run, as it ran, in a question. */
  #upTo(position) {
    const ids = this.ids.slice(0, position + 1);
    return { ids, position, ...asTheyRan(this.segment, ids.length) };
  }

  /** Attention weights of the row: {shape: [n_layers, n_heads, row + 1], values}. */
  attention(position = this.row) {
    const question = { kind: "attention_from", ...this.#upTo(position) };
    return this.#once(`attention ${position}`, async () => (await askOnce(question)).arrays.weights);
  }

  /** Scores of all heads at the row, their mean over it and those before it, and over how many. */
  async habits() {
    const all = [];
    const first = Math.min(this.row, Math.max(LEAST_POSITION, this.row - HABIT_TOKENS + 1));
    for (let at = first; at <= this.row; at += 1)
      all.push(scoresOf(await this.attention(at), placesOf(this.ids, at)));
    return { mean: meanScores(all), here: all.at(-1), n: all.length };
  }

  /** The logit lens at the row. */
  lens() {
    const { row, token } = this;
    const question = { kind: "logit_lens", ...this.#upTo(row), chosen: token.id, top: 1 };
    return this.#once("lens", () => askOnce(question));
  }

  /** What the run's settings made of the row's logits, stage by stage. */
  stages() {
    const { row, token, segment } = this;
    const used = this.settings;
    const params = Object.fromEntries(SLIDERS.map(({ name }) => [name, used[name]]));
    // A string of digits: numbers have 53 bits here and seeds 64.
    params.seed = String(segment.request?.params.seed ?? segment.params.seed);
    const question = { kind: "waterfall", ...this.#upTo(row), params, index: token.number, top: TOP };
    return this.#once("stages", () => askOnce(question));
  }

  get settings() {
    return this.answer.settingsAt(this.token);
  }

  /** What its step ran on the device: `gpu.plans.listed.ListedPlan`. */
  plan() {
    const question = { kind: "plan", n_rows: 1, context: this.row };
    return this.#once("plan", async () => (await inspect(question)).info);
  }

  /** What the device can do at most; half a second in which no run goes on, so not while one does. */
  async peaks() {
    if (peaksNow()) return peaksNow();
    if (state.active) throw new Missing("a run is being written");
    await measurePeaks();
    if (!peaksNow()) throw new Missing(fault);
    return peaksNow();
  }

  /** Ask once; what failed may be asked again. */
  async #once(name, ask) {
    if (!this.#asked.has(name)) this.#asked.set(name, ask());
    try {
      return await this.#asked.get(name);
    } catch (error) {
      this.#asked.delete(name);
      throw error;
    }
  }
}
