// Names that articles give to the tensors of a model: W_Q for model.layers.3.self_attn.q_proj.weight.

/** Article's name by module name in the files of a Llama or GPT-2. @type {Record<string, string>} */
const NAMES = {
  "model.embed_tokens": "W_E",
  input_layernorm: "norm1",
  "self_attn.q_proj": "W_Q",
  "self_attn.k_proj": "W_K",
  "self_attn.v_proj": "W_V",
  "self_attn.qkv_proj": "W_Q W_K W_V",
  "self_attn.o_proj": "W_O",
  post_attention_layernorm: "norm2",
  "mlp.gate": "W_router",
  "mlp.gate_proj": "W_gate",
  "mlp.up_proj": "W_up",
  "mlp.gate_up_proj": "W_gate W_up",
  "mlp.down_proj": "W_down",
  "model.norm": "final norm",
  lm_head: "W_unembed",
  wte: "W_E",
  wpe: "W_pos",
  ln_1: "norm1",
  "attn.c_attn": "W_Q W_K W_V",
  "attn.c_proj": "W_O",
  ln_2: "norm2",
  "mlp.c_fc": "W_up",
  "mlp.c_proj": "W_down",
  ln_f: "final norm",
};

/** Name of a tensor in articles; "" if they have none. @param {string} name */
export function articleName(name) {
  const own = NAMES[moduleOf(name)];
  return own ? own + (name.endsWith(".bias") ? " bias" : "") : "";
}

/** "self_attn.q_proj" of model.layers.3.self_attn.q_proj.weight. @param {string} name */
export const moduleOf = (name) =>
  name.replace(/^(transformer\.)?(model\.layers|h)\.\d+\.|^transformer\./, "").replace(/\.(weight|bias)$/, "");
