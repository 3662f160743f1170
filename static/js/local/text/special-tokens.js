// Special tokens that the files beside tokenizer.json name (gpu/text/added_tokens.py).

export const ROLES = ["bos", "eos", "unk", "sep", "pad", "cls", "mask"].map((kind) => `${kind}_token`);
const NAMED = "_token";

/**
 * Return {named, others}: tokens by the names that chat templates know them by, and tokens without a
 * name. `files`: parsed files of the model by name. special_tokens_map.json goes before
 * tokenizer_config.json, but counts only if that has no `added_tokens_decoder`.
 *
 * @param {TokenizerFiles} files
 */
export function readSpecialTokens(files) {
  const config = files["tokenizer_config.json"] ?? {};
  const older = config.added_tokens_decoder ? {} : (files["special_tokens_map.json"] ?? {});
  const values = { ...config, ...older };
  /** @type {Record<string, NamedToken | null>} */
  const named = {};
  for (const role of ROLES) named[role] = roleOf(values[role], role);
  for (const [name, value] of Object.entries(values))
    if (name.endsWith(NAMED) && !ROLES.includes(name)) named[name] = tokenOf(value);
  const own = filled(config.extra_special_tokens) ?? filled(config.additional_special_tokens);
  /** @type {(NamedToken | null)[]} */
  const others = [];
  for (const many of [own, older.extra_special_tokens, own ? null : older.additional_special_tokens]) {
    const isList = Array.isArray(many);
    for (const [name, value] of typeof many === "object" ? Object.entries(many ?? {}) : [])
      if (!isList && name.endsWith(NAMED)) named[name] = tokenOf(value);
      else others.push(tokenOf(value));
  }
  /** @type {Record<string, NamedToken>} */
  const present = {};
  for (const [name, token] of Object.entries(named)) if (token) present[name] = token;
  return { named: present, others: others.filter((token) => token !== null) };
}

/**
 * Return the texts of the special tokens by their names.
 *
 * @param {{named: Record<string, NamedToken>}} tokens
 */
export function textsOf({ named }) {
  return Object.fromEntries(Object.entries(named).map(([name, { content }]) => [name, content]));
}

/** Return a list or an object that is not empty, else null. @param {unknown} many */
const filled = (many) => (many && Object.keys(many).length ? many : null);

/** @param {unknown} value @param {string} role */
function roleOf(value, role) {
  const token = tokenOf(value);
  if (token === null && value !== undefined && value !== null)
    throw new Error(`${role} of tokenizer_config.json must be a token's text or have its content`);
  return token;
}

/**
 * Return a special token given as a text or as an object with its `content`, else null.
 *
 * @param {unknown} value
 * @returns {NamedToken | null}
 */
function tokenOf(value) {
  const entry = /** @type {Record<string, unknown> | null | undefined} */ (
    typeof value === "string" ? { content: value } : value
  );
  if (typeof entry?.content !== "string") return null;
  /** @param {string} name */
  const flag = (name) => entry[name] === true;
  return {
    content: entry.content,
    special: true,
    normalized: flag("normalized"),
    single_word: flag("single_word"),
    lstrip: flag("lstrip"),
    rstrip: flag("rstrip"),
  };
}
