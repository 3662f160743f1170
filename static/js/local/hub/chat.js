// What makes a prompt of a conversation, from a model's own files: `chat` of an export's manifest
// (gpu/text/folder.py and tokenizer.py read the same).

/**
 * Return {bos_token, eos_token, eos_ids, chat_template, tool_template}. `files`: parsed JSON by name;
 * `template`: chat_template.jinja, or null.
 */
export function chatOf(files, template) {
  const config = files["tokenizer_config.json"] ?? {};
  const older = files["special_tokens_map.json"] ?? {};
  const [bos, eos] = ["bos_token", "eos_token"].map((key) =>
    textOf(key in config ? config[key] : older[key], key),
  );
  const id = eos === null ? null : idOf(files["tokenizer.json"], eos);
  const [chat, tools] = template === null ? templatesOf(config.chat_template) : [template, null];
  return {
    bos_token: bos,
    eos_token: eos,
    eos_ids: id === null ? [] : [id],
    chat_template: chat,
    tool_template: tools,
  };
}

/** A token is its text, or an object with its `content`. */
function textOf(value, key) {
  const text = value?.content ?? value ?? null;
  if (text !== null && typeof text !== "string")
    throw new Error(`${key} of tokenizer_config.json must be a token's text or have its content`);
  return text;
}

/** Return the id of a token, or null. */
function idOf({ added_tokens: added = [], model }, token) {
  const found = added.find(({ content }) => content === token);
  if (found) return found.id;
  const { vocab = {} } = model;
  if (!Array.isArray(vocab)) return vocab[token] ?? null;
  const id = vocab.findIndex(([piece]) => piece === token);
  return id < 0 ? null : id;
}

/** Return the default template and that for tools. */
function templatesOf(value) {
  if (value === undefined || value === null || typeof value === "string") return [value ?? null, null];
  const entries = Array.isArray(value) ? value : [];
  const named = new Map(entries.map(({ name, template }) => [name, template]));
  return [named.get("default") ?? named.values().next().value ?? null, named.get("tool_use") ?? null];
}
