// The instruments in the order of their tabs. What one does is fetched when it is first opened, so
// that the page does not wait for what few look at.
//
//   name    one word; the address is #look=<name>
//   tab     what its tab says
//   title   what its header says
//   what    what is seen, in one sentence
//   fits(hello)   is there anything of the kind in this model? Where not, it has no tab. Optional
//   fetch   promises what it does (../look.js)

export const INSTRUMENTS = [
  {
    name: "tokens",
    tab: "Tokens",
    title: "Tokens",
    what: "What becomes of a prompt: the chat template around it, and the pieces the model reads.",
    fetch: async () => (await import("./tokens.js")).tokens,
  },
  {
    name: "timeline",
    tab: "Timeline",
    title: "Timeline",
    what: "This request from sending it to its words on the page, step by step.",
    fetch: async () => (await import("./timeline.js")).timeline,
  },
  {
    name: "attention",
    tab: "Attention",
    title: "Attention",
    what: "What the focused token looked at and, after it, what looked at it.",
    fetch: async () => (await import("./attention.js")).attention,
  },
  {
    name: "lens",
    tab: "Lens",
    title: "Logit lens",
    what: "What the model would say after every layer, if its output head read the stream there.",
    fetch: async () => (await import("./lens.js")).lens,
  },
  {
    name: "experts",
    tab: "Experts",
    title: "Experts",
    what: "To which of its experts each layer gave the tokens, and how evenly the run used them all.",
    fits: ({ model }) => model.n_experts > 0,
    fetch: async () => (await import("./experts.js")).experts,
  },
  {
    name: "filters",
    tab: "Filters",
    title: "Filters",
    what: "How sampling makes one token of all: shares of probability, stage by stage, and the draw.",
    fetch: async () => (await import("./filters.js")).filters,
  },
  {
    name: "reach",
    tab: "Reach",
    title: "Reach in",
    what: "Switch off or scale what is inside, steer and patch, while the text is written.",
    fetch: async () => (await import("./reach.js")).reach,
  },
  {
    name: "branches",
    tab: "Branches",
    title: "Branches",
    what: "What the versions of the answer share, how likely each is, and the likeliest ways to go on.",
    fetch: async () => (await import("./branches.js")).branches,
  },
  {
    name: "loss",
    tab: "Loss",
    title: "Loss",
    what: "How surprising each token of a text is, what was expected, and what training would move.",
    fetch: async () => (await import("./loss.js")).loss,
  },
  {
    name: "cache",
    tab: "Cache",
    title: "KV cache",
    what: "Keys and values that all layers keep for every token, so that none is computed twice.",
    fetch: async () => (await import("./cache.js")).cache,
  },
  {
    name: "weights",
    tab: "Weights",
    title: "Weights",
    what: "Every tensor of the model, as large as its number of parameters.",
    fetch: async () => (await import("./weights.js")).weights,
  },
  {
    name: "plan",
    tab: "Plan",
    title: "Plan",
    what: "Every dispatch of a step, in the order they run on the device.",
    fetch: async () => (await import("./plan.js")).plan,
  },
];
