// Playback of a replay: the conversation as it was after any of its events.
//
// A playback is a list of steps. A step begins a generation or is one of its events. Seeking
// forward applies the next steps; seeking back rebuilds one answer from its first step. Nothing
// here touches the page.

import { Answer } from "../turns/answer.js";
import { clamp } from "../ui/dom.js";
import { ExpertUse } from "../turns/expert-use.js";
import { isToken } from "./file.js";

/** Pause between two generations, ms. */
const PAUSE_MS = 1000;

/**
 * One generation of the playback.
 *
 *   answerVersion  the version of an answer that it belongs to
 *   saved          segment of the file
 *   first, end     index of its first step (the one that begins it), and one past its last
 *   tokens         indexes of the steps that are its tokens
 *
 * @typedef {{answerVersion: AnswerVersion, saved: ReplayFile.Segment, first: number, end: number,
 *   tokens: number[]}} Recording
 *
 * One version of an answer: `turn` is the index of its turn, `version` that among its answers.
 *
 * @typedef {{turn: number, version: number, answer: Answer,
 *   recordings: Recording[]}} AnswerVersion
 *
 * `event`: null for the step that begins a recording. `at`: ms since the playback began.
 *
 * @typedef {{recording: Recording, event: RunEvent | null, at: number}} Step
 */

export class Playback {
  /** `replay`: result of `open` in replay/file.js. @param {ReplayFile.Replay} replay */
  constructor({ hello, turns }) {
    this.hello = hello;
    /** The conversation at the current step: turns of state.js. @type {Turn[]} */
    this.turns = [];
    /** Number of applied steps. */
    this.cursor = 0;
    /** @type {Step[]} */
    this.steps = [];
    /** @type {Recording[]} */
    this.recordings = [];
    /**
     * Answers that were rerun during this playback: index of the turn → answers.
     *
     * @type {Map<number, Answer[]>}
     */
    this.reruns = new Map();
    /** @type {Turn[]} */
    this.all = turns.map((turn) => (turn.role === "user" ? turn : { ...turn, answers: [] }));
    turns.forEach((each, turn) => {
      if (each.role === "model")
        each.answers.forEach((answer, version) => this.#addRecordings(answer, turn, version));
    });
    /** Cursor right after each token of the playback. */
    this.tokens = this.recordings.flatMap(({ tokens }) => tokens.map((step) => step + 1));
  }

  /**
   * Append the steps of an answer's generations.
   *
   * @param {ReplayFile.Answer} answer
   * @param {number} turn
   * @param {number} version
   */
  #addRecordings({ segments }, turn, version) {
    /** @type {AnswerVersion} */
    const answerVersion = { turn, version, answer: new Answer(), recordings: [] };
    for (const saved of segments) {
      const before = this.steps.at(-1);
      const began = before ? before.at + PAUSE_MS : 0;
      /** @type {Recording} */
      const recording = { answerVersion, saved, first: this.steps.length, end: 0, tokens: [] };
      answerVersion.recordings.push(recording);
      this.recordings.push(recording);
      this.steps.push({ recording, event: null, at: began });
      let last = began;
      for (const each of saved.events ?? []) {
        if (isToken(each)) recording.tokens.push(this.steps.length);
        last = Math.max(last, began + each.at);
        this.steps.push({ recording, event: timedEvent(each), at: last });
      }
      recording.end = this.steps.length;
    }
  }

  get length() {
    return this.tokens.length;
  }

  /** Number of tokens written so far. */
  get position() {
    return upperBound(this.tokens, this.cursor);
  }

  /** Time of the current step, ms since the playback began. */
  get now() {
    return this.cursor ? this.steps[this.cursor - 1].at : 0;
  }

  get atEnd() {
    return this.cursor === this.steps.length;
  }

  /** The current generation, or the last one. */
  get recording() {
    return this.steps[Math.max(0, this.cursor - 1)].recording;
  }

  /** Is the current generation unfinished? */
  get writing() {
    return this.cursor < this.recording.end;
  }

  /** Return the cursor right after the last step that is due at `ms`. @param {number} ms */
  cursorAt(ms) {
    let cursor = this.cursor;
    while (cursor < this.steps.length && this.steps[cursor].at <= ms) cursor += 1;
    return cursor;
  }

  /** Seek to `n` tokens, and to the events right after the last of them. @param {number} n */
  seekToken(n) {
    const wanted = clamp(n, 0, this.length);
    if (wanted === this.length) return this.seek(this.steps.length);
    let cursor = wanted ? this.tokens[wanted - 1] : 1;
    const { end } = this.steps[cursor - 1].recording;
    while (wanted && cursor < end && this.steps[cursor].event?.type !== "token") cursor += 1;
    return this.seek(cursor);
  }

  /**
   * Seek to `cursor`, forward or back; at least the first step is always applied.
   *
   * @param {number} cursor
   */
  seek(cursor) {
    const wanted = clamp(cursor, 1, this.steps.length);
    if (wanted < this.cursor) this.#rewind(this.steps[wanted - 1].recording.answerVersion);
    while (this.cursor < wanted) this.#applyStep(this.steps[this.cursor]);
    this.#showVersion(this.recording.answerVersion);
  }

  /** Go back to before an answer began. @param {AnswerVersion} answerVersion */
  #rewind({ turn, recordings }) {
    this.turns.length = turn + 1;
    this.cursor = recordings[0].first;
  }

  /** @param {Step} step */
  #applyStep({ recording, event }) {
    if (event === null) this.#begin(recording);
    else {
      const { answer } = recording.answerVersion;
      if (answer.segment) answer.applyEvent(answer.segment, answer.segment.seq + 1, event);
    }
    this.cursor += 1;
  }

  /** @param {Recording} recording */
  #begin({ answerVersion, saved, first }) {
    while (this.turns.length <= answerVersion.turn) this.turns.push(this.all[this.turns.length]);
    if (first === answerVersion.recordings[0].first) reset(answerVersion.answer);
    this.#showVersion(answerVersion);
    const branch = saved.branch ?? null;
    const parent = branch && this.#parentOf(answerVersion, branch);
    const segment = answerVersion.answer.begin(`replay-${first}`, saved.request, branch, parent);
    segment.preparedMs = saved.prepared ?? null;
    segment.sentAt = saved.events?.some(({ came }) => came !== undefined) ? 0 : null;
    if (saved.text === undefined) return;
    answerVersion.answer.lose(segment, saved.text);
    segment.edited = saved.edited ?? false;
    Object.assign(segment, { params: saved.request.params, capture: saved.request.capture });
  }

  /**
   * The answer that a branch differs from: an earlier version of the same turn.
   *
   * @param {AnswerVersion} answerVersion
   * @param {ReplayFile.Branch} branch
   */
  #parentOf({ turn }, { of }) {
    /** @param {Recording} recording */
    const isParent = ({ answerVersion: each }) => each.turn === turn && each.version === of;
    return this.recordings.find(isParent)?.answerVersion.answer ?? null;
  }

  /**
   * List the versions of a turn that have begun and its reruns, and show this one.
   *
   * @param {AnswerVersion} answerVersion
   */
  #showVersion({ turn, version }) {
    const versions = new Set(this.recordings.map(({ answerVersion }) => answerVersion));
    const begun = [...versions].filter((each) => each.turn === turn && each.version <= version);
    const answers = [...begun.map(({ answer }) => answer), ...(this.reruns.get(turn) ?? [])];
    Object.assign(this.turns[turn], { answers, shown: version });
  }

  /**
   * Show a rerun beside the answer of the playback.
   *
   * @param {AnswerVersion} answerVersion
   * @param {Answer} answer
   */
  addRerun({ turn }, answer) {
    this.reruns.set(turn, [...(this.reruns.get(turn) ?? []), answer]);
    const its = this.turns[turn];
    if (its.role !== "model") return;
    its.answers.push(answer);
    its.shown = its.answers.length - 1;
  }
}

/** Reset an answer to the state before it began. @param {Answer} answer */
function reset(answer) {
  const edition = answer.edition + 1;
  Object.assign(answer, { segments: [], tokens: [], marks: [], use: new ExpertUse(), edition });
}

/**
 * Return an event in the page's form, with the times of the page that saved it.
 *
 * @param {ReplayFile.TimedEvent} timedEvent
 */
function timedEvent({ event, at, came, drawn }) {
  const own = /** @type {RunEvent} */ ({ ...event, passedAt: at });
  if (came !== undefined) own.receivedAt = came;
  if (drawn !== undefined) own.drawnAt = drawn;
  return own;
}

/**
 * Count the values of a sorted list that are at most `bound`.
 *
 * @param {number[]} values
 * @param {number} bound
 */
function upperBound(values, bound) {
  let [low, high] = [0, values.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= bound) low = middle + 1;
    else high = middle;
  }
  return low;
}
