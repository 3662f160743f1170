// Saving a conversation as a replay file and opening one; docs/replay.md describes the format.

import { BadReplay, only } from "./field-checks.js";
import { validateReplay, FORMAT } from "./validate.js";

/** Largest unpacked file: what a browser can still read and show. */
const MAX_BYTES = 256 * 1024 * 1024;
const GZIP = [0x1f, 0x8b];
/** Format of a file of many conversations (conversations/exchange.js). */
export const CONVERSATIONS = "tokenglass conversations";
const MAX_NAME = 40;

// ---- saving ----------------------------------------------------------------------------------

/**
 * Return the conversation as the file's object. Throws BadReplay when there is nothing to save.
 *
 * @param {Whole} conversation
 */
export function pack(conversation) {
  const { turns, hello } = conversation;
  if (!hello || turns.at(-1)?.role !== "model")
    throw new BadReplay("Nothing has been written yet, so there is nothing to save.");
  const kept = turns.map((turn) =>
    turn.role === "user"
      ? turn
      : { ...turn, answers: turn.answers.map((answer) => packAnswer(answer, hello)) },
  );
  return only(validateReplay, { ...packHead(conversation), turns: kept }, "replay");
}

/** Return the file's fields before `turns`. @param {Whole} whole */
export function packHead({ turns, hello, conversation }) {
  const version = versionOf(turns, hello);
  const { title, system, branchedFrom } = conversation ?? {};
  /** @type {Omit<ReplayFile.Replay, "turns" | "hello"> & {hello: ToPage.Hello | null}} */
  const head = { format: FORMAT, version, saved: new Date().toISOString(), hello };
  if (title) head.title = title;
  if (system) head.system = system;
  if (branchedFrom) head.branched_from = branchedFrom;
  return head;
}

/**
 * Return the lowest version that has the fields of this conversation: 3 for adapters, experts or
 * `reached`, 2 for `reach`.
 *
 * @param {Turn[]} turns
 * @param {ToPage.Hello | null} hello
 */
function versionOf(turns, hello) {
  const segments = turns.flatMap(({ answers = [] }) => answers.flatMap((each) => each.segments));
  const { loras, n_experts: nExperts = 0 } = hello?.model ?? {};
  if (loras?.length || nExperts || segments.some(({ request }) => request.reached)) return 3;
  /** @param {Segment} segment */
  const hasReach = ({ request, events }) =>
    [request, ...events].some((each) => "reach" in each && each.reach);
  return segments.some(hasReach) ? 2 : 1;
}

/**
 * @param {Answer} answer
 * @param {ToPage.Hello | null} hello
 */
const packAnswer = (answer, hello) => ({
  segments: ownSegments(answer).map((segment) => ({
    ...packSegment(segment, hello),
    ...(hasEvents(segment) && { events: segment.events.map((each) => packEvent(each, segment, hello)) }),
  })),
});

/**
 * Segments of an answer without those that a branch shares with its parent.
 *
 * @param {Answer} answer
 */
export function ownSegments({ segments }) {
  const own = segments.findLastIndex(({ branch }) => branch);
  return segments.slice(Math.max(0, own));
}

/** @param {Segment} segment */
export const hasEvents = ({ textOnly, events }) => textOnly === null && events.length > 0;

/**
 * @param {Segment} segment
 * @param {ToPage.Hello | null} hello
 */
const isOfOtherModel = ({ model }, hello) => model !== null && model !== hello?.model.name;

/**
 * Return a segment of the file without its events.
 *
 * @param {Segment} segment
 * @param {ToPage.Hello | null} hello
 */
export function packSegment(segment, hello) {
  const { request, preparedMs, branch, textOnly } = segment;
  /**
   * @type {Omit<Partial<ReplayFile.Segment>, "request" | "branch"> & {request: RunRequest, branch?: Branch}}
   */
  const kept = { request };
  if (branch) kept.branch = branch;
  if (isOfOtherModel(segment, hello)) kept.model = segment.model ?? undefined;
  if (segment.edited) kept.edited = true;
  if (!hasEvents(segment)) return { ...kept, text: textOnly ?? "" };
  if (preparedMs !== null) kept.prepared = preparedMs;
  return kept;
}

/**
 * Return an event of the file. `came` and `drawn` count from when the page sent the request, which a
 * reload forgets. Statistics of another model than the file's are left out: layers would not match.
 *
 * @param {RunEvent} event
 * @param {Segment} segment
 * @param {ToPage.Hello | null} hello
 */
export function packEvent(event, segment, hello) {
  const { sentAt, request } = segment;
  const whole = isOfOtherModel(segment, hello) ? withoutStats(event) : withoutSummaries(event);
  /** @type {{at?: number, event: RunEvent, came?: number, drawn?: number}} */
  const kept = { at: event.passedAt, event: whole };
  if ("params" in event && event.params) {
    const params = { ...event.params, seed: request.params.seed };
    kept.event = /** @type {RunEvent} */ ({ ...event, params });
  }
  /** @param {number} at */
  const since = (at) => Math.round((at - (sentAt ?? 0)) * 1000) / 1000;
  if (sentAt === null || event.receivedAt === undefined) return kept;
  kept.came = since(event.receivedAt);
  if (event.drawnAt !== undefined) kept.drawn = since(event.drawnAt);
  return kept;
}

/**
 * Leave out statistics that the page has reduced to summaries (turns/retention.js).
 *
 * @param {RunEvent} event
 */
function withoutSummaries(event) {
  if (event.type === "token" && /** @type {Stats | null} */ (event.stats)?.summary) return { ...event, stats: null };
  if (event.type !== "prefill") return event;
  return { ...event, stats: /** @type {Stats[]} */ (event.stats ?? []).filter(({ summary }) => !summary) };
}

/**
 * Return an event without statistics of layers.
 *
 * @template {{type: string}} E
 * @param {E} event
 * @returns {E}
 */
export function withoutStats(event) {
  if (event.type === "token") return { ...event, stats: null };
  return event.type === "prefill" ? { ...event, stats: [] } : event;
}

/**
 * Return the file's bytes; compressed ones take a third or less.
 *
 * @param {object} packed
 * @param {boolean} compressed
 */
export async function blobOf(packed, compressed) {
  const json = new Blob([JSON.stringify(packed)], { type: "application/json" });
  if (!compressed) return json;
  const gzip = json.stream().pipeThrough(new CompressionStream("gzip"));
  return new Blob([await new Response(gzip).arrayBuffer()], { type: "application/gzip" });
}

/**
 * Name a file after the conversation's name or the beginning of the last prompt.
 *
 * @param {{turns: Turn[] | ReplayFile.Replay["turns"], title?: string}} options
 * @param {boolean} compressed
 */
export function nameOf({ turns, title }, compressed) {
  const asked = turns.findLast((turn) => turn.role === "user" || turn.given);
  const words = (title ?? (asked?.role === "user" ? asked.text : asked?.given) ?? "").toLowerCase().match(/[a-z0-9]+/g) ?? [];
  const slug = words.join("-").slice(0, MAX_NAME).replace(/-$/, "");
  return `tokenglass-${slug || "replay"}.json${compressed ? ".gz" : ""}`;
}

/** Count what was written: {answers, tokens}. @param {ReplayFile.Replay} replay */
export function extent({ turns }) {
  const tokens = savedSegments(turns).flatMap(({ events = [] }) => events).filter(isToken).length;
  return { answers: savedAnswers(turns).length, tokens };
}

/** @param {ReplayFile.Replay["turns"]} turns */
const savedAnswers = (turns) =>
  turns.flatMap((turn) => (turn.role === "user" ? [] : turn.answers));

/** Segments of all turns of a file, in its order. @param {ReplayFile.Replay["turns"]} turns */
export const savedSegments = (turns) => savedAnswers(turns).flatMap(({ segments }) => segments);

/** @param {{event: {type: string}}} options */
export const isToken = ({ event }) => event.type === "token";

// ---- opening ---------------------------------------------------------------------------------

/**
 * Read and check the replay in a file (a Blob). Throws BadReplay with a message for people.
 *
 * @param {Blob} file
 */
export async function open(file) {
  const head = new Uint8Array(await file.slice(0, GZIP.length).arrayBuffer());
  const packed = GZIP.every((byte, i) => head[i] === byte);
  const stream = packed
    ? file.stream().pipeThrough(new DecompressionStream("gzip"))
    : file.stream();
  const json = await textOf(stream, packed);
  if (json.startsWith(`{"format":"${CONVERSATIONS}"`))
    throw new BadReplay("It holds conversations: “Import” in the list of conversations reads it.");
  let value;
  try {
    value = JSON.parse(json);
  } catch (error) {
    throw new BadReplay(`This is not a replay: it is not JSON (${/** @type {Error} */ (error).message}).`);
  }
  return validateReplay(value);
}

/**
 * Read the text of a stream. Throws BadReplay past MAX_BYTES, also of what a file unpacks to.
 *
 * @param {ReadableStream<Uint8Array>} stream
 * @param {boolean} packed
 */
async function textOf(stream, packed) {
  const decoder = new TextDecoder("utf-8", { fatal: true });
  const parts = [];
  let length = 0;
  try {
    for (const reader = stream.getReader(); ; ) {
      const { done, value } = await reader.read();
      if (done) break;
      length += value.length;
      if (length > MAX_BYTES) {
        reader.cancel();
        throw new BadReplay(
          `This file holds more than ${MAX_BYTES / 1024 / 1024} MB, more than a page can show.`,
        );
      }
      parts.push(decoder.decode(value, { stream: true }));
    }
    parts.push(decoder.decode());
  } catch (error) {
    if (error instanceof BadReplay) throw error;
    const what = packed ? "a whole gzip file of UTF-8 text" : "UTF-8 text";
    throw new BadReplay(`This is not a replay: it is not ${what}.`);
  }
  return parts.join("");
}
