// Grammar that the text of a run follows (gpu/grammar.py).

/**
 * Return {grammar} for a request about the text after `n` more tokens of a run with `grammar`; {}
 * if it has none.
 *
 * @param {FromPage.Grammar | null | undefined} grammar
 * @param {number} n
 */
export function grammarAfter(grammar, n) {
  if (!grammar) return {};
  return { grammar: { ...grammar, n_read: (grammar.n_read ?? 0) + n } };
}
