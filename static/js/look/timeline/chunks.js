// Chunks of the prompts of a conversation: which tokens are of the system message and the tools, of
// messages, calls and results, and which were found in the prefix cache. No DOM access in this module.
//
// Where a message begins is found in the text of the prompt's tokens, backwards from its end. What the
// chat template writes before a content counts to the chunk before it.

import { shownAnswer } from "../../state.js";

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
const NOT_WHOLE = "\uFFFD";

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
  const { timings, nTokens, nGiven, promptReused, toolCalls } = segment;
  const prompt = chunksOf(segment).map((chunk) => ({
    ...chunk,
    reused: Math.max(0, Math.min(chunk.end, promptReused) - chunk.from),
  }));
  /** @type {ChunkKind} */
  const written = toolCalls.length ? "call" : "answer";
  return {
    turn,
    written,
    prompt,
    nPrompt: segment.prompt.length,
    nReused: promptReused,
    nWritten: nTokens - nGiven,
    readMs: timings?.prompt_ms ?? null,
    writeMs: timings?.predicted_ms ?? null,
    toolMs,
  };
}

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
  const { text, startOf } = textOf(prompt);
  /** @type {Chunk[]} */
  const found = [];
  let [before, end] = [text.length, nPrompt];
  for (const message of messages.filter((_, i) => !dropped.includes(i)).reverse()) {
    if (message.role === "system") continue; // it is in the first chunk, with the tools
    const at = lastPlace(text, needleOf(message), before);
    if (at < 0) continue;
    before = at;
    const from = startOf(at);
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
 * The last place of `needle` before character `before`, or −1. Tokens that end inside a character have
 * no text of their own, so the part before the first such character is searched for, too.
 *
 * @param {string} text
 * @param {string} needle
 * @param {number} before
 */
function lastPlace(text, needle, before) {
  const room = text.slice(0, before);
  const at = room.lastIndexOf(needle);
  if (at >= 0 || !text.includes(NOT_WHOLE)) return at;
  const [ascii] = /^[\x20-\x7e]*/.exec(needle) ?? [""];
  return ascii.length > 2 ? room.lastIndexOf(ascii) : -1;
}

/** The text of tokens, and the number of the token that has a character. @param {ToPage.TokenText[]} tokens */
function textOf(tokens) {
  /** @type {number[]} */
  const ends = [];
  let text = "";
  for (const token of tokens) {
    text += token.text;
    ends.push(text.length);
  }
  /** @param {number} at */
  const startOf = (at) => ends.findIndex((end) => end > at);
  return { text, startOf };
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
