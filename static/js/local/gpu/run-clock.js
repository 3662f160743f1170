// Times at which a run was requested, started and wrote; the timings reported at its end.

export class RunClock {
  asked = performance.now();
  /** @type {number | null} */
  began = null;
  /** @type {number | null} */
  first = null;
  /** @type {number | null} */
  latest = null;
  /** How long the run waited because of its pace: before its first token, since the latest, in all. */
  pacedBeforeFirst = 0;
  pacedSinceLatest = 0;
  paced = 0;
  /** @type {number | null} */
  waitsSince = null;

  /** The run waits because of its pace from now on, if it does not already. */
  wait() {
    this.waitsSince ??= performance.now();
  }

  /** It waits no longer, since the time `at` if that has passed. */
  goOn(at = Infinity) {
    if (this.waitsSince === null) return;
    const ms = Math.max(0, Math.min(performance.now(), at) - this.waitsSince);
    this.waitsSince = null;
    this.paced += ms;
    this.pacedSinceLatest += ms;
    if (this.first === null) this.pacedBeforeFirst += ms;
  }

  start() {
    this.began = performance.now();
  }

  sinceStart() {
    return performance.now() - (this.began ?? this.asked);
  }

  /**
   * `interval`: milliseconds since the token before, since the request for the first; `paced`: how
   * many of them the run waited, if it did.
   */
  tokenTimes() {
    const now = performance.now();
    const since = this.latest ?? this.asked;
    this.first ??= now;
    this.latest = now;
    const paced = this.pacedSinceLatest;
    this.pacedSinceLatest = 0;
    return { interval: now - since, ...(paced && { paced }) };
  }

  /**
   * From the prompt tokens found, those computed, those written.
   *
   * @param {number} nReused
   * @param {number} nComputed
   * @param {number} nWritten
   * @returns {ToPage.Timings}
   */
  timings(nReused, nComputed, nWritten) {
    this.goOn(); // a run may end while it waits
    const now = performance.now();
    const began = this.began ?? now;
    const first = this.first ?? now;
    const before = this.pacedBeforeFirst;
    const after = this.paced - before - this.pacedSinceLatest;
    const prompt = first - began - before;
    const predicted = this.latest === null ? 0 : this.latest - first - after;
    return {
      cache_n: nReused,
      cache_moved_n: 0,
      prompt_n: nComputed,
      prompt_ms: prompt,
      prompt_per_second: (nComputed / Math.max(prompt, 1e-6)) * 1e3,
      predicted_n: nWritten,
      predicted_ms: predicted,
      predicted_per_second: (Math.max(0, nWritten - 1) / Math.max(predicted, 1e-6)) * 1e3,
      queue_ms: began - this.asked,
      ttft_ms: first - this.asked - before,
      tpot_ms: predicted / Math.max(1, nWritten - 1),
      draft_n: 0,
      draft_n_accepted: 0,
      draft_n_by_position: [],
      draft_n_accepted_by_position: [],
      draft_speedup: 0,
      draft_ms: 0,
      paced_ms: this.paced,
    };
  }
}
