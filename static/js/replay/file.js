// A conversation as a file, and back: docs/replay.md says what is in it.

import { BadReplay, only } from "./replaycheck.js";
import { form, FORMAT } from "./replayform.js";

/** A file may be this long, unpacked: what a browser can still read and show. */
const MOST_BYTES = 256 * 1024 * 1024;
const GZIP = [0x1f, 0x8b];
const MOST_NAME = 40;

// ---- saving ----------------------------------------------------------------------------------

/** The conversation as an object of the form. Throws BadReplay when there is nothing to keep. */
export function pack({ turns, hello }) {
  if (!hello || turns.at(-1)?.role !== "model")
    throw new BadReplay("Nothing has been written yet, so there is nothing to save.");
  const kept = turns.map((turn) =>
    turn.role === "user" ? turn : { ...turn, answers: turn.answers.map(packAnswer) },
  );
  const saved = new Date().toISOString();
  const file = { format: FORMAT, version: versionOf(turns, hello), saved, hello, turns: kept };
  return only(form, file, "replay");
}

/**
 * 3 where there were adapters or experts, or a text went on after something had acted on it, 2 where
 * something was changed inside the model: 1 cannot say that.
 */
function versionOf(turns, hello) {
  const segments = turns.flatMap(({ answers = [] }) => answers.flatMap((each) => each.segments));
  const { loras, n_experts: nExperts } = hello.model;
  if (loras?.length || nExperts || segments.some(({ request }) => request.reached)) return 3;
  return segments.some(({ request, events }) => [request, ...events].some(({ reach }) => reach)) ? 2 : 1;
}

/** What a branch begins with is its parent's. */
function packAnswer({ segments }) {
  const own = segments.findLastIndex(({ branch }) => branch);
  return { segments: segments.slice(Math.max(0, own)).map(packSegment) };
}

function packSegment(segment) {
  const { request, sentAt, preparedMs, branch, plain, events } = segment;
  const kept = { request };
  if (branch) kept.branch = branch;
  if (plain !== null || !events.length) return { ...kept, text: plain ?? "" };
  if (preparedMs !== null) kept.prepared = preparedMs;
  kept.events = events.map((event) => packEvent(event, sentAt, request.params.seed));
  return kept;
}

/** `came` and `drawn` are since this page sent the request; a reload forgets when that was. */
function packEvent(event, sentAt, seed) {
  const kept = { at: event.passedAt, event: withoutSummaries(event) };
  if (event.params) kept.event = { ...event, params: { ...event.params, seed } };
  const since = (at) => Math.round((at - sentAt) * 1000) / 1000;
  if (sentAt === null || event.receivedAt === undefined) return kept;
  kept.came = since(event.receivedAt);
  if (event.drawnAt !== undefined) kept.drawn = since(event.drawnAt);
  return kept;
}

/** Of tokens that are too old for their statistics to be whole (keeping.js), a file has none. */
function withoutSummaries(event) {
  if (event.type === "token" && event.stats?.summary) return { ...event, stats: null };
  if (event.type !== "prefill") return event;
  return { ...event, stats: event.stats?.filter(({ summary }) => !summary) };
}

/** The file's bytes; compressed ones are a third or less. */
export async function blobOf(packed, compressed) {
  const json = new Blob([JSON.stringify(packed)], { type: "application/json" });
  if (!compressed) return json;
  const gzip = json.stream().pipeThrough(new CompressionStream("gzip"));
  return new Blob([await new Response(gzip).arrayBuffer()], { type: "application/gzip" });
}

/** What to call it: the beginning of the last thing that was asked. */
export function nameOf({ turns }, compressed) {
  const asked = turns.findLast(({ role, given }) => role === "user" || given);
  const words = (asked?.text ?? asked?.given ?? "").toLowerCase().match(/[a-z0-9]+/g) ?? [];
  const slug = words.join("-").slice(0, MOST_NAME).replace(/-$/, "");
  return `tokenglass-${slug || "replay"}.json${compressed ? ".gz" : ""}`;
}

/** How much was written: {answers, tokens}. */
export function extent({ turns }) {
  const segments = turns.flatMap(({ answers = [] }) => answers.flatMap((each) => each.segments));
  const tokens = segments.flatMap(({ events = [] }) => events).filter(isToken).length;
  return { answers: turns.reduce((n, { answers = [] }) => n + answers.length, 0), tokens };
}

export const isToken = ({ event }) => event.type === "token";

// ---- opening ---------------------------------------------------------------------------------

/** The replay in a file (a Blob), checked. Throws BadReplay with a sentence for people. */
export async function open(file) {
  const head = new Uint8Array(await file.slice(0, GZIP.length).arrayBuffer());
  const packed = GZIP.every((byte, i) => head[i] === byte);
  const stream = packed
    ? file.stream().pipeThrough(new DecompressionStream("gzip"))
    : file.stream();
  const json = await textOf(stream, packed);
  let value;
  try {
    value = JSON.parse(json);
  } catch (error) {
    throw new BadReplay(`This is no replay: it is not JSON (${error.message}).`);
  }
  return form(value);
}

/** The text of a stream. Ends at the bound, however far a small file unpacks. */
async function textOf(stream, packed) {
  const decoder = new TextDecoder("utf-8", { fatal: true });
  const parts = [];
  let length = 0;
  try {
    for (const reader = stream.getReader(); ; ) {
      const { done, value } = await reader.read();
      if (done) break;
      length += value.length;
      if (length > MOST_BYTES) {
        reader.cancel();
        throw new BadReplay(
          `This file holds more than ${MOST_BYTES / 1024 / 1024} MB, which is more than a page can show.`,
        );
      }
      parts.push(decoder.decode(value, { stream: true }));
    }
    parts.push(decoder.decode());
  } catch (error) {
    if (error instanceof BadReplay) throw error;
    const what = packed ? "a whole gzip file of UTF-8 text" : "UTF-8 text";
    throw new BadReplay(`This is no replay: it is not ${what}.`);
  }
  return parts.join("");
}
