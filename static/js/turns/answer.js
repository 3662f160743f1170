// One answer: the runs ("segments") that generated it, their tokens and the marks of changed
// settings.
//
// "Continue" adds a segment to the same answer, so tokens are numbered through the whole answer and
// a segment knows the number of its first token. A branch (turns/branch.js) is a segment whose first
// tokens were given to its run, not sampled. No DOM access in this module.

import { copyParentPrefix, attachLateStats, applyBranchAccepted } from "./branch.js";
import { linkContinuation, applyContinuationAccepted } from "./continuation.js";
import { countPrompt, countToken, ExpertUse } from "./expert-use.js";
import { newId } from "../net/new-id.js";
import { addMark } from "./setting-marks.js";
import { differences } from "../settings/sampling-settings.js";
import { spansFromStart, withSpanFrom, sameInterventions } from "../interventions/interventions.js";

/** @typedef {"sent"|"queued"|"prefill"|"writing"|"done"|"lost"} SegmentState */

/** One run. `seq` is its last event received; `request` is what was sent. */
export class Segment {
  /**
   * @param {string} id
   * @param {RunRequest} request
   * @param {number} base
   */
  constructor(id, request, base) {
    this.id = id;
    this.request = request;
    this.base = base;
    this.seq = 0;
    /** @type {SegmentState} */
    this.state = "sent";
    this.accepted = false;
    /** Was its request sent without an answer yet? It is sent again if the server does not know it. */
    this.unanswered = true;
    /** The engine's number of the run in the answers of instruments; 0: unknown. */
    this.run = 0;
    /** Number of the engine that has the run, from 1; 0: there is one only. */
    this.engine = 0;
    this.position = 0;
    /** @type {ToPage.TokenText[]} */
    this.prompt = [];
    /**
     * Indexes of the request's messages that were left out: the chat was too long.
     *
     * @type {number[]}
     */
    this.dropped = [];
    this.promptIds = new Set();
    this.context = 0;
    /** What its text must follow; of a required call, as the server made it. @type {FromPage.Grammar | null} */
    this.grammar = request?.grammar ?? null;
    /** Calls of tools in its text, and the text outside of them. @type {ToPage.CalledTool[]} */
    this.toolCalls = [];
    this.content = "";
    /** @type {ToPage.SamplingParams | null} */
    this.params = null;
    this.capture = request?.capture ?? true;
    /** Its pace, as `pace` of its request; see chat/pace.js. */
    this.pace = request?.pace ?? null;
    /**
     * What its next token will be drawn from: the last `preview`, until that token is there.
     *
     * @type {ToPage.Preview | null}
     */
    this.preview = null;
    /** Will the next token be the one that is computed already, as nothing has changed since? */
    this.previewIsCurrent = false;
    /** Interventions now, and since which position: see `spansFromStart` (interventions.js). */
    this.interventions = request?.reach ?? {};
    /** @type {FromPage.InterventionSpan[]} */
    this.interventionSpans = [];
    /**
     * `reusedBlocks`: of all groups of layers; null: no layer has a window.
     *
     * @type {{done: number, total: number, reused: number, moved: number, ms: number,
     *   gpuMs: number | null, reusedBlocks: number | null}}
     */
    this.prefill = {
      done: 0, total: 0, reused: 0, moved: 0, ms: 0, gpuMs: null, reusedBlocks: null,
    };
    /**
     * Prefill chunks: {done, reused, ms, gpuMs, experts, passedAt, receivedAt}.
     *
     * @type {Array<{done: number, reused: number, ms: number, gpuMs: number | null,
     *   experts: ToPage.ExpertUse | null} & Times>}
     */
    this.chunks = [];
    /** @type {Stats[]} */
    this.promptStats = [];
    /** All events received, in order. @type {RunEvent[]} */
    this.events = [];
    this.kvBlocks = 0;
    /**
     * Experts found on the device and loaded onto it by its steps; null: all fit on the device.
     *
     * @type {Omit<ToPage.ExpertUse, "layers"> | null}
     */
    this.experts = null;
    /** Number of prompt tokens found in the KV cache by the first prefill. */
    this.promptReused = 0;
    /**
     * Chunks of the prompt that were moved there from another text: {first, end, source}.
     *
     * @type {ToPage.MovedChunk[]}
     */
    this.promptMoved = [];
    this.reason = "";
    this.message = "";
    /** @type {ToPage.Timings | null} */
    this.timings = null;
    /** Time the server took to tokenize the prompt (ms); null: unknown. @type {number | null} */
    this.preparedMs = null;
    /**
     * Time this page sent the request, by its own clock; null after a reload.
     *
     * @type {number | null}
     */
    this.sentAt = null;
    this.nTokens = 0;
    /**
     * The replacement that makes it a branch (turns/branch.js) and the answer it branches from, or
     * null.
     *
     * @type {Branch | null}
     */
    this.branch = null;
    /** @type {Answer | null} */
    this.parent = null;
    /**
     * The segment it continues by token ids (turns/continuation.js); null: it starts from a text.
     *
     * @type {Segment | null}
     */
    this.continues = null;
    /** @type {Asked | null} */
    this.continuedFrom = null;
    /** Tokens already counted towards max_tokens by the segments it continues. */
    this.alreadyCounted = 0;
    /** Was it requested by this tab? */
    this.here = false;
    /** Was the conversation left before its end? Its events so far came from storage. */
    this.left = false;
    /** Does its message stay in the conversation if it is refused, rather than in the composer? */
    this.staysIfRefused = false;
    /** Name of the model that generated it; null: unknown. @type {string | null} */
    this.model = null;
    /** Number of its tokens that were given to the run rather than sampled. */
    this.nGiven = 0;
    /**
     * Text of a segment whose tokens are not here (yet, or any more); shown in their place.
     *
     * @type {string | null}
     */
    this.textOnly = null;
    /** Did a person write the text? Then there never were tokens, and `request` is what it answers. */
    this.edited = false;
    /** The text that it had before the page was loaded again. */
    this.textBefore = "";
    /** Are its first tokens those of `parent`? */
    this.hasPrefix = false;
    /** Did it go on when the page was left? Its events are asked for again. */
    this.unfinished = false;
  }

  get running() {
    return this.state !== "done" && this.state !== "lost";
  }

  /** Number of the first token the run sampled, and how many it sampled. */
  get first() {
    return this.base + this.nGiven;
  }

  get nDrawn() {
    return this.nTokens - this.nGiven;
  }

  /** The request of the whole answer: {messages, prompt, continue_final}. */
  get originalRequest() {
    return this.branch?.asked ?? this.continuedFrom ?? this.request;
  }

  /** Number of prompt tokens whose statistics can be shown. */
  get promptDone() {
    return this.branch ? this.prompt.length : this.prefill.done;
  }

  /** Number of tokens in the context: prompt and answer. */
  get used() {
    return this.accepted ? Math.max(this.prompt.length + this.nTokens, this.prefill.done) : 0;
  }
}

export class Answer {
  constructor() {
    /** @type {Segment[]} */
    this.segments = [];
    /**
     * `token` events in order, each with its `segment`, its `place` in the segment, and its
     * `number`: the index of the random number that drew it.
     *
     * @type {Token[]}
     */
    this.tokens = [];
    /**
     * Changes of settings: {segment, index, changes, shown}, the last two [{name, from, to}].
     * `changes` acted from the token at `index` on; `shown` is the label: a whole drag is shown at
     * its last mark only.
     *
     * @type {Mark[]}
     */
    this.marks = [];
    /** Experts chosen for its tokens and its prompt. */
    this.use = new ExpertUse();
    /** Grows whenever tokens changed other than by appending. */
    this.edition = 0;
  }

  get segment() {
    return this.segments.at(-1) ?? null;
  }

  /** The segment whose prompt is shown before the tokens: the first that a person did not write. */
  get promptSegment() {
    return this.segments.find(({ edited }) => !edited) ?? this.segments[0];
  }

  get running() {
    return this.segment?.running ?? false;
  }

  /** The text, including segments whose tokens are gone. */
  get text() {
    return this.segments.map((segment) => this.segmentText(segment)).join("");
  }

  get empty() {
    return !this.segments.some(({ textOnly, nTokens }) => textOnly || nTokens);
  }

  /** @param {Segment} segment */
  segmentText(segment) {
    if (segment.textOnly !== null) return segment.textOnly;
    return this.tokens
      .slice(segment.base, segment.base + segment.nTokens)
      .map((t) => t.text)
      .join("");
  }

  /**
   * Add a run to this answer; `branch` makes it a branch of `parent`.
   *
   * @param {string} id
   * @param {RunRequest} request
   * @param {Branch | null} [branch]
   * @param {Answer | null} [parent]
   */
  begin(id, request, branch = null, parent = null) {
    const segment = new Segment(id, request, this.tokens.length);
    Object.assign(segment, { branch, parent });
    linkContinuation(this, segment, this.segment);
    this.segments.push(segment);
    this.edition += 1;
    if (branch) copyParentPrefix(this, segment);
    return segment;
  }

  /** @param {string} id */
  find(id) {
    return this.segments.find((segment) => segment.id === id) ?? null;
  }

  /**
   * Return the settings (with `capture` and `reach`) a token was sampled with: the newest ones with
   * all later changes undone.
   *
   * @param {Pick<Token, "segment" | "place">} token
   */
  settingsAt({ segment, place }) {
    const { params, capture, interventions: reach } = segment;
    /** @type {NamedSettings} */
    const settings = { ...params, capture, reach };
    for (const mark of this.marks.toReversed()) {
      if (mark.segment !== segment) continue;
      if (mark.index <= segment.base + place) break;
      for (const { name, from } of mark.changes) settings[name] = from;
    }
    return settings;
  }

  /**
   * Apply one event of a segment. Returns true when applied, false for a duplicate, null when an
   * earlier event is missing (the caller requests it again).
   *
   * @param {Segment} segment
   * @param {number} seq
   * @param {RunEvent} event
   */
  applyEvent(segment, seq, event) {
    if (seq <= segment.seq) return false;
    if (seq > segment.seq + 1) return null;
    segment.seq = seq;
    segment.events.push(event);
    if (segment.textOnly !== null) this.#refill(segment);
    const handle = /** @type {(answer: Answer, segment: Segment, event: RunEvent) => void} */ (
      HANDLERS[event.type]
    );
    handle?.(this, segment, event);
    return true;
  }

  /**
   * Replace a segment's text by its tokens, whose events are coming again.
   *
   * @param {Segment} segment
   */
  #refill(segment) {
    segment.textOnly = null;
    segment.base = this.tokens.length;
    this.edition += 1;
    if (segment.branch) copyParentPrefix(this, segment);
  }

  /**
   * Drop a segment's tokens because its events are gone; keep the text.
   *
   * @param {Segment} segment
   * @param {string} text
   */
  lose(segment, text) {
    segment.textOnly = text;
    segment.state = "lost";
    this.edition += 1;
  }

  /** Does it begin with a text that a person wrote? */
  get edited() {
    return this.segments[0]?.edited ?? false;
  }
}

/** What is said where the measurements of a text would be that a person wrote. */
export const NOT_MEASURED = "This answer was edited by a person, so nothing of it was measured.";

/**
 * Return an answer with `text`, which a person wrote in place of `answer`.
 *
 * @param {Answer} answer
 * @param {string} text
 */
export function editedAnswer({ segments: [first] }, text) {
  const { messages, prompt } = first.originalRequest;
  const { params, capture } = first.request;
  const request = { ...(messages ? { messages } : { prompt }), params, capture };
  const edited = new Answer();
  const segment = edited.begin(newId(), request);
  edited.lose(segment, text);
  segment.edited = true;
  return edited;
}

/** What each event changes: (answer, segment, event). */
const HANDLERS = {
  /**
   * @param {Answer} answer
   * @param {Segment} segment
   * @param {ToPage.Accepted & Times} event
   */
  accepted(answer, segment, event) {
    segment.accepted = true;
    segment.grammar = event.grammar ?? segment.grammar;
    segment.unanswered = false;
    noteEngine(segment, event);
    if (segment.branch) applyBranchAccepted(answer, segment, event);
    else {
      segment.prompt = event.prompt;
      segment.promptIds = new Set(event.prompt.map(({ id }) => id));
    }
    segment.dropped = event.dropped ?? [];
    segment.context = event.context;
    segment.params = event.params;
    segment.capture = event.capture;
    segment.interventions = segment.request?.reach ?? {};
    segment.interventionSpans = spansOfRequest(segment.request, event.prompt.length);
    if (segment.continues) applyContinuationAccepted(answer, segment, event);
    else if (!segment.branch) markInitialInterventions(answer, segment);
    segment.prefill.total = event.prompt.length;
    HANDLERS.queued(answer, segment, event);
  },

  /**
   * @param {Answer} _answer
   * @param {Segment} segment
   * @param {ToPage.Queued | ToPage.Accepted} event
   */
  queued(_answer, segment, event) {
    const { position } = event;
    noteEngine(segment, event);
    segment.position = position;
    segment.state = position > 0 ? "queued" : "prefill";
  },

  /**
   * @param {Answer} answer
   * @param {Segment} segment
   * @param {ToPage.Prefill & Times} event
   */
  prefill(answer, segment, event) {
    const { prefill } = segment;
    segment.state = "prefill";
    prefill.done = event.done;
    prefill.total = event.total;
    prefill.reused = event.reused;
    prefill.reusedBlocks = event.reused_blocks ?? null;
    const moved = event.moved ?? [];
    prefill.moved = moved.reduce((sum, { first, end }) => sum + end - first, 0);
    prefill.ms = event.ms; // since the start; gpu_ms is of this chunk alone
    if (event.gpu_ms !== null) prefill.gpuMs = (prefill.gpuMs ?? 0) + event.gpu_ms;
    const { done, reused, ms, gpu_ms: gpuMs, experts = null, passedAt, receivedAt } = event;
    segment.chunks.push({ done, reused, ms, gpuMs, experts, passedAt, receivedAt });
    segment.kvBlocks = event.kv_blocks;
    addExpertCounts(segment, event.experts);
    if (!segment.branch) {
      segment.promptReused = event.reused;
      segment.promptMoved = moved;
    }
    for (const stats of event.stats ?? []) {
      if (stats.position >= segment.prompt.length) attachLateStats(answer, segment, stats);
      else {
        countPrompt(answer, segment, stats);
        segment.promptStats[stats.position] = stats;
      }
    }
  },

  /**
   * Earlier ones of the same token are not kept: a slider makes many.
   *
   * @param {Answer} _answer
   * @param {Segment} segment
   * @param {ToPage.Preview} event
   */
  preview(_answer, segment, event) {
    if (segment.preview) segment.preview.candidates = [];
    segment.preview = event;
    segment.previewIsCurrent = true;
  },

  /**
   * @param {Answer} answer
   * @param {Segment} segment
   * @param {Token} event
   */
  token(answer, segment, event) {
    segment.state = "writing";
    const previewed = segment.previewIsCurrent;
    segment.preview = null;
    segment.previewIsCurrent = false;
    segment.kvBlocks = event.kv_blocks;
    addExpertCounts(segment, event.experts);
    const number = (segment.params?.first_index ?? 0) + event.index;
    event.logprob ??= NaN; // JSON has no NaN
    answer.tokens.push(Object.assign(event, { segment, place: segment.nTokens, number, previewed }));
    countToken(answer, event);
    segment.nTokens += 1;
  },

  /**
   * @param {Answer} answer
   * @param {Segment} segment
   * @param {ToPage.Updated} event
   */
  updated(answer, segment, event) {
    const changes = differences(segment.params ?? {}, event.params);
    if (segment.capture !== event.capture) {
      changes.push({ name: "capture", from: segment.capture, to: event.capture });
    }
    if (event.reach && !sameInterventions(segment.interventions, event.reach))
      applyInterventions(segment, event.index, event.reach, changes);
    segment.params = event.params;
    segment.capture = event.capture;
    if (event.pace !== undefined) segment.pace = event.pace;
    if (changes.length) {
      segment.previewIsCurrent = false;
      addMark(answer, segment, segment.first + event.index, changes);
    }
  },

  /**
   * @param {Answer} _answer
   * @param {Segment} segment
   * @param {ToPage.Done} event
   */
  done(_answer, segment, event) {
    segment.state = "done";
    segment.reason = event.reason;
    segment.message = event.message ?? "";
    segment.timings = event.timings;
    segment.toolCalls = event.tool_calls ?? [];
    segment.content = event.content ?? "";
  },
};

/**
 * Return the intervention spans of a request: from its start on, or after those of an earlier run.
 *
 * @param {RunRequest} request
 * @param {number} nPrompt
 */
function spansOfRequest(request, nPrompt) {
  const { reach = {}, reached } = request ?? {};
  return reached ? withSpanFrom(reached, nPrompt - 1, reach) : spansFromStart(reach, nPrompt);
}

/**
 * Note where the run is; it may have moved to another engine.
 *
 * @param {Segment} segment
 * @param {{run?: number, engine?: number}} event
 */
function noteEngine(segment, { run = segment.run, engine = segment.engine }) {
  Object.assign(segment, { run, engine });
}

/**
 * @param {Segment} segment
 * @param {ToPage.ExpertUse | null} used
 */
function addExpertCounts(segment, used) {
  if (!used) return;
  const sum = segment.experts ?? { found: 0, brought: 0, n_bytes: 0 };
  for (const name of /** @type {const} */ (["found", "brought", "n_bytes"])) sum[name] += used[name];
  segment.experts = sum;
}

/**
 * Change the interventions from the row on that samples the token `index`.
 *
 * @param {Segment} segment
 * @param {number} index
 * @param {FromPage.Interventions} reach
 * @param {Change[]} changes
 */
function applyInterventions(segment, index, reach, changes) {
  const { prompt } = /** @type {ToPage.Accepted} */ (segment.events[0]);
  changes.push({ name: "reach", from: segment.interventions, to: reach });
  segment.interventions = reach;
  const first = prompt.length + index - 1;
  segment.interventionSpans = withSpanFrom(segment.interventionSpans, first, reach);
}

/**
 * Mark interventions that are active from the start of a run.
 *
 * @param {Answer} answer
 * @param {Segment} segment
 */
function markInitialInterventions(answer, segment) {
  if (!segment.interventionSpans.length) return;
  const shown = [{ name: "reach", from: {}, to: segment.interventions }];
  answer.marks.push({ segment, index: segment.first, changes: [], shown });
}
