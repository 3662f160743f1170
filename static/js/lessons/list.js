// The lessons: questions that articles about language models ask, and what is measured in each.

/** `name`: in the address of the page. @typedef {{name: string, question: string, measures: string}} Lesson */

/** @type {Lesson[]} */
export const LESSONS = [
  { name: "tokens", question: "What is a token?", measures: "how many tokens a word has" },
  { name: "vectors", question: "How does text become numbers?", measures: "the largest number in an embedding" },
  { name: "attention", question: "What does attention look at?", measures: "the weight that a head gives to a token" },
  { name: "layers", question: "What do the layers do?", measures: "the rank of a word after the first layer" },
  { name: "next-token", question: "How is the next word chosen?", measures: "how many tokens top-p leaves" },
  { name: "first-token", question: "Why is the first token slow?", measures: "the speed at which a prompt is read" },
  { name: "kv-cache", question: "What is a KV cache?", measures: "the memory that a long text takes" },
  { name: "speed", question: "What limits the speed?", measures: "the bandwidth needed for 20 tokens a second" },
  { name: "memory", question: "How does a model fit into memory?", measures: "how many bits a weight takes" },
  { name: "decoder", question: "Why decoder-only?", measures: "how many pairs of tokens a head compares" },
];
