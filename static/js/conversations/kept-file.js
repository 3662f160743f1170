// The file of a conversation that this browser keeps: a replay file (docs/replay.md), compressed,
// in which the oldest tokens have no statistics beyond a bound.

import { newId } from "../net/new-id.js";
import { Playback } from "../replay/playback.js";
import { BadReplay } from "../replay/field-checks.js";
import {
  hasEvents,
  open,
  ownSegments,
  packEvent,
  packHead,
  packSegment,
  savedSegments,
  withoutStats,
} from "../replay/file.js";
import { onlyFieldsOf } from "../replay/validate.js";

/** Bound of the statistics in one file, before compression. */
const MAX_STATS_BYTES = 16e6;
/** Bytes of JSON per layer, per head and per expert chosen, measured on files of three models. */
const LAYER_BYTES = 190;
const HEAD_BYTES = 20;
const CHOICE_BYTES = 30;

/**
 * Longest time that packing may hold up the page at once, ms, and longest text that is compressed at
 * once: browsers do that in the page's own thread.
 */
const SLICE_MS = 8;
const SLICE_CHARS = 64 * 1024;

/** @param {Stats} stats */
const statsBytes = ({ layers = [], routes }) =>
  layers.length * (LAYER_BYTES + HEAD_BYTES * (layers[0]?.entropy.length ?? 0)) +
  (routes ?? []).reduce((sum, { experts }) => sum + CHOICE_BYTES * (1 + experts.length), 0);

/** Segments of all turns in the order of the file. @param {Turn[]} turns */
export const segmentsOf = (turns) =>
  turns.flatMap(({ answers = [] }) => answers.flatMap(ownSegments));

/**
 * Return the events, from the newest back, whose statistics fit in `mostBytes` together.
 *
 * @param {Segment[]} segments
 * @param {number} mostBytes
 */
function eventsWithStats(segments, mostBytes) {
  const kept = new Set();
  let bytes = 0;
  for (const { events } of segments.toReversed())
    for (const event of events.toReversed()) {
      for (const stats of "stats" in event ? [event.stats].flat() : []) if (stats) bytes += statsBytes(stats);
      if (bytes > mostBytes) return kept;
      kept.add(event);
    }
  return kept;
}

/**
 * Yield the JSON of the file in small pieces.
 *
 * @param {Whole} conversation
 * @param {number} mostBytes
 */
function* piecesOf(conversation, mostBytes) {
  const { turns, hello } = conversation;
  const measured = eventsWithStats(segmentsOf(turns), mostBytes);
  const head = packHead(conversation);
  head.hello = onlyFieldsOf("Hello", hello);
  yield `${JSON.stringify(head).slice(0, -1)},"turns":[`;
  for (const [i, turn] of turns.entries()) {
    if (i) yield ",";
    if (turn.role === "user") yield JSON.stringify(turn);
    else yield* piecesOfTurn(turn, hello, measured);
  }
  yield "]}";
}

/**
 * @param {ModelTurn} turn
 * @param {ToPage.Hello | null} hello
 * @param {Set<RunEvent>} measured
 */
function* piecesOfTurn({ role, mode, given, shown, summary, tool_use, answers }, hello, measured) {
  yield `${JSON.stringify({ role, mode, given, shown, summary, tool_use }).slice(0, -1)},"answers":[`;
  for (const [i, answer] of answers.entries()) {
    yield `${i ? "," : ""}{"segments":[`;
    for (const [k, segment] of ownSegments(answer).entries()) {
      if (k) yield ",";
      yield* piecesOfSegment(segment, hello, measured);
    }
    yield "]}";
  }
  yield "]}";
}

/**
 * @param {Segment} segment
 * @param {ToPage.Hello | null} hello
 * @param {Set<RunEvent>} measured
 */
function* piecesOfSegment(segment, hello, measured) {
  const head = JSON.stringify(onlyFieldsOf("Segment", packSegment(segment, hello)));
  if (!hasEvents(segment)) return void (yield head);
  yield `${head.slice(0, -1)},"events":[`;
  for (const [i, event] of segment.events.entries()) {
    if (i) yield ",";
    const kept = packEvent(measured.has(event) ? event : withoutStats(event), segment, hello);
    if (event.type === "prefill") yield* piecesOfPrefill(/** @type {ReplayFile.TimedEvent} */ (kept));
    else yield JSON.stringify(onlyFieldsOf("TimedEvent", kept));
  }
  yield "]}";
}

/**
 * A prefill has the statistics of a whole chunk of the prompt.
 *
 * @param {ReplayFile.TimedEvent} timedEvent
 */
function* piecesOfPrefill({ event, ...times }) {
  const bare = { ...times, event: { ...event, stats: [] } };
  const [before, after] = JSON.stringify(onlyFieldsOf("TimedEvent", bare)).split('"stats":[]');
  yield `${before}"stats":[`;
  for (const [i, stats] of ("stats" in event && Array.isArray(event.stats) ? event.stats : []).entries())
    yield (i ? "," : "") + JSON.stringify(onlyFieldsOf("TokenStats", stats));
  yield `]${after}`;
}

const nextTask = () => new Promise((resolve) => setTimeout(resolve));

/**
 * Return the bytes of a conversation's file: {turns, hello, conversation} as in state.js. The page
 * stays responsive meanwhile; events that come in between are not in it.
 *
 * @param {Whole} conversation
 * @param {number} [mostBytes]
 */
export async function packConversation(conversation, mostBytes = MAX_STATS_BYTES) {
  const gzip = new CompressionStream("gzip");
  const bytes = new Response(gzip.readable).arrayBuffer();
  const writer = gzip.writable.getWriter();
  const encoder = new TextEncoder();
  let text = "";
  let began = performance.now();
  const pass = async () => {
    await writer.write(encoder.encode(text));
    text = "";
    await nextTask();
    began = performance.now();
  };
  for (const piece of piecesOf(conversation, mostBytes)) {
    text += piece;
    if (text.length > SLICE_CHARS || performance.now() - began > SLICE_MS) await pass();
  }
  await pass();
  await writer.close();
  return bytes;
}

/**
 * Return a copy of the turns that stays as it is: what is written later does not change it.
 *
 * @param {Turn[]} turns
 * @returns {Turn[]}
 */
export const snapshotOf = (turns) =>
  turns.map((turn) =>
    turn.role === "user" ? turn : { ...turn, answers: turn.answers.map(frozenAnswer) },
  );

/**
 * @param {Answer} answer
 * @returns {Answer}
 */
const frozenAnswer = ({ segments }) =>
  /** @type {Answer} */ ({
  segments: segments.map((segment) =>
    Object.assign(Object.create(segment), { events: [...segment.events] }),
  ),
});

/**
 * Read and check the file of a conversation. Throws BadReplay.
 *
 * @param {ArrayBuffer | undefined} bytes
 */
export async function openFile(bytes) {
  if (!bytes) throw new BadReplay("Its file is missing from this browser’s storage.");
  return open(new Blob([bytes]));
}

/**
 * Return the turns of a checked file as a conversation that can go on; `runs`: the ids of its runs.
 * A run without its end is marked as running, because the server may still have the rest. Statistics
 * of a model of another shape than that of `hello` (the page's, or null) cannot be drawn.
 *
 * @param {ReplayFile.Replay} replay
 * @param {string[]} runs
 * @param {ToPage.Hello | null} [hello]
 */
export function turnsOf(replay, runs, hello = null) {
  if (hello && !hasShapeOf(replay.hello.model, hello.model)) dropStats(replay);
  const playback = new Playback(replay);
  playback.seek(playback.steps.length);
  playback.turns.forEach((turn, i) => {
    const its = replay.turns[i];
    if (turn.role === "model" && its.role === "model") turn.shown = its.shown;
  });
  const saved = savedSegments(replay.turns);
  segmentsOf(playback.turns).forEach((segment, i) => {
    segment.id = runs[i] ?? newId();
    segment.model = segment.edited ? null : (saved[i].model ?? replay.hello.model.name);
  });
  return playback.turns;
}

/**
 * @param {{n_layers: number, n_heads: number}} a
 * @param {{n_layers: number, n_heads: number}} b
 */
const hasShapeOf = (a, b) => a.n_layers === b.n_layers && a.n_heads === b.n_heads;

/** Drop all statistics of layers from a checked file. @param {ReplayFile.Replay} replay */
function dropStats({ turns }) {
  for (const { events = [] } of savedSegments(turns))
    for (const each of events) each.event = withoutStats(each.event);
}
