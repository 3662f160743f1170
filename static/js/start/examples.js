// The prompts of the start page.
//
//   title     what can be seen
//   mode      "chat" or "completion"
//   text      the prompt; of a comparison, that of all columns
//   limit     most tokens of the answer; without one, the page's
//   open      name of the instrument that it opens (look/instruments.js), or absent: the panels suffice
//   sheet     the panel that it is about, which a phone opens
//   focus     the token that is focused: "first", the first that is written, or words of the prompt, of
//             which it is the last; absent: the newest
//   repeat    send it again once it is answered
//   pace      tokens a second, until it is answered
//   columns   what differs between the columns of a comparison: settings of each, and `prompt` if it is not
//             `text`; settings of the first become the page's

/** A text of some blocks of the KV cache. */
const LONG =
  "A glacier is a river of ice. Snow falls on a mountain, year after year, and does not melt. Its " +
  "weight presses the lower layers into ice, and the ice begins to flow, a few metres a year, down " +
  "into the valley. There it meets warmer air. Where as much ice melts as arrives, the glacier ends, " +
  "and a stream of grey water goes on. Stones that fell on the ice far above are set down here, one " +
  "after the other, as a wall across the valley. In short:";
const LONG_TALE =
  "Once upon a time, there was a little fox named Mia. She lived in the wood with her mother. One day, " +
  "Mia found a lantern under an old tree. It was small and red, and it did not shine. Mia took it home. " +
  "“Can you mend it?” she asked her mother. Her mother looked at the lantern for a long time. Then she " +
  "said:";

const QUESTION = { temperature: 0.7 };
const THREE_TEMPERATURES = [QUESTION, { temperature: 0 }, { temperature: 2 }];

/**
 * @typedef {{title: string, mode: Mode, text: string, limit?: number, open?: string, sheet?: string,
 *   focus?: string, repeat?: boolean, pace?: number,
 *   columns?: (Partial<Settings> & {prompt?: string})[]}} Example
 */

/** For every model. @type {Example[]} */
const FOR_ALL = [
  {
    title: "What each layer would say",
    mode: "completion",
    text: "The cat sat on the mat because",
    limit: 24,
    open: "lens",
    focus: "first",
  },
  { title: "What the model reads", mode: "chat", text: "Hello world", limit: 48, open: "tokens" },
];

/** For models that answer questions. @type {Example[]} */
const QUESTIONS = [
  {
    title: "What comes next, and how likely",
    mode: "completion",
    text: "The capital of France is",
    limit: 12,
    sheet: "next",
    focus: "first",
  },
  {
    title: "Whom a word attends to",
    mode: "chat",
    text: "The animal did not cross the road because it was tired. What was tired?",
    limit: 48,
    open: "attention",
    focus: "it",
  },
  ...FOR_ALL,
  {
    title: "Twice, the second time from the cache",
    mode: "completion",
    text: LONG,
    limit: 24,
    open: "cache",
    repeat: true,
  },
  {
    title: "A story, layer by layer",
    mode: "chat",
    text: "Tell me a story about a fox who finds a lantern",
    sheet: "core",
  },
  {
    title: "Slowly, so that you can move a slider",
    mode: "chat",
    text: "Write a poem about the sea",
    pace: 2,
    sheet: "sampling",
  },
  {
    title: "At temperature 0.7, 0 and 2",
    mode: "chat",
    text: "Why is the sky blue?",
    open: "compare",
    columns: THREE_TEMPERATURES,
  },
  {
    title: "The same words in another order",
    mode: "chat",
    text: "Write a short story: a dog bites a man.",
    open: "compare",
    columns: [{}, { prompt: "Write a short story: a man bites a dog." }],
  },
];

/** For the bundled model, which tells children's stories. @type {Example[]} */
const STORIES = [
  {
    title: "What comes next, and how likely",
    mode: "completion",
    text: "Once upon a time, there was a little",
    limit: 24,
    sheet: "next",
    focus: "first",
  },
  {
    title: "Whom a word attends to",
    mode: "completion",
    text: "A fox found a lantern in the wood. She took it home and",
    limit: 24,
    open: "attention",
    focus: "it",
  },
  ...FOR_ALL,
  {
    title: "Twice, the second time from the cache",
    mode: "completion",
    text: LONG_TALE,
    limit: 24,
    open: "cache",
    repeat: true,
  },
  {
    title: "A story, layer by layer",
    mode: "chat",
    text: "Tell me a story about a fox who finds a lantern",
    sheet: "core",
  },
  {
    title: "Slowly, so that you can move a slider",
    mode: "chat",
    text: "Tell me a story about a cat who sails the sea",
    pace: 2,
    sheet: "sampling",
  },
  {
    title: "At temperature 0.7, 0 and 2",
    mode: "chat",
    text: "Why was the moon late? Tell it as a bedtime story",
    open: "compare",
    columns: THREE_TEMPERATURES,
  },
  {
    title: "The same words in another order",
    mode: "chat",
    text: "Tell me a story about a dog who finds a cat",
    open: "compare",
    columns: [{}, { prompt: "Tell me a story about a cat who finds a dog" }],
  },
];

/** Models that tell stories and answer no questions begin with this. */
const STORYTELLER = "tale-";

/**
 * Return the examples that suit a model, that of a `hello` message.
 *
 * @param {ToPage.PageModelInfo} model
 */
export function examplesFor({ name, chat }) {
  const all = name.startsWith(STORYTELLER) ? STORIES : QUESTIONS;
  return all.filter(({ mode }) => chat || mode === "completion");
}
