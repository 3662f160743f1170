// Events of one run (those of gpu/events.py): its place, its prompt, its text and what was measured.

import { layerTimes } from "./results.js";
import { RunClock } from "./run-clock.js";
import { StopMatcher } from "../text/stop-strings.js";

/**
 * @typedef {import("./results.js").DrawnSample} DrawnSample
 * @typedef {import("./results.js").StepResult} StepResult
 */

/** A row of a step, and its position. @typedef {[row: number, position: number]} RowPlace */

export class RunEvents {
  /**
   * `send` gets the events. Text that may begin a stop string is held back.
   *
   * @param {number[]} prompt
   * @param {string[]} stop
   * @param {TokenTexts} text
   * @param {Exported.PlanLimits} limits
   * @param {(event: EngineEvent) => void} send
   */
  constructor(prompt, stop, text, limits, send) {
    this.prompt = prompt;
    this.text = text;
    this.limits = limits;
    this.send = send;
    this.place = 0; // in the queue, as it was sent
    this.nPromptSent = 0; // tokens of the prompt in `prefill` events, or found
    this.stream = text.decodeStream(prompt);
    /** @type {StopMatcher<ToPage.Token>} */
    this.matcher = new StopMatcher(stop);
    this.clock = new RunClock();
    /** Of the last step whose layers were timed. @type {import("./results.js").LayerTimes | null} */
    this.layerTimes = null;
  }

  /** @param {number} position @param {SamplerParams} params @param {boolean} capture @param {number} run */
  accepted(position, params, capture, run) {
    this.place = position;
    this.send({
      type: "accepted",
      prompt: this.prompt.map((id) => ({ id, text: this.text.piece(id) })),
      params: toldParams(params),
      capture,
      position,
      context: this.limits.context,
      texts: [],
      dropped: [],
      run,
    });
  }

  /** Send the place of a waiting run, if it changed. @param {number} position */
  movedTo(position) {
    if (position === this.place) return;
    this.place = position;
    this.send({ type: "queued", position });
  }

  /**
   * Send that ids `first` … `first + n − 1` were computed in rows `row` … of a step. Those of the prompt are
   * sent once.
   *
   * @param {{first: number, n: number, row: number}} chunk
   * @param {StepResult} result
   * @param {number} reused
   */
  prefilled({ first, n, row }, result, reused) {
    const from = Math.max(first, this.nPromptSent);
    const end = Math.min(first + n, this.prompt.length);
    if (from >= end) return;
    this.nPromptSent = end;
    /** @type {RowPlace[]} */
    const rows = Array.from({ length: end - from }, (_, i) => [row + from - first + i, from + i]);
    this.send({
      type: "prefill",
      done: end,
      total: this.prompt.length,
      reused,
      ms: this.clock.sinceStart(),
      gpu_ms: result.gpu,
      kv_blocks: this.#blocksFor(end),
      stats: this.#stats(rows, end - 1, result) ?? [],
      experts: null,
    });
  }

  /** Send what token `index` will be drawn from. @param {DrawnSample} sample @param {number} index */
  preview(sample, index) {
    const { n_kept, mass } = sample;
    this.send({ type: "preview", index, candidates: this.#named(sample), n_kept, mass });
  }

  /**
   * The event of a token, without its text.
   *
   * @param {DrawnSample} sample
   * @param {{index: number, position: number, row: number, eos: boolean}} place
   * @param {StepResult} result
   * @returns {ToPage.Token}
   */
  token(sample, { index, position, row, eos }, result) {
    const { id, logprob, probability, rank, n_kept, draw, mass } = sample;
    const stats = this.#stats([[row, position]], position, result);
    return {
      type: "token",
      index,
      id,
      text: "",
      logprob,
      probability,
      rank,
      n_kept,
      draw,
      mass,
      candidates: this.#named(sample),
      times: {
        ...this.clock.tokenTimes(),
        gpu: result.gpu,
        encode: result.encode,
        wait: result.wait,
        read: result.read,
      },
      kv_blocks: this.#blocksFor(position + 1),
      stats: stats && stats[0],
      eos,
      experts: null,
      draft: null,
    };
  }

  /**
   * Send a token with its text, and those held back that are decided now; return whether a stop string ends
   * the text.
   *
   * @param {ToPage.Token} token
   * @param {boolean} isLast
   */
  show(token, isLast) {
    const text = this.stream.push(token.id) + (isLast ? this.stream.flush() : "");
    const { released, stopped } = this.matcher.push(token, text);
    this.#release(released);
    return stopped;
  }

  /** Send the tokens that were held back: the text ends without a stop string. */
  flush() {
    this.#release(this.matcher.flush());
  }

  /** @param {[ToPage.Token, string][]} tokens */
  #release(tokens) {
    for (const [token, text] of tokens) this.send({ ...token, text });
  }

  /** @param {DrawnSample} sample */
  #named({ candidates }) {
    return candidates.map((each) => ({ ...each, text: this.text.piece(each.id) }));
  }

  /**
   * The measurements of rows of a step whose last token is at `last`; null: the run did not capture.
   *
   * @param {RowPlace[]} rows
   * @param {number} last
   * @param {StepResult} result
   */
  #stats(rows, last, result) {
    const { captured, nRows } = result;
    if (!captured) return null;
    this.layerTimes = layerTimes(result, last) ?? this.layerTimes;
    return rows.map(([row, position]) => captured.row(row, position, nRows, this.layerTimes));
  }

  /** @param {number} nTokens */
  #blocksFor(nTokens) {
    return Math.ceil(nTokens / this.limits.block_tokens);
  }
}

/** Sampling parameters as the server sends them: the seed is a number. @param {SamplerParams} params */
export const toldParams = (params) => ({ ...params, seed: Number(params.seed) });
