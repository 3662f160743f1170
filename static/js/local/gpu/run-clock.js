// Times at which a run was requested, started and wrote; the timings reported at its end.

export class RunClock {
  constructor() {
    this.asked = performance.now();
    this.began = null;
    this.first = null;
    this.latest = null;
  }

  start() {
    this.began = performance.now();
  }

  sinceStart() {
    return performance.now() - (this.began ?? this.asked);
  }

  /** Milliseconds since the token before, since the request for the first. */
  tokenInterval() {
    const now = performance.now();
    const since = this.latest ?? this.asked;
    this.first ??= now;
    this.latest = now;
    return now - since;
  }

  /** `Timings` of gpu/events.py, from the prompt tokens found, those computed, those written. */
  timings(nReused, nComputed, nWritten) {
    const now = performance.now();
    const began = this.began ?? now;
    const first = this.first ?? now;
    const prompt = first - began;
    const predicted = (this.latest ?? first) - first;
    return {
      cache_n: nReused,
      prompt_n: nComputed,
      prompt_ms: prompt,
      prompt_per_second: (nComputed / Math.max(prompt, 1e-6)) * 1e3,
      predicted_n: nWritten,
      predicted_ms: predicted,
      predicted_per_second: (Math.max(0, nWritten - 1) / Math.max(predicted, 1e-6)) * 1e3,
      queue_ms: began - this.asked,
      ttft_ms: first - this.asked,
      tpot_ms: predicted / Math.max(1, nWritten - 1),
      draft_n: 0,
      draft_n_accepted: 0,
      draft_n_by_position: [],
      draft_n_accepted_by_position: [],
      draft_speedup: 0,
    };
  }
}
