// Lost in the middle (Liu et al. 2023): a sentence that answers a question, at different places of a text
// about other things, and how likely the answer is then.

import { probability } from "../../ui/format.js";
import { tokenize } from "../../net/inspect.js";

const NEEDLE = "The keeper of the old mill is called Rosalind. ";
const QUESTION = "Who is the keeper of the old mill? The keeper of the old mill is called";
const ANSWER = " Rosalind";
/** Sentences on other things, some of which look like the needle. */
const TEXT = [
  "The market opens at seven and closes when the last cart has left. ",
  "In spring the river rises and floods the lower gardens. ",
  "The keeper of the lighthouse is called Edmund. ",
  "The baker sells rye bread on Mondays and white bread on Fridays. ",
  "Two roads lead out of the valley, one to the sea and one to the mines. ",
  "The keeper of the town hall is called Beatrice. ",
  "The clock on the town hall has been slow for eleven years. ",
  "A red boat lies upside down behind the chapel. ",
  "The keeper of the bridge is called Leopold. ",
  "The post arrives at noon, unless the bridge is closed. ",
  "At night one can hear the trains on the other side of the river. ",
  "The keeper of the library is called Josephine. ",
];
/** Tokens of the text, unless the model can read fewer. */
const TOKENS = 512;
/** Places of the needle, in eighths of the text: the ends first, then the middle. */
const EIGHTHS = 8;
const ORDER = [0, 8, 4, 2, 6, 1, 7, 3, 5];

/** @type {Experiment} */
export const middle = {
  name: "middle",
  tab: "Lost in the middle",
  title: "A needle in a long text",
  what: "How likely is the answer to a question when the sentence that contains it is at one of nine places, or missing?",
  columns: ["place, %", "tokens before it", "log-probability", "probability", "loss, nats", "loss without it, nats"],
  x: "place, %",
  isLog: false,
  unit: "nats",
  lines: [{ column: "loss, nats", colour: "lamp" }],
  source: "The engine read the text with the sentence at each place. The loss of the answer is minus the log-probability of its tokens.",
  async run({ hello, ask, show }) {
    const sentences = await textFor(Math.min(TOKENS, Math.floor(hello.limits.context / 2)));
    const without = await logprobOf(ask, sentences.join(""));
    /** @type {LabRow[]} */
    const rows = [];
    for (const eighths of ORDER) {
      const n = Math.round((sentences.length * eighths) / EIGHTHS);
      const before = sentences.slice(0, n).join("");
      const logprob = await logprobOf(ask, before + NEEDLE + sentences.slice(n).join(""));
      rows.push({
        "place, %": (100 * eighths) / EIGHTHS,
        "tokens before it": (await tokenize({ text: before })).tokens.length,
        "log-probability": logprob,
        probability: Math.exp(logprob),
        "loss, nats": -logprob,
        "loss without it, nats": -without,
      });
      show(rows.toSorted((a, b) => Number(a["place, %"]) - Number(b["place, %"])));
    }
  },
  says(rows) {
    if (rows.length < 3) return "";
    const sorted = rows.toSorted((a, b) => Number(a["loss, nats"]) - Number(b["loss, nats"]));
    const [best, worst] = [sorted[0], sorted[sorted.length - 1]];
    const p = (/** @type {LabRow} */ row, column = "loss, nats") => probability(Math.exp(-Number(row[column])));
    return (
      `The answer is likeliest (p ${p(best)}) with the sentence at ${best["place, %"]} % of the text, and least likely (p ${p(worst)}) ` +
      `with it at ${worst["place, %"]} %. Without the sentence it has p ${p(best, "loss without it, nats")}.`
    );
  },
};

/** Sentences of about `n` tokens together. @param {number} n */
async function textFor(n) {
  const { tokens } = await tokenize({ text: TEXT.join("") });
  const length = Math.max(EIGHTHS, Math.round((n * TEXT.length) / tokens.length));
  return Array.from({ length }, (_, i) => TEXT[i % TEXT.length]);
}

/** Log-probability of the answer after a text and the question, in nats. @param {Bench["ask"]} ask @param {string} text */
async function logprobOf(ask, text) {
  const prompt = `${text}\n\n${QUESTION}`;
  const [asked, whole] = await Promise.all([tokenize({ prompt }), tokenize({ prompt: prompt + ANSWER })]);
  const ids = whole.tokens.map(({ id }) => id);
  const first = ids.findIndex((id, i) => id !== asked.tokens[i]?.id);
  const { arrays } = await ask({ kind: "losses", ids, first: first - 1, top: 1 });
  return [...arrays.logprob.values].reduce((sum, value) => sum + value, 0);
}
