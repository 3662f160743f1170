// Which text the Loss instrument reads, and the question that is asked about it.

import { count } from "../format.js";
import { latest, tokenize } from "../inspect.js";
import { asTheyRan } from "../reach.js";
import { sequenceOf } from "./context.js";
import { askLatest, Kept } from "./kept.js";
import { judged } from "./lossread.js";

/** More of the likeliest tokens than are shown: the token itself may be one of them. */
const TOP = 6;
const MOST_KEPT_BYTES = 1 << 20;
const kept = new Kept(MOST_KEPT_BYTES);
/** What was made of an answer: the same object as long as nothing changed. */
const readings = new WeakMap();

/** Says why a text cannot be read, beside the field it can be changed in. */
export class Unreadable extends Error {}

/**
 * A text as it was read:
 *   tokens   lossread.js
 *   from     where the answer begins among them: 0 for a text without a prompt
 *   texts    text by id, of tokens that are not in the text
 *   info     of the engine's answer; null while a run writes
 *   segment  the run's; null for a text of one's own
 *   cut      how many tokens the text has, when more than were read
 */

/** The prompt and the answer that the core shows, up to its newest token. */
export async function readAnswer(context) {
  const { answer, hello } = context;
  const { segment, ids, texts } = sequenceOf(context);
  const from = segment.prompt.length;
  const written = answer.tokens.slice(segment.base, segment.base + segment.nTokens);
  const plain = texts.map((text, i) => ({
    id: ids[i],
    text,
    ...(i < from ? UNSIZED : sizeOf(text)),
    eos: written[i - from]?.eos ?? false,
  }));
  const base = { from, segment, cut: null };
  if (segment.running) return { ...base, tokens: asWritten(plain, written, from), texts: {}, info: null };
  if (ids.length < 2) throw new Unreadable("One token alone has no loss: nothing comes before it.");
  const key = `${hello.model.name} ${hello.model.dtype} ${segment.id} ${ids.length}`;
  const found = await ask(key, { ids, ...asTheyRan(segment, ids.length) }, hello);
  return once(found, () => reading(plain, found, base));
}

function once(found, make) {
  if (!readings.has(found)) readings.set(found, make());
  return readings.get(found);
}

const reading = (plain, found, base) => ({
  ...base,
  tokens: judged(plain, found),
  texts: found.info.pieces ?? {},
  info: found.info,
});

/** While a run writes it is not interrupted: its own log-probabilities are the losses. */
function asWritten(plain, written, from) {
  return plain.map((token, i) => {
    const loss = i < from ? null : -written[i - from].logprob;
    return { ...token, loss, rank: null, bits: null, top: null };
  });
}

/** A text of one's own, as the model reads a prompt. */
export async function readText(text, { hello }) {
  const { limits, model } = hello;
  const prompt = text.replace(/\r\n?/g, "\n");
  const size = new TextEncoder().encode(JSON.stringify(prompt)).length;
  if (size > limits.message_bytes - 200)
    throw new Unreadable(
      `This text takes ${count(size)} bytes and a message to the server may have ` +
        `${count(limits.message_bytes)}. Shorten it.`,
    );
  const { tokens: all } = await latest("loss-text", { prompt }, tokenize);
  const tokens = all.slice(0, limits.context);
  if (tokens.length < 2)
    throw new Unreadable("One token alone has no loss: nothing comes before it. Write some more.");
  const plain = tokens.map((token) => ({ ...token, ...sizeOfBytes(token.bytes) }));
  const ids = plain.map(({ id }) => id);
  const found = await ask(`${model.name} ${model.dtype} ${ids}`, { ids }, hello);
  const cut = all.length > tokens.length ? all.length : null;
  return once(found, () => reading(plain, found, { from: 0, segment: null, cut }));
}

async function ask(key, what, hello) {
  const question = { kind: "losses", ...what, top: Math.min(TOP, hello.model.vocab_size) };
  return kept.get(key) ?? kept.set(key, await askLatest("loss", question));
}

/** A prompt's special tokens have a name and add no text; the run does not say which they are. */
const UNSIZED = { nBytes: null, nCharacters: null };

/** Bytes of UTF-8 and characters of a text. */
const sizeOf = (text) => ({ nBytes: new TextEncoder().encode(text).length, nCharacters: [...text].length });

/** Of a token, whose bytes (hexadecimal) may be part of a character: it counts where it begins. */
function sizeOfBytes(bytes) {
  const all = bytes.match(/../g) ?? [];
  const begun = all.filter((byte) => (parseInt(byte, 16) & 0xc0) !== 0x80);
  return { nBytes: all.length, nCharacters: begun.length };
}
