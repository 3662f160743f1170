// Words from articles about language models: what each means in one sentence, its other names, the name
// of its tensor in a model's files, and the instrument or setting of this page that shows it.

/**
 * word   as articles write it
 * says   one sentence
 * also   other names of the field
 * file   name of the tensor in the files of a Llama; `i` is the number of a layer
 * place  instrument or setting that shows it; absent if none does
 * here   what it is in the loaded model
 *
 * @typedef {{
 *   word: string, says: string, also?: string[], file?: string, place?: string,
 *   here?: (hello: ToPage.Hello) => string,
 * }} Word
 */

/** @param {number} n */
const grouped = (n) => n.toLocaleString("en");

/** @type {Word[]} */
export const GLOSSARY = [
  // ---- text to numbers
  { word: "token", says: "A piece of text, often a word or part of one, that the model reads and writes as one number.", place: "tokens" },
  { word: "tokenizer", says: "The program that cuts text into tokens and joins tokens into text; a model works only with its own.", place: "tokens" },
  { word: "BPE", says: "Byte-pair encoding: a tokenizer that begins with single bytes and merges neighbours, in the order that was learned from how frequent they are.", also: ["byte-pair encoding"], place: "tokens" },
  { word: "Unigram", says: "A tokenizer that knows how likely each token is and cuts a text into the tokens whose product is likeliest.", also: ["SentencePiece Unigram"], place: "tokens" },
  { word: "WordPiece", says: "A tokenizer that takes, again and again, the longest token of its vocabulary that the rest of a word begins with.", place: "tokens" },
  { word: "vocabulary", says: "All tokens that the model knows.", place: "tokens", here: ({ model }) => `${grouped(model.vocab_size)} tokens` },
  { word: "chat template", says: "The pattern by which the messages of a chat, with special tokens between them, become one text.", also: ["prompt format"], place: "tokens" },
  { word: "system prompt", says: "Instructions that stand before the first message of a conversation.", also: ["system message"], place: "tokens" },
  { word: "special token", says: "A token that stands for no text, such as one that marks the beginning of a message.", also: ["control token"], place: "tokens" },
  { word: "BOS", says: "The token that marks the beginning of a text.", also: ["beginning of sequence"], place: "tokens" },
  { word: "EOS", says: "The token by which the model says that it has finished.", also: ["end of sequence", "stop token"], place: "tokens" },
  { word: "context window", says: "The most tokens, prompt and answer together, that the model can take into account.", also: ["context length", "n_ctx"], place: "cache", here: ({ limits }) => `${grouped(limits.context)} tokens` },

  // ---- one token's way
  { word: "forward pass", says: "One computation through all layers, from a token to the scores of the next one.", also: ["inference step"], place: "forward" },
  { word: "W_E", says: "The embedding matrix: one row of numbers for each token.", also: ["embedding", "wte"], file: "model.embed_tokens.weight", place: "forward" },
  { word: "d_model", says: "How many numbers the hidden state of a token has.", also: ["hidden size", "embedding dimension"], place: "forward", here: ({ model }) => grouped(model.hidden_size) },
  { word: "hidden state", says: "The numbers that stand for one token between two layers.", also: ["activation", "representation"], place: "forward" },
  { word: "residual stream", says: "The hidden state on its way through the model: every layer reads it and adds to it.", also: ["skip connection"], place: "forward" },
  { word: "layer", says: "Attention and an MLP, whose outputs are added to the residual stream.", also: ["block", "transformer block"], place: "plan", here: ({ model }) => `${model.n_layers} layers` },
  { word: "RMSNorm", says: "Divides the hidden state by the root of its mean square and multiplies it by learned gains, before attention and MLP.", also: ["norm1", "norm2", "root mean square layer normalisation"], file: "model.layers.i.input_layernorm.weight", place: "forward" },
  { word: "W_Q", says: "Makes the query of each head from the hidden state: what this token looks for.", also: ["query", "q_proj"], file: "model.layers.i.self_attn.q_proj.weight", place: "forward" },
  { word: "W_K", says: "Makes the key of each head from the hidden state: what a token can be found by.", also: ["key", "k_proj"], file: "model.layers.i.self_attn.k_proj.weight", place: "forward" },
  { word: "W_V", says: "Makes the value of each head from the hidden state: what a token gives to those that attend to it.", also: ["value", "v_proj"], file: "model.layers.i.self_attn.v_proj.weight", place: "forward" },
  { word: "RoPE", says: "Rotates pairs of numbers of queries and keys by an angle that grows with the position, so that a score depends on the distance.", also: ["positional encoding", "rotary position embedding", "rotary"], place: "forward" },
  { word: "attention", says: "Every token takes a weighted mean of the values of the tokens up to itself.", also: ["self-attention", "causal attention"], place: "attention" },
  { word: "attention score", says: "The query of a token times the key of another, divided by the square root of d_head.", also: ["q·k", "logit of attention"], place: "forward" },
  { word: "softmax", says: "Turns scores into shares that are positive and add up to 1.", place: "forward" },
  { word: "attention weight", says: "The share that one token, the same or an earlier one, has in what a head reads.", place: "attention" },
  { word: "FlashAttention", says: "Attention computed one block of keys at a time, with a softmax that is corrected on the way, so that the scores of a long text are never all in memory.", also: ["online softmax"], place: "plan" },
  { word: "head", says: "One of several attentions that a layer computes side by side, each with queries of its own.", also: ["attention head", "multi-head attention", "MHA"], place: "attention", here: ({ model }) => `${model.n_heads} in each layer` },
  { word: "d_head", says: "How many numbers the query of one head has.", also: ["head dimension"], place: "forward", here: ({ model }) => grouped(model.head_dim) },
  { word: "GQA", says: "Grouped-query attention: several query heads share keys and values, so the KV cache is smaller.", also: ["grouped-query attention"], place: "cache", here: ({ model }) => `${model.n_heads} query heads, ${model.n_kv_heads} key and value heads` },
  { word: "MQA", says: "Multi-query attention: all query heads of a layer share the keys and values of one head.", also: ["multi-query attention"], place: "needs" },
  { word: "causal mask", says: "A token sees only itself and what comes before it.", also: ["autoregressive mask"], place: "attention" },
  { word: "decoder-only", says: "A model in which every token sees only those before it, so that it can go on writing any text; nearly all chat models are of this kind.", also: ["decoder", "causal language model"], place: "attention" },
  { word: "encoder", says: "A model whose tokens see the whole text in both directions; it turns a text into vectors and does not write.", also: ["bidirectional attention"], place: "tokens" },
  { word: "cross-attention", says: "Attention of a decoder to the output of an encoder, as in models for translation.", also: ["encoder–decoder", "seq2seq"], place: "attention" },
  { word: "attention sink", says: "A token, usually the first, to which heads attend when they have nothing to look for.", place: "attention" },
  { word: "induction head", says: "A head that attends to what followed an earlier occurrence of the same token.", place: "attention" },
  { word: "sliding window", says: "How many of the latest tokens a layer sees, where it does not see all.", also: ["local attention"], place: "cache" },
  { word: "W_O", says: "Combines the outputs of the heads into one update of the residual stream.", also: ["output projection", "o_proj"], file: "model.layers.i.self_attn.o_proj.weight", place: "forward" },
  { word: "MLP", says: "The part of a layer that works on each token by itself; most of the weights are here.", also: ["FFN", "feed-forward network"], place: "forward" },
  { word: "d_ffn", says: "How many units the MLP of a layer has.", also: ["intermediate size"], place: "forward" },
  { word: "W_gate", says: "Computes how far each unit of the MLP opens.", also: ["gate_proj"], file: "model.layers.i.mlp.gate_proj.weight", place: "forward" },
  { word: "W_up", says: "Computes the value of each unit of the MLP.", also: ["up_proj"], file: "model.layers.i.mlp.up_proj.weight", place: "forward" },
  { word: "W_down", says: "Combines the units of the MLP into one update of the residual stream.", also: ["down_proj"], file: "model.layers.i.mlp.down_proj.weight", place: "forward" },
  { word: "SwiGLU", says: "An MLP whose units are SiLU(gate) times up.", also: ["gated linear unit"], place: "forward" },
  { word: "MoE", says: "Mixture of experts: a layer has many MLPs, and each token goes through a few of them.", also: ["expert", "mixture of experts"], place: "experts" },
  { word: "router", says: "The small matrix that chooses the experts of each token.", also: ["gating network"], file: "model.layers.i.mlp.gate.weight", place: "experts" },
  { word: "REAP", says: "Pruning of experts: those that added least to the hidden states of a text, by router weight times length of the output, are removed.", also: ["expert pruning", "pruning"], place: "experts" },
  { word: "W_unembed", says: "Compares the last hidden state with every token of the vocabulary.", also: ["lm_head", "output head", "unembedding"], file: "lm_head.weight", place: "forward" },
  { word: "logit", says: "The score of a token before softmax.", also: ["score"], place: "filters" },
  { word: "logit lens", says: "What the model would predict if it stopped after a layer.", also: ["lens"], place: "lens" },

  // ---- choosing
  { word: "sampling", says: "Drawing the next token at random, by the probabilities of the tokens that the filters left.", also: ["decoding strategy"], place: "filters" },
  { word: "temperature", says: "Divides the logits: below 1 the likely become likelier, above 1 the unlikely do.", place: "temperature" },
  { word: "top-k", says: "Keeps the k most likely tokens.", place: "top_k" },
  { word: "top-p", says: "Keeps the most likely tokens, as few as needed for their probabilities to add up to p.", also: ["nucleus sampling"], place: "top_p" },
  { word: "min-p", says: "Keeps tokens whose probability is at least p times that of the likeliest.", place: "min_p" },
  { word: "greedy", says: "Temperature 0: always the most likely token.", also: ["argmax"], place: "temperature" },
  { word: "repetition penalty", says: "Lowers the logits of tokens that are in the text already.", place: "repetition_penalty" },
  { word: "watermark", says: "A bias towards tokens that a secret key chooses, so that whoever has the key can later see that a model wrote the text.", place: "watermark_bias" },
  { word: "greenlist", says: "The tokens that a watermark favours in one place of a text. A key and the token before decide which they are.", also: ["green token"], place: "watermark_bias" },
  { word: "seed", says: "The number from which all random numbers of a text follow: with the same prompt and settings, the same seed gives the same text.", place: "seed" },
  { word: "entropy", says: "How spread out a distribution is, in bits: 0 if one token has all of the probability.", also: ["uncertainty"], place: "lens" },
  { word: "perplexity", says: "How many equally likely tokens the model hesitates between, on average over a text: e to the power of its loss.", place: "loss" },
  { word: "loss", says: "The mean of minus the logarithm of the probability that the model gave each token of a text.", also: ["cross-entropy", "negative log-likelihood"], place: "loss" },
  { word: "log-probability", says: "The logarithm of a probability; those of the tokens of a text add up.", also: ["logprob"], place: "loss" },
  { word: "beam search", says: "Writes several texts at once and keeps the likeliest.", place: "branches" },
  { word: "structured output", says: "Text in a given form, such as JSON: a grammar allows only tokens after which the text can still have that form.", also: ["grammar", "constrained decoding", "JSON mode"] },
  { word: "stop string", says: "A text at which the answer ends when the model writes it.", also: ["stop sequence"] },
  { word: "autoregressive", says: "Each token is computed from those before it, one after the other.", place: "timeline" },
  { word: "hallucination", says: "A fluent sentence that is false: the model writes what is likely, and nothing in it checks what is true.", also: ["confabulation"] },

  // ---- prompts and texts
  { word: "few-shot", says: "Examples in the prompt show the model what to do; its weights stay as they are.", also: ["in-context learning"], place: "compare" },
  { word: "chain of thought", says: "Steps written before the answer: each becomes input for what follows.", also: ["step by step", "reasoning"], place: "compare" },
  { word: "agent", says: "A model that calls tools and reads their results, turn by turn, until it can answer.", also: ["tool call", "function calling"], place: "timeline" },
  { word: "retrieval", says: "Finding the passages that fit a question and putting them into the prompt.", also: ["RAG", "retrieval-augmented generation"], place: "retrieval" },
  { word: "text embedding", says: "One vector for a whole text; texts of similar meaning have similar vectors.", also: ["sentence embedding", "embedding model"], place: "tokens" },
  { word: "cosine similarity", says: "How far two vectors point the same way: 1 in the same direction, 0 at a right angle.", also: ["cosine"], place: "tokens" },

  // ---- speed and memory
  { word: "prefill", says: "Reading the prompt: many tokens at once, usually limited by how fast the device computes.", also: ["prompt processing"], place: "lab" },
  { word: "decode", says: "Writing the answer: one token a step, usually limited by how fast the device reads the weights.", also: ["generation", "token generation"], place: "lab" },
  { word: "TTFT", says: "Time to first token: from the request to the first token; without a queue, nearly all of it is prefill.", also: ["first token", "latency"], place: "timeline" },
  { word: "time per output token", says: "Time from one token to the next.", also: ["TPOT", "ITL", "inter-token latency"], place: "timeline" },
  { word: "KV cache", says: "The keys and values of all tokens so far, kept so that no step has to compute them again.", also: ["key-value cache"], place: "cache", here: ({ model, limits }) => `${grouped(limits.kv_blocks)} blocks, stored as ${model.kv_dtype}` },
  { word: "PagedAttention", says: "A KV cache in blocks that any text can use, like the pages of an operating system’s memory.", also: ["block table", "paging"], place: "cache" },
  { word: "prefix caching", says: "A prompt that begins like an earlier one uses its blocks of the KV cache instead of computing them again.", also: ["prompt caching", "RadixAttention"], place: "cache" },
  { word: "continuous batching", says: "Texts join and leave the running batch at every step.", also: ["in-flight batching"], place: "lab" },
  { word: "chunked prefill", says: "A long prompt is read in parts, so that other texts can go on meanwhile.", place: "schedule" },
  { word: "speculative decoding", says: "Tokens are guessed cheaply, by a draft model or from the text so far, and checked together: faster, and no token becomes more or less likely.", also: ["speculative sampling"], place: "timeline" },
  { word: "bandwidth", says: "How many bytes a second the device reads from its memory; this is what usually limits decode.", also: ["memory bandwidth"], place: "needs" },
  { word: "HBM", says: "High-bandwidth memory: the memory of GPUs in data centres, from which a step reads the weights.", also: ["VRAM", "device memory"], place: "needs" },
  { word: "arithmetic intensity", says: "Operations per byte read or written; the roofline shows whether arithmetic or bandwidth is the limit.", also: ["operational intensity"], place: "lab" },
  { word: "memory-bound", says: "Limited by bandwidth, as decode usually is; compute-bound means limited by arithmetic, as a long prefill is.", also: ["bandwidth-bound", "compute-bound"], place: "lab" },
  { word: "offloading", says: "Leaving weights in host memory and moving them over the bus when a step needs them.", also: ["PCIe"], place: "needs" },
  { word: "pipeline parallelism", says: "Each device computes some of the layers and hands the hidden states on.", also: ["stages"], place: "needs" },
  { word: "tensor parallelism", says: "Each device holds a part of every matrix, and the parts of each result are added up." },
  { word: "FLOP", says: "One floating-point addition or multiplication; a token takes about two for each weight it uses.", also: ["operation"], place: "plan" },
  { word: "kernel", says: "A program that the GPU runs on many numbers at once.", also: ["shader"], place: "plan" },
  { word: "dispatch", says: "One launch of a kernel; a step is a list of them.", also: ["kernel launch"], place: "plan" },
  { word: "parameter", says: "One trained number of the model.", also: ["weight"], place: "weights", here: ({ model }) => grouped(model.parameters) },
  { word: "quantisation", says: "Storing weights with fewer bits, as q8 and q4 do, in blocks that share a scale.", also: ["quantization"], place: "weights", here: ({ model }) => model.dtype },

  // ---- changing and explaining
  { word: "LoRA", says: "Two thin matrices whose product is added to a weight: a small file that adapts a model.", also: ["adapter", "PEFT"], place: "train" },
  { word: "gradient", says: "How much the loss would change with each number; training moves the weights against it.", also: ["backpropagation"], place: "train" },
  { word: "pre-training", says: "Learning to predict the next token of a great many texts; what a model knows comes from there.", also: ["base model"] },
  { word: "fine-tuning", says: "Further training of a finished model on texts of one kind, such as conversations.", also: ["instruction tuning", "SFT"], place: "train" },
  { word: "distillation", says: "Training a small model to give the probabilities of a larger one.", also: ["teacher and student"] },
  { word: "attribution", says: "How much an answer owes to each part of its prompt, found by leaving the part out.", also: ["occlusion", "leave-one-out", "feature importance"], place: "attribution" },
  { word: "attention knockout", says: "Masking attention to some tokens in some layers, to see where the answer reads them.", also: ["knock-out", "attention mask", "information flow"], place: "attribution" },
  { word: "ablation", says: "Switching a head or a layer off, to see what it was for.", place: "reach" },
  { word: "activation patching", says: "Replacing an activation in one text with that from another, to see what changes.", also: ["patch", "causal tracing"], place: "reach" },
  { word: "steering", says: "Adding a direction to the hidden state while the model writes.", also: ["activation steering"], place: "reach" },
];
