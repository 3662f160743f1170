// What the text of a run must follow, and which tools it may call: the part of its request that also
// holds for the text after its first tokens.

/**
 * Return {grammar} for a question about the text after `n` more tokens of a run with `grammar`
 * (gpu/grammar.py); {} if it has none.
 *
 * @param {FromPage.Grammar | null | undefined} grammar
 * @param {number} n
 */
export function grammarAfter(grammar, n) {
  if (!grammar) return {};
  return { grammar: { ...grammar, n_read: (grammar.n_read ?? 0) + n } };
}

/**
 * Return the fields of a request whose text has `n` more tokens of the answer than that of `request`:
 * n < 0 where a token that was given to that run is replaced. The server makes the grammar of a call
 * that is required, from `tools`.
 *
 * @param {RunRequest} request
 * @param {number} n
 */
export function rulesAfter({ grammar, tools, tool_choice: choice, n_read: nRead, written = 0 }, n) {
  if (!tools) return grammarAfter(grammar, n);
  return { tools, ...(choice && { tool_choice: choice }), n_read: (nRead ?? written) + n };
}
