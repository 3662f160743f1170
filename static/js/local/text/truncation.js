// Conversations longer than the context: the oldest turns are left out (app/prompt/truncation.py).

/** One part in so many of the context is kept free for the answer, and dropped at a time. */
const SHARES = 4;

/**
 * Return {ids, dropped} of a conversation: the ids, and with `truncation` "auto" the indexes of the
 * messages of as many oldest turns as it is too long. `encode` returns the ids of messages.
 *
 * @param {FromPage.Message[]} messages
 * @param {(messages: FromPage.Message[]) => number[]} encode
 * @param {{context: number, maxTokens: number}} room
 * @param {FromPage.Generate["truncation"]} truncation
 */
export function readConversation(messages, encode, { context, maxTokens }, truncation) {
  const ids = encode(messages);
  const step = Math.max(1, Math.floor(context / SHARES));
  const excess = ids.length - (context - Math.max(1, Math.min(maxTokens, step)));
  const turns = splitTurns(messages);
  if (truncation === "disabled" || excess <= 0 || turns.length < 2) return { ids, dropped: [] };
  const wanted = Math.ceil(excess / step) * step;
  /** @type {Map<number, number[]>} */
  const known = new Map();
  /** @param {number} n */
  const idsWithout = (n) => {
    const leftOut = new Set(turns.slice(0, n).flat());
    const ids = known.get(n) ?? encode(messages.filter((_, i) => !leftOut.has(i)));
    known.set(n, ids);
    return ids;
  };
  let low = 1;
  let high = turns.length - 1; // if no smaller number is enough, all turns but the last
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ids.length - idsWithout(middle).length < wanted) low = middle + 1;
    else high = middle;
  }
  return { ids: idsWithout(low), dropped: turns.slice(0, low).flat() };
}

/**
 * Return the indexes of the messages of each turn, without system messages. The first turn begins
 * with the first message, each other with what the user says after an answer.
 *
 * @param {FromPage.Message[]} messages
 */
function splitTurns(messages) {
  /** @type {number[][]} */
  const turns = [];
  let before = "";
  messages.forEach(({ role }, i) => {
    if (role === "system") return;
    if (!turns.length || (role === "user" && before !== "user")) turns.push([]);
    turns[turns.length - 1].push(i);
    before = role;
  });
  return turns;
}
