// A replay as a film: every event at its time, and the conversation as it was after any of them.
//
// A film is a line of steps. A step begins a generation (its turn, its answer) or is one of its
// events. Going on takes the next steps; going back writes one answer again from its beginning.
// Nothing here touches the page.

import { Answer } from "./answer.js";
import { clamp } from "./dom.js";
import { ExpertUse } from "./expertuse.js";
import { isToken } from "./replayfile.js";

/** Between two generations, ms. */
const PAUSE_MS = 1000;

/**
 * One generation of the film.
 *
 *   take    its answer's place: see `Take`
 *   kept    the file's segment
 *   first   number of its first step (the one that begins it); `end` is one past its last
 *   tokens  numbers of the steps that are its tokens
 *
 * @typedef {{take: Take, kept: object, first: number, end: number, tokens: number[]}} Reel
 *
 * One version of an answer: `turn` is its number, `version` its number among the turn's answers.
 *
 * @typedef {{turn: number, version: number, answer: Answer, reels: Reel[]}} Take
 *
 * `event` is null for the step that begins a reel. `at`: ms since the film began.
 *
 * @typedef {{reel: Reel, event: object | null, at: number}} Step
 */

export class Film {
  /** `replay`: what `open` of replayfile.js gives. */
  constructor({ hello, turns }) {
    this.hello = hello;
    /** The conversation as it is now: turns of state.js. */
    this.turns = [];
    /** How many steps were taken. */
    this.cursor = 0;
    /** @type {Step[]} */
    this.steps = [];
    /** @type {Reel[]} */
    this.reels = [];
    /** Answers written anew while the film is on show: turn's number → [Answer]. */
    this.fresh = new Map();
    this.all = turns.map((turn) => (turn.role === "user" ? turn : { ...turn, answers: [] }));
    turns.forEach((turn, i) => turn.answers?.forEach((answer, v) => this.#lay(answer, i, v)));
    /** For each token of the film, one past the number of its step. */
    this.tokens = this.reels.flatMap(({ tokens }) => tokens.map((step) => step + 1));
  }

  /** Add an answer's generations to the line. */
  #lay({ segments }, turn, version) {
    const take = { turn, version, answer: new Answer(), reels: [] };
    for (const kept of segments) {
      const began = this.steps.length ? this.steps.at(-1).at + PAUSE_MS : 0;
      const reel = { take, kept, first: this.steps.length, end: 0, tokens: [] };
      take.reels.push(reel);
      this.reels.push(reel);
      this.steps.push({ reel, event: null, at: began });
      let last = began;
      for (const each of kept.events ?? []) {
        if (isToken(each)) reel.tokens.push(this.steps.length);
        last = Math.max(last, began + each.at);
        this.steps.push({ reel, event: eventOf(each), at: last });
      }
      reel.end = this.steps.length;
    }
  }

  get length() {
    return this.tokens.length;
  }

  /** How many tokens of the film are written now. */
  get position() {
    return countUpTo(this.tokens, this.cursor);
  }

  /** ms since the film began. */
  get now() {
    return this.cursor ? this.steps[this.cursor - 1].at : 0;
  }

  get atEnd() {
    return this.cursor === this.steps.length;
  }

  /** The generation that is written now, or was last. */
  get reel() {
    return this.steps[Math.max(0, this.cursor - 1)].reel;
  }

  /** Is it in the middle of being written? */
  get writing() {
    return this.cursor < this.reel.end;
  }

  /** Where the step after the last one until `ms` is. */
  cursorAt(ms) {
    let cursor = this.cursor;
    while (cursor < this.steps.length && this.steps[cursor].at <= ms) cursor += 1;
    return cursor;
  }

  /** Show `n` tokens, and what was told right after the last of them. */
  seekToken(n) {
    const wanted = clamp(n, 0, this.length);
    if (wanted === this.length) return this.seek(this.steps.length);
    let cursor = wanted ? this.tokens[wanted - 1] : 1;
    const { end } = this.steps[cursor - 1].reel;
    while (wanted && cursor < end && this.steps[cursor].event.type !== "token") cursor += 1;
    return this.seek(cursor);
  }

  /** Take steps until `cursor`, or go back to it. At least the first generation has begun. */
  seek(cursor) {
    const wanted = clamp(cursor, 1, this.steps.length);
    if (wanted < this.cursor) this.#rewind(this.steps[wanted - 1].reel.take);
    while (this.cursor < wanted) this.#take(this.steps[this.cursor]);
    this.#showTake(this.reel.take);
  }

  /** Back to before an answer was begun. */
  #rewind({ turn, reels }) {
    this.turns.length = turn + 1;
    this.cursor = reels[0].first;
  }

  #take({ reel, event }) {
    if (event === null) this.#begin(reel);
    else {
      const { segment } = reel.take.answer;
      reel.take.answer.take(segment, segment.seq + 1, event);
    }
    this.cursor += 1;
  }

  #begin({ take, kept, first }) {
    while (this.turns.length <= take.turn) this.turns.push(this.all[this.turns.length]);
    if (first === take.reels[0].first) blank(take.answer);
    this.#showTake(take);
    const branch = kept.branch ?? null;
    const parent = branch && this.#parentOf(take, branch);
    const segment = take.answer.begin(`replay-${first}`, kept.request, branch, parent);
    segment.preparedMs = kept.prepared ?? null;
    segment.sentAt = kept.events?.some(({ came }) => came !== undefined) ? 0 : null;
    if (kept.text === undefined) return;
    take.answer.lose(segment, kept.text);
    Object.assign(segment, { params: kept.request.params, capture: kept.request.capture });
  }

  /** The answer that a branch parted from: an earlier version of the same turn. */
  #parentOf({ turn }, { of }) {
    return this.reels.find(({ take }) => take.turn === turn && take.version === of).take.answer;
  }

  /** The turn's versions are those begun by now, and those written anew; this one is shown. */
  #showTake({ turn, version }) {
    const takes = this.reels.map(({ take }) => take).filter((take) => take.turn === turn);
    const begun = [...new Set(takes)].filter((take) => take.version <= version);
    const answers = [...begun.map(({ answer }) => answer), ...(this.fresh.get(turn) ?? [])];
    Object.assign(this.turns[turn], { answers, shown: version });
  }

  /** Show an answer written anew beside that of the film. */
  addFresh({ turn }, answer) {
    this.fresh.set(turn, [...(this.fresh.get(turn) ?? []), answer]);
    const { answers } = this.turns[turn];
    answers.push(answer);
    this.turns[turn].shown = answers.length - 1;
  }
}

/** Make an answer what it was before it was begun. */
function blank(answer) {
  const edition = answer.edition + 1;
  Object.assign(answer, { segments: [], tokens: [], marks: [], use: new ExpertUse(), edition });
}

/** An event as the page has it, with the times that the clock of another page told. */
function eventOf({ event, at, came, drawn }) {
  const own = { ...event, passedAt: at };
  if (came !== undefined) own.receivedAt = came;
  if (drawn !== undefined) own.drawnAt = drawn;
  return own;
}

/** How many of the rising `values` are at most `bound`. */
function countUpTo(values, bound) {
  let [low, high] = [0, values.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= bound) low = middle + 1;
    else high = middle;
  }
  return low;
}
