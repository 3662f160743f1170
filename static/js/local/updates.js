// Updates that wait, because a slider sends more of them than there are tokens
// (app/ws/incoming.py).

/** Updates act at most this often. */
const UPDATE_MS = 20;

/** The first update acts at once; those that follow within `UPDATE_MS` act together. */
export class UpdateMerger {
  /** `act(id, {params, capture})` applies the merged updates of a generation. */
  constructor(act) {
    this.act = act;
    this.waiting = new Map();
    this.freeAt = 0;
    this.timer = 0;
  }

  /** Keep an update until it is due. */
  add({ id, params, capture }) {
    const given = Object.entries(params).filter(([, value]) => value !== null);
    const merged = this.waiting.get(id) ?? { params: {}, capture: null };
    this.waiting.set(id, {
      params: { ...merged.params, ...Object.fromEntries(given) },
      capture: capture ?? merged.capture,
    });
    const left = this.freeAt - performance.now();
    if (left <= 0) this.flush();
    else this.timer ||= setTimeout(() => this.flush(), left);
  }

  /** Apply all that wait; also before a message of another kind. */
  flush() {
    clearTimeout(this.timer);
    this.timer = 0;
    if (!this.waiting.size) return;
    this.freeAt = performance.now() + UPDATE_MS;
    const waiting = [...this.waiting];
    this.waiting.clear();
    for (const [id, changes] of waiting) this.act(id, changes);
  }
}
