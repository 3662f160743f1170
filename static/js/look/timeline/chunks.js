// Chunks of the prompts of a conversation: which tokens are of the system message and the tools, of
// messages, calls and results, and which were found in the prefix cache. No DOM access in this module.
//
// Where a message begins is found in the text of the prompt's tokens, backwards from its end. What the
// chat template writes before a content counts to the chunk before it.

import { shownAnswer } from "../../state.js";
import { searchable, textOfTokens } from "../../turns/prompt-text.js";

/** Letters and names of the kinds of chunks, in the order of a turn with a call. @type {Record<ChunkKind, [letter: string, name: string]>} */
export const KINDS = {
  system: ["A", "system message, tools"],
  user: ["B", "message"],
  call: ["C", "call"],
  result: ["D", "result"],
  answer: ["E", "answer"],
};

/** Longest part of a content that is searched for. */
const NEEDLE = 200;

/**
 * Return the runs of a conversation whose tokens are here: see `ChunkedRun`.
 *
 * @param {Turn[]} turns
 * @returns {ChunkedRun[]}
 */
export function runsOf(turns) {
  return turns.flatMap((turn, i) => {
    if (turn.role !== "model") return [];
    const segments = shownAnswer(turn)?.segments ?? [];
    const results = turn.tool_use?.results ?? [];
    const toolMs = results.length ? results.reduce((sum, { ms }) => sum + ms, 0) : null;
    return segments
      .filter(({ accepted, textOnly }) => accepted && textOnly === null)
      .map((segment, k, all) => runOf(segment, i, k === all.length - 1 ? toolMs : null));
  });
}

/** @param {Segment} segment @param {number} turn @param {number | null} toolMs @returns {ChunkedRun} */
function runOf(segment, turn, toolMs) {
  const { timings, nTokens, nGiven, promptReused, promptMoved, toolCalls } = segment;
  const inCache = [{ first: 0, end: promptReused }, ...promptMoved];
  const prompt = chunksOf(segment).map((chunk) => ({ ...chunk, reused: sharedBy(chunk, inCache) }));
  /** @type {ChunkKind} */
  const written = toolCalls.length ? "call" : "answer";
  return {
    turn,
    written,
    prompt,
    nPrompt: segment.prompt.length,
    nReused: sharedBy({ from: 0, end: segment.prompt.length }, inCache),
    nMoved: sharedBy({ from: 0, end: segment.prompt.length }, promptMoved),
    nWritten: nTokens - nGiven,
    readMs: timings?.prompt_ms ?? null,
    writeMs: timings?.predicted_ms ?? null,
    toolMs,
  };
}

/** Number of the tokens of a chunk that are in some of `spans`. @param {{from: number, end: number}} chunk @param {{first: number, end: number}[]} spans */
const sharedBy = (chunk, spans) =>
  spans.reduce((sum, { first, end }) => sum + Math.max(0, Math.min(chunk.end, end) - Math.max(chunk.from, first)), 0);

/**
 * Return the chunks of a run's prompt, without gaps: {kind, from, end}, tokens from … end − 1.
 *
 * @param {Segment} segment
 * @returns {Chunk[]}
 */
export function chunksOf(segment) {
  const { prompt, dropped } = segment;
  const { messages } = segment.originalRequest;
  const nPrompt = prompt.length;
  if (!messages) return [{ kind: "user", from: 0, end: nPrompt }];
  const { text, firstOf } = textOfTokens(prompt);
  /** @type {Chunk[]} */
  const found = [];
  let [before, end] = [text.length, nPrompt];
  for (const message of messages.filter((_, i) => !dropped.includes(i)).reverse()) {
    if (message.role === "system") continue; // it is in the first chunk, with the tools
    const at = text.slice(0, before).lastIndexOf(searchable(needleOf(message)));
    if (at < 0) continue;
    before = at;
    const from = firstOf(at);
    if (from < end) found.push({ kind: kindOf(message), from, end });
    end = Math.min(end, from);
  }
  if (end > 0) found.push({ kind: "system", from: 0, end });
  return found.reverse();
}

/** @param {FromPage.Message} message @returns {ChunkKind} */
function kindOf({ role, tool_calls: calls }) {
  if (role === "user") return "user";
  if (role === "tool") return "result";
  return calls?.length ? "call" : "answer";
}

/** A text of a message that the prompt has as it is. @param {FromPage.Message} message */
function needleOf({ content, tool_calls: calls }) {
  const whole = content.trim() || `"${calls?.[0]?.function.name ?? ""}"`;
  return whole.slice(0, NEEDLE);
}

/**
 * Return the times of all runs together (ms), and the share of reading prompts.
 *
 * @param {ChunkedRun[]} runs
 */
export function totalsOf(runs) {
  /** @param {"readMs" | "writeMs" | "toolMs"} part */
  const sum = (part) => runs.reduce((all, run) => all + (run[part] ?? 0), 0);
  const [read, write, tools] = [sum("readMs"), sum("writeMs"), sum("toolMs")];
  const all = read + write + tools;
  return { read, write, tools, share: all ? read / all : 0 };
}
