// Updates that wait, because a slider sends more of them than there are tokens
// (app/ws/incoming.py).

/** The first update acts at once; those that follow within `periodMs` act together. */
export class UpdateMerger {
  /**
   * `act(id, updates)` applies updates of a generation together.
   *
   * @param {(id: string, updates: Read.Update[]) => void} act
   * @param {number} periodMs
   */
  constructor(act, periodMs) {
    this.act = act;
    this.periodMs = periodMs;
    /** @type {Map<string, Read.Update[]>} */
    this.waiting = new Map();
    this.freeAt = 0;
    this.timer = 0;
  }

  /** Keep an update until it is due. @param {Read.Update} update */
  add(update) {
    const { id } = update;
    this.waiting.set(id, [...(this.waiting.get(id) ?? []), update]);
    const left = this.freeAt - performance.now();
    if (left <= 0) this.flush();
    else this.timer ||= setTimeout(() => this.flush(), left);
  }

  /** Apply all that wait; also before a message of another kind. */
  flush() {
    clearTimeout(this.timer);
    this.timer = 0;
    if (!this.waiting.size) return;
    this.freeAt = performance.now() + this.periodMs;
    const waiting = [...this.waiting];
    this.waiting.clear();
    for (const [id, updates] of waiting) this.act(id, updates);
  }
}

/**
 * Return one update for several of a generation: the latest value of each, and all steps.
 *
 * @param {Read.Update[]} updates
 */
export function merged(updates) {
  const given = updates.flatMap(({ params }) =>
    Object.entries(params).filter(([, value]) => value !== null),
  );
  const steps = updates.reduce((sum, each) => sum + each.steps, 0);
  const pace = updates.findLast((each) => each.pace !== undefined)?.pace;
  const isPaced = steps > 0 || pace !== undefined;
  const mayStep = pace === undefined || pace === 0; // others write on
  return {
    params: Object.fromEntries(given),
    capture: updates.findLast(({ capture }) => capture !== null)?.capture ?? null,
    reach: updates.findLast(({ reach }) => reach !== null)?.reach ?? null,
    pace: isPaced ? { ...(pace !== undefined && { pace }), steps: mayStep ? steps : 0 } : null,
  };
}
