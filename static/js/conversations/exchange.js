// Conversations as files: one as a replay file; all as lines of JSON, one replay file a line.

import { newId } from "../net/new-id.js";
import { BadReplay } from "../replay/field-checks.js";
import { blobOf, CONVERSATIONS, nameOf, open } from "../replay/file.js";
import { addPresets, ownPresets } from "../settings/own-presets.js";
import { download } from "../ui/download.js";
import { plural } from "../ui/format.js";
import { readEntries, readFile, writeConversation } from "./database.js";
import { announce, entryOf, newConversation } from "./keeper.js";
import { openFile, turnsOf } from "./kept-file.js";

const VERSION = 1;
/** Longest line of a file of conversations: what a replay file may hold. */
const MAX_LINE = 256 * 1024 * 1024;

// ---- saving ------------------------------------------------------------------------------------

/** Download a conversation as a replay file. @param {Entry} entry */
export async function saveOne(entry) {
  const replay = await replayOf(entry);
  download(await blobOf(replay, true), nameOf(replay, true));
}

/**
 * Download all conversations as one file. Throws BadReplay, after saving, for unreadable ones.
 *
 * @param {Entry[]} entries
 */
export async function saveAll(entries) {
  const saved = new Date().toISOString();
  const header = { format: CONVERSATIONS, version: VERSION, saved, presets: ownPresets() };
  /** @type {Array<string | Blob>} */
  const lines = [`${JSON.stringify(header)}\n`];
  const refused = [];
  for (const entry of entries)
    try {
      lines.push(new Blob([JSON.stringify(await replayOf(entry)), "\n"]));
    } catch (error) {
      if (!(error instanceof BadReplay)) throw error;
      refused.push(`“${entry.title || entry.heading}” is missing: ${error.message}`);
    }
  const gzip = new Blob(lines).stream().pipeThrough(new CompressionStream("gzip"));
  download(await new Response(gzip).blob(), `tokenglass-conversations-${saved.slice(0, 10)}.jsonl.gz`);
  if (refused.length) throw new BadReplay(refused.join(" "));
}

/**
 * Return the replay of an entry; its name may have changed since the file was written.
 *
 * @param {Entry} entry
 */
async function replayOf({ id, title, system }) {
  const { title: _title, system: _system, ...replay } = await openFile(await readFile(id));
  return { ...replay, ...(title && { title }), ...(system && { system }) };
}

// ---- opening -----------------------------------------------------------------------------------

/**
 * Add the conversations of files: replay files, and files of all conversations. Resolves to what
 * happened, in words. Throws BadReplay if nothing could be added.
 *
 * @param {File[]} files
 */
export async function openFiles(files) {
  const present = new Set((await readEntries()).map(keyOf));
  let nAdded = 0;
  /** @type {string[]} */
  const refused = [];
  let [known, nPresets] = [0, 0];
  /**
   * @param {string} name
   * @param {() => Promise<void>} act
   */
  const attempt = async (name, act) => {
    try {
      await act();
    } catch (error) {
      if (!(error instanceof BadReplay)) throw error;
      refused.push(`${name} cannot be read. ${error.message}`);
    }
  };
  /** @param {Blob} blob */
  const addOne = async (blob) => {
    const entry = await add(blob, present);
    if (entry) nAdded += 1;
    else known += 1;
  };
  for (const file of files)
    await attempt(file.name, async () => {
      for await (const { blob, name = "", presets } of conversationsIn(file))
        if (!blob) nPresets += addPresets(presets);
        else await attempt(name, () => addOne(blob));
    });
  if (nAdded) announce(null);
  if (refused.length && !nAdded && !known && !nPresets) throw new BadReplay(refused[0]);
  const parts = [`Added ${plural(nAdded, "conversation")}`];
  if (nPresets) parts.push(plural(nPresets, "preset"));
  if (known) parts.push(`${known} already here`);
  if (refused.length) parts.push(`${refused.length} unreadable: ${refused[0]}`);
  return `${parts.join(", ")}${refused.length ? "" : "."}`;
}

/** What two entries of the same conversation have in common. @param {Omit<Entry, "rev">} entry */
const keyOf = ({ text, runs, nTokens }) => JSON.stringify([text, runs.length, nTokens]);

/**
 * @param {Blob} blob
 * @param {Set<string>} present
 */
async function add(blob, present) {
  const replay = await open(blob);
  const turns = turnsOf(replay, []);
  const { title = "", system = "", branched_from: branchedFrom, saved } = replay;
  const created = Date.parse(saved) || Date.now();
  const id = newId();
  const conversation = { ...newConversation(system), id, title, created, branchedFrom: branchedFrom ?? null };
  const entry = {
    ...entryOf({ turns, conversation }),
    id,
    nBytes: 0,
    updated: created,
  };
  if (present.has(keyOf(entry))) return null;
  present.add(keyOf(entry));
  const bytes = await (await blobOf(replay, true)).arrayBuffer();
  return writeConversation({ ...entry, nBytes: bytes.byteLength }, bytes, 0);
}

/**
 * Yield each conversation in a file, {blob, name} with a name for errors, and its {presets}.
 *
 * @param {File} file
 * @returns {AsyncGenerator<{blob?: Blob, name?: string, presets?: unknown}>}
 */
async function* conversationsIn(file) {
  const lines = linesIn(file);
  const { value: first = "" } = await lines.next();
  const header = headerIn(first);
  if (!header) return void (yield { blob: file, name: file.name });
  yield { presets: header.presets ?? [] };
  let n = 1;
  for await (const line of lines) {
    n += 1;
    if (line.trim() !== "") yield { blob: new Blob([line]), name: `${file.name}, line ${n},` };
  }
}

/** Return the header of a file of conversations, or null for another file. @param {string} line */
function headerIn(line) {
  if (!line.includes(CONVERSATIONS)) return null;
  let header;
  try {
    header = JSON.parse(line);
  } catch {
    return null;
  }
  if (header?.format !== CONVERSATIONS) return null;
  if (header.version !== VERSION)
    throw new BadReplay(`It is of version ${header.version}; this page reads version ${VERSION}.`);
  return header;
}

/**
 * Yield the lines of a file, compressed or not. Throws BadReplay for what is no text.
 *
 * @param {File} file
 */
async function* linesIn(file) {
  const head = new Uint8Array(await file.slice(0, 2).arrayBuffer());
  const packed = head[0] === 0x1f && head[1] === 0x8b;
  const stream = packed
    ? file.stream().pipeThrough(new DecompressionStream("gzip"))
    : file.stream();
  const decoder = new TextDecoder("utf-8", { fatal: true });
  // The parts of a line are joined once: a line may be 256 MB long, and come in thousands of them.
  /** @type {string[]} */
  let parts = [];
  let length = 0;
  try {
    for (const reader = stream.getReader(); ; ) {
      const { done, value: bytes } = await reader.read();
      if (done) break;
      const [end, ...starts] = decoder.decode(bytes, { stream: true }).split("\n");
      parts.push(end);
      length += end.length;
      for (const start of starts) {
        yield parts.join("");
        parts = [start];
        length = start.length;
      }
      if (length > MAX_LINE) throw new BadReplay("One of its lines is longer than 256 MB.");
    }
  } catch (error) {
    if (error instanceof BadReplay) throw error;
    throw new BadReplay("It is not text, or not whole.");
  }
  if (length) yield parts.join("");
}
