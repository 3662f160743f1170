// The instruments in the order of their tabs. Their code is loaded when first opened.
//
//   name    one word; `look=` in the address (ui/address.js)
//   tab     label of its tab
//   title   title of the panel
//   what    one-sentence description
//   fits(hello)   does it apply to this model? If not, it has no tab. Optional
//   fetch   loads the instrument (look/frame.js)

/** @type {InstrumentEntry[]} */
export const INSTRUMENTS = [
  {
    name: "tokens",
    tab: "Tokens",
    title: "Tokens",
    what: "The prompt as tokens, how a word becomes tokens, several tokenizers compared, and vectors of texts.",
    fetch: async () => (await import("./tokens/tokens.js")).tokens,
  },
  {
    name: "timeline",
    tab: "Timeline",
    title: "Timeline",
    what: "The request, step by step, from sending it to the words on the page.",
    fetch: async () => (await import("./timeline/timeline.js")).timeline,
  },
  {
    name: "forward",
    tab: "Forward",
    title: "Forward pass",
    what: "Every step of the computation of one token, from its embedding to the next token, in numbers.",
    fetch: async () => (await import("./forward/forward.js")).forward,
  },
  {
    name: "attention",
    tab: "Attention",
    title: "Attention",
    what: "The tokens the focused token attends to, and the later tokens that attend to it.",
    fetch: async () => (await import("./attention/attention.js")).attention,
  },
  {
    name: "lens",
    tab: "Lens",
    title: "Logit lens",
    what: "The prediction after every layer, if the output head read the residual stream there.",
    fetch: async () => (await import("./lens/lens.js")).lens,
  },
  {
    name: "experts",
    tab: "Experts",
    title: "Experts",
    what: "The experts each layer chose for the tokens, how evenly the run used them, and which had to be loaded.",
    fits: ({ model }) => !!model.n_experts,
    fetch: async () => (await import("./experts/experts.js")).experts,
  },
  {
    name: "filters",
    tab: "Filters",
    title: "Filters",
    what: "Sampling stage by stage: penalty, temperature, filters, and the draw.",
    fetch: async () => (await import("./filters/filters.js")).filters,
  },
  {
    name: "reach",
    tab: "Reach",
    title: "Reach in",
    what: "Ablate or scale heads and layers, steer and patch, during generation.",
    fetch: async () => (await import("./reach/reach.js")).reach,
  },
  {
    name: "branches",
    tab: "Branches",
    title: "Branches",
    what: "The versions of the answer as a tree with their likelihoods, and beam search.",
    fetch: async () => (await import("./branches/branches.js")).branches,
  },
  {
    name: "compare",
    tab: "Compare",
    title: "Compare",
    what: "One prompt under two to four settings, or several prompts, token by token.",
    fetch: async () => (await import("./compare/compare.js")).compare,
  },
  {
    name: "loss",
    tab: "Loss",
    title: "Loss",
    what: "The loss of each token of a text, what was expected, and the gradients.",
    fetch: async () => (await import("./loss/loss.js")).loss,
  },
  {
    name: "cache",
    tab: "Cache",
    title: "KV cache",
    what: "Keys and values that all layers store for every token, so that none is recomputed.",
    fetch: async () => (await import("./cache/cache.js")).cache,
  },
  {
    name: "attribution",
    tab: "Attribution",
    title: "Attribution",
    what: "Which words of the prompt mattered: how likely the answer would be without each, or without attention to it.",
    fetch: async () => (await import("./attribution/attribution.js")).attribution,
  },
  {
    name: "retrieval",
    tab: "RAG",
    title: "Retrieval (RAG)",
    what: "Your documents in chunks, the chunks nearest to a question, and which of them the answer used.",
    fetch: async () => (await import("./retrieval/retrieval.js")).retrieval,
  },
  {
    name: "schedule",
    tab: "Steps",
    title: "Steps",
    what: "Every step of the engine: which runs had rows in it, what was drafted, and which runs waited.",
    fetch: async () => (await import("./schedule/schedule.js")).schedule,
  },
  {
    name: "weights",
    tab: "Weights",
    title: "Weights",
    what: "Every tensor of the model, sized by its number of parameters.",
    fetch: async () => (await import("./weights/weights.js")).weights,
  },
  {
    name: "plan",
    tab: "Plan",
    title: "Plan",
    what: "Every dispatch of a step, in the order it runs on the device.",
    fetch: async () => (await import("./plan/plan.js")).plan,
  },
  {
    name: "lab",
    tab: "Lab",
    title: "Lab",
    what: "Experiments: first token, KV cache, phases, streams, batching, bits of keys and values, window, lost in the middle.",
    fetch: async () => (await import("./lab/lab.js")).lab,
  },
  {
    name: "needs",
    tab: "Needs",
    title: "Hardware needs",
    what: "The memory that a model takes, and the speed that a device allows, for any number of users.",
    fetch: async () => (await import("./needs/needs.js")).needs,
  },
  {
    name: "train",
    tab: "Train",
    title: "Train",
    what: "A LoRA adapter trained on your lines, one step of training on a text, and what a loaded adapter changed.",
    fetch: async () => (await import("./train/train.js")).train,
  },
];
