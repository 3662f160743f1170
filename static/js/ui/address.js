// The hash of the URL, which says what the page shows: `chat`, the id of a kept conversation; `model`;
// `replay`, a file of the same origin; `look`, the open instrument; `token`, the focused one, counted
// from 1, or p1 … for those of the prompt; `lesson`, its name. No DOM access in this module.

const NAMES = /** @type {const} */ (["chat", "model", "replay", "look", "token", "lesson"]);
const MAX_LENGTH = 2000;
const TOKEN = /^(p?)([1-9]\d{0,6})$/;

/** @typedef {Partial<Record<(typeof NAMES)[number], string>>} Shown */

/** What is shown has no address. */
export class BadAddress extends Error {}

/**
 * Write {chat, model, replay, look, token, lesson} as the hash of an address; what is absent is left out.
 *
 * @param {Shown} shown
 */
export function writeAddress(shown) {
  const parts = NAMES.filter((name) => (shown[name] ?? "") !== "");
  const written = parts.map((name) => `${name}=${encodeURIComponent(shown[name] ?? "").replaceAll("%2F", "/")}`);
  return written.length ? `#${written.join("&")}` : "";
}

/**
 * Read the hash of an address: an object with those of the names that it has, or null if it is none of
 * the page's. Throws BadAddress.
 *
 * @param {string} hash
 */
export function readAddress(hash) {
  if (!hash.includes("=")) return null;
  if (hash.length > MAX_LENGTH) throw new BadAddress("It is too long.");
  /** @type {Shown} */
  const found = {};
  for (const part of hash.slice(1).split("&")) {
    const at = part.indexOf("=");
    const name = NAMES.find((each) => each === part.slice(0, at));
    if (!name) throw new BadAddress("It contains something that this page does not know.");
    if (name in found) throw new BadAddress(`It names more than one ${name}.`);
    found[name] = decoded(part.slice(at + 1));
  }
  if (found.token && !TOKEN.test(found.token)) throw new BadAddress("Its token is not a number.");
  return found;
}

/** @param {string} text */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    throw new BadAddress("It is not written as addresses are.");
  }
}

/**
 * The page's number of a token of an answer whose prompt has `promptLength` tokens: 0 … for those that
 * were written, −1 and less for those of the prompt; and back. Throws BadAddress.
 *
 * @param {string} token
 * @param {number} promptLength
 */
export function tokenAt(token, promptLength) {
  const match = TOKEN.exec(token);
  if (!match) throw new BadAddress("Its token is not a number.");
  const [, isPrompt, number] = match;
  return isPrompt ? Math.min(-1, Number(number) - 1 - promptLength) : Number(number) - 1;
}

/**
 * @param {number} index
 * @param {number} promptLength
 */
export const nameOfToken = (index, promptLength) =>
  index < 0 ? `p${index + promptLength + 1}` : String(index + 1);

/**
 * Return the address of a replay, relative to `base`. Throws BadAddress for one of another origin.
 *
 * @param {string} text
 * @param {string} base
 */
export function replayAddress(text, base) {
  let url;
  try {
    url = new URL(text, base);
  } catch {
    throw new BadAddress("Its replay is not an address.");
  }
  const { origin, protocol, username, password } = url;
  if (!/^https?:$/.test(protocol) || origin !== new URL(base).origin || username || password)
    throw new BadAddress("Its replay is on another site. Download the file and open it here instead.");
  return url.href;
}
