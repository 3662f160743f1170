// The lines of a forward pass in the order of the computation, each with its vectors, the tensors that
// it reads and the dispatches that do it.

import { figure } from "../../ui/format.js";
import { cosine, minus, norm, number, rowOf } from "./vectors.js";

/** @typedef {import("./vectors.js").Vector} Vector */
/** @typedef {import("./vectors.js").Arrays} Arrays */
/** A vector; `words`: what its numbers are about. @typedef {{name: string, values: Vector, words?: string[]}} Named */
/**
 * What stands below the vectors of a line: a table of keys, heads, MLP units, the tokens of one row of
 * `near_ids`, or the candidates of the draw.
 *
 * @typedef {"keys" | "heads" | "units" | "draw" | {near: number}} Part
 */
/**
 * `inside`: fused dispatches keep its numbers in registers; `reads`: does a tensor belong to it?
 *
 * @typedef {{key: string, name: string, what: string, vectors: Named[], ops: string[],
 *   reads: (tensor: TensorEntry) => boolean, parts: Part[], inside?: boolean, note?: string,
 *   shape: number[]}} Line
 */
/** @typedef {{name: string, kind: string, layer: number | null, n_bytes: number, read_by: string[], shape: number[], tied_to: string | null}} TensorEntry */

/** Rows of `near_ids`, as `VECTORS` of gpu/inspection/requests.py. */
const NEAR = { pre: 0, attention: 1, mid: 2, mlp: 3, post: 4, final: 5 };

/** Names of activation functions. @type {Record<string, string>} */
const ACTIVATIONS = { silu: "SiLU", gelu: "GELU", gelu_tanh: "GELU (tanh)" };

const NOTHING = () => false;

/**
 * Return the lines of an answer to the question `forward`, without those that the model does not have.
 *
 * @param {Pick<FrameAnswer, "arrays" | "info">} answer
 * @param {{nLayers: number, labels: string[]}} model  `labels`: of the plan's dispatches, [] unknown
 * @returns {Line[]}
 */
export function linesOf({ arrays, info }, { nLayers, labels }) {
  const layer = `layer${String(info.layer).padStart(2, "0")}`;
  /** @param {string[]} ops */
  const inLayer = (...ops) => {
    const names = ops.map((op) => `${layer}.${op}`);
    return labels.filter((label) => names.some((name) => label === name || label.startsWith(`${name}.`)));
  };
  const place = { arrays, info, layer, inLayer, nLayers, labels };
  return [...before(place), ...attention(place), ...mlp(place), ...after(place)].filter(
    ({ vectors, parts }) => vectors.length || parts.length,
  );
}

/**
 * @typedef {{arrays: Arrays, info: FrameAnswer["info"], layer: string, nLayers: number, labels: string[],
 *   inLayer: (...ops: string[]) => string[]}} Place
 */

/**
 * The array of this name as a vector, [] if there is none.
 *
 * @param {Arrays} arrays
 * @param {string} name
 * @param {string} [shown]
 * @returns {Named[]}
 */
const whole = (arrays, name, shown = name) =>
  arrays[name] ? [{ name: shown, values: arrays[name].values }] : [];

/**
 * A head's row of an array.
 *
 * @param {Arrays} arrays
 * @param {string} name
 * @param {number} head
 * @param {string} shown
 * @returns {Named[]}
 */
function ofHead(arrays, name, head, shown) {
  const values = rowOf(arrays, name, head);
  return values ? [{ name: shown, values }] : [];
}

/** Tensors that a dispatch of the layer reads. @param {Place} place @param {string} kind @param {string[]} ops */
function readBy({ layer, info }, kind, ...ops) {
  const names = ops.map((op) => `${layer}.${op}`);
  return (/** @type {TensorEntry} */ tensor) =>
    tensor.layer === info.layer && tensor.kind === kind && tensor.read_by.some((op) => names.includes(op));
}

/** @param {Place} place @returns {Line[]} */
function before({ arrays, info }) {
  const width = arrays.embedding.shape;
  const stream = {
    key: "before",
    name: `layers 0 … ${info.layer - 1}`,
    what: `the residual stream before layer ${info.layer}`,
    vectors: info.layer ? whole(arrays, "resid_pre", `before layer ${info.layer}`) : [],
    shape: width,
    ops: [],
    reads: NOTHING,
    parts: /** @type {Part[]} */ (info.layer ? [{ near: NEAR.pre }] : []),
  };
  const { embedding_scale: scale, learned_positions: isLearned } = info;
  const times = scale === 1 ? "" : figure(scale);
  const lookup = {
    key: "embedding",
    name: isLearned ? "W_E, W_pos lookup" : "W_E lookup",
    what:
      `the token’s row of the embedding matrix${times && `, times ${times}`}` +
      `${isLearned ? ", and that of its position" : ""}: the residual stream begins`,
    vectors: whole(arrays, "embedding", `W_E[token]${times && ` · ${times}`}${isLearned ? " + W_pos[position]" : ""}`),
    shape: width,
    ops: ["embed", "positions"],
    reads: (/** @type {TensorEntry} */ { kind }) => kind === "embedding",
    parts: /** @type {Part[]} */ (info.layer ? [] : [{ near: NEAR.pre }]),
  };
  return [lookup, stream];
}

/** @param {Place} place @returns {Line[]} */
function attention(place) {
  const { arrays, info, inLayer } = place;
  const { head, kv_head: kvHead, scale, softcap } = info;
  const qkv = inLayer("attn.qkv", "attn.qk_norm_rope");
  const key = lastRow(arrays, "keys");
  const update = minus(arrays.resid_mid.values, arrays.resid_pre.values);
  const over = 1 / scale;
  const capped = softcap ? `, capped at ${softcap}` : "";
  return [
    {
      key: "attn_norm",
      name: "norm1",
      what: "the input of attention, normalised",
      vectors: whole(arrays, "attn_norm", "norm(x)"),
      shape: arrays.resid_pre.shape,
      ops: inLayer("attn.norm").length ? inLayer("attn.norm") : inLayer("attn.qkv"),
      reads: readBy(place, "norm", "attn.qkv", "attn.norm"),
      parts: [],
      inside: !inLayer("attn.norm").length,
    },
    {
      key: "qkv",
      name: "W_Q, W_K, W_V",
      what: `query of head ${head}, key and value of key/value head ${kvHead}`,
      vectors: [
        ...ofHead(arrays, "q", head, "q"),
        ...ofHead(arrays, "k", kvHead, "k"),
        ...ofHead(arrays, "v", kvHead, "v"),
      ],
      shape: arrays.q.shape,
      ops: qkv,
      reads: readBy(place, "attention", "attn.qkv"),
      parts: [],
      inside: true,
    },
    {
      key: "rope",
      name: info.rope ? "RoPE" : "no RoPE",
      what: info.rope
        ? "query and key, rotated by the token’s position; the key goes to the cache"
        : "this layer has no rotary positions; the key goes to the cache",
      vectors: [
        ...ofHead(arrays, "rot_q", head, info.rope ? "q rotated" : "q that is compared"),
        { name: "k in the cache", values: key },
      ],
      shape: arrays.rot_q.shape,
      ops: qkv,
      reads: readBy(place, "norm", "attn.qk_norm_rope"),
      parts: [],
    },
    {
      key: "scores",
      name: "q · k / √d_head",
      what: `the query times each key, divided by ${figure(over)}${capped}`,
      vectors: whole(arrays, "scores", "scores"),
      shape: arrays.scores.shape,
      ops: inLayer("attn.attention"),
      reads: NOTHING,
      parts: ["keys"],
      inside: true,
    },
    {
      key: "softmax",
      name: "softmax",
      what: "scores as weights that sum to 1",
      vectors: whole(arrays, "weights", "weights"),
      shape: arrays.weights.shape,
      ops: inLayer("attn.attention"),
      reads: NOTHING,
      parts: ["keys"],
      inside: true,
    },
    {
      key: "weighted",
      name: "weighted V",
      what: `the values of the tokens, weighted and summed: the output of head ${head}`,
      vectors: ofHead(arrays, "attn_out", head, "Σ weight · v"),
      shape: arrays.attn_out.shape,
      ops: inLayer("attn.attention"),
      reads: NOTHING,
      parts: [],
    },
    {
      key: "out",
      name: "W_O",
      what: "what each head contributes to the update of attention",
      vectors: whole(arrays, "head_out", `part of head ${head}`),
      shape: arrays.head_out.shape,
      ops: inLayer("attn.out"),
      reads: readBy(place, "attention", "attn.out"),
      parts: ["heads"],
      inside: true,
      note: info.post_norms
        ? "A norm over all heads together follows."
        : "The parts add up to Δ attention, except for a bias of W_O and for adapters.",
    },
    {
      key: "add_attention",
      name: "residual add",
      what: "x + attention",
      vectors: [
        { name: "Δ attention", values: update },
        ...whole(arrays, "resid_mid", "after attention"),
      ],
      shape: arrays.resid_mid.shape,
      ops: inLayer("attn.out"),
      reads: readBy(place, "norm", "attn.out.norm"),
      parts: [{ near: NEAR.attention }, { near: NEAR.mid }],
      note: onStream("attention", update, arrays.resid_pre.values),
    },
  ];
}

/** @param {Place} place @returns {Line[]} */
function mlp(place) {
  const { arrays, info, inLayer } = place;
  const own = inLayer("mlp.norm");
  const up = inLayer("mlp.gate_up", "mlp.up", "mlp.router", "mlp.experts.gate_up");
  const down = inLayer("mlp.down", "mlp.experts.down", "mlp.combine");
  const reads = readBy(place, "mlp", "mlp.gate_up", "mlp.up");
  const update = minus(arrays.resid_post.values, arrays.resid_mid.values);
  const function_ = ACTIVATIONS[info.activation] ?? info.activation;
  const shape = arrays.ffn_hidden?.shape ?? [];
  /** @param {string} which @returns {(tensor: TensorEntry) => boolean} */
  const half = (which) => (tensor) =>
    reads(tensor) && (tensor.name.includes(which) || !/gate_proj|up_proj|ffn_gate|ffn_up/.test(tensor.name));
  return [
    {
      key: "mlp_norm",
      name: "norm2",
      what: info.parallel ? "the layer’s input, normalised for the MLP" : "the input of the MLP, normalised",
      vectors: whole(arrays, "mlp_norm", "norm(x)"),
      shape: arrays.resid_mid.shape,
      ops: own.length ? own : up,
      reads: readBy(place, "norm", "mlp.gate_up", "mlp.up", "mlp.norm", "mlp.router"),
      parts: [],
      inside: !own.length,
    },
    {
      key: "gate",
      name: "W_gate",
      what: "how far each unit of the MLP opens",
      vectors: whole(arrays, "gate", "gate"),
      shape,
      ops: up,
      reads: half("gate"),
      parts: [],
      inside: true,
    },
    {
      key: "act",
      name: function_,
      what: `${function_} of the gate`,
      vectors: whole(arrays, "act", `${function_}(gate)`),
      shape,
      ops: up,
      reads: NOTHING,
      parts: [],
      inside: true,
    },
    {
      key: "up",
      name: "W_up",
      what: arrays.gate ? "what each unit lets through" : "input of each unit of the MLP",
      vectors: whole(arrays, "up", "up"),
      shape,
      ops: up,
      reads: half("up"),
      parts: [],
      inside: true,
    },
    {
      key: "hidden",
      name: arrays.gate ? "multiply" : function_,
      what: arrays.gate ? `${function_}(gate) · up: the outputs of the units` : "the outputs of the units",
      vectors: whole(arrays, "ffn_hidden", "hidden units"),
      shape,
      ops: up,
      reads: NOTHING,
      parts: arrays.ffn_hidden ? ["units"] : [],
    },
    {
      key: "down",
      name: arrays.ffn_hidden ? "W_down" : "experts",
      what: arrays.ffn_hidden
        ? "maps the units back to the width of the stream"
        : "the outputs of the chosen experts, weighted by their gates; the instrument Experts names them",
      vectors: [{ name: "Δ MLP", values: update }],
      shape: arrays.resid_post.shape,
      ops: down,
      reads: readBy(place, "mlp", "mlp.down"),
      parts: [{ near: NEAR.mlp }],
      inside: true,
      note: info.post_norms ? "After the norm that follows." : "",
    },
    {
      key: "add_mlp",
      name: "residual add",
      what: "x + MLP",
      vectors: whole(arrays, "resid_post", "after the MLP"),
      shape: arrays.resid_post.shape,
      ops: down,
      reads: readBy(place, "norm", "mlp.down.norm"),
      parts: [{ near: NEAR.post }],
      note: onStream("MLP", update, arrays.resid_mid.values),
    },
  ];
}

/** What an update does to the stream that it is added to. @param {string} name @param {Vector} update @param {Vector} stream */
function onStream(name, update, stream) {
  const [own, length] = [norm(update), norm(stream)];
  const share = length ? figure(own / length) : "–";
  const angle = cosine(update, stream).toFixed(2).replace("-", "−");
  return `Δ ${name} has norm ${number(own)}, ${share} of the stream’s ${number(length)}, and a cosine of ${angle} to it.`;
}

/** @param {Place} place @returns {Line[]} */
function after({ arrays, info, nLayers, labels }) {
  const last = nLayers - 1;
  const isLast = info.layer === last;
  const head = labels.filter((label) => label === "head");
  const own = labels.filter((label) => label === "head.norm");
  return [
    {
      key: "after",
      name: info.layer + 1 === last ? `layer ${last}` : `layers ${info.layer + 1} … ${last}`,
      what: "the residual stream after the last layer",
      vectors: isLast ? [] : whole(arrays, "final", "after the last layer"),
      shape: arrays.final.shape,
      ops: [],
      reads: NOTHING,
      parts: [],
    },
    {
      key: "final_norm",
      name: "final norm",
      what: "what the output head reads",
      vectors: whole(arrays, "final_norm", "norm(x)"),
      shape: arrays.final.shape,
      ops: own.length ? own : head,
      reads: (tensor) => tensor.kind === "norm" && tensor.layer === null,
      parts: [],
      inside: !own.length,
    },
    {
      key: "unembed",
      name: "W_unembed",
      what: "a score (logit) for each token of the vocabulary",
      vectors: [],
      shape: [],
      ops: head,
      reads: ({ kind, tied_to: tied, read_by: readers }) =>
        kind === "head" || (!tied && kind === "embedding" && readers.includes("head")),
      parts: [{ near: NEAR.final }],
    },
    {
      key: "draw",
      name: "draw",
      what: "the next token, drawn from the scores after temperature and filters",
      vectors: [],
      shape: [],
      ops: labels.filter((label) => label.startsWith("sample")),
      reads: NOTHING,
      parts: ["draw"],
    },
  ];
}

/** The last row of a two-dimensional array. @param {Arrays} arrays @param {string} name */
function lastRow(arrays, name) {
  const { shape, values } = arrays[name];
  return values.subarray((shape[0] - 1) * shape[1]);
}
