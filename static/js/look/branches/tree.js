// Prefix tree of texts: shared prefixes are stored once.


/**
 * Build the tree of `texts` (lists of tokens with `id`). `nodes`: parents before children; `rows`:
 * number of the text on each line. A text that is a prefix of another ends in an empty edge.
 *
 * @param {BranchToken[][]} texts
 */
export function treeOf(texts) {
  /** @type {TextTree} */
  const tree = { nodes: [], rows: [] };
  if (texts.length) grow(tree, texts, texts.map((_, leaf) => leaf), 0, null);
  return tree;
}

/**
 * @param {TextTree} tree
 * @param {BranchToken[][]} texts
 * @param {number[]} leaves
 * @param {number} from
 * @param {TreeEdge | null} parent
 */
function grow(tree, texts, leaves, from, parent) {
  const to = sharedUntil(texts, leaves, from);
  const node = { from, to, row: tree.rows.length, parent, leaves };
  tree.nodes.push(node);
  const groups = partsAt(texts, leaves, to);
  for (const group of groups) {
    const over = texts[group[0]].length === to;
    if (!over) grow(tree, texts, group, to, node);
    else for (const leaf of group) tree.rows.push(end(tree, node, leaf, group));
  }
}

/**
 * Add a leaf for a text that ends where others continue, or that equals another.
 *
 * @param {TextTree} tree
 * @param {TreeEdge} node
 * @param {number} leaf
 * @param {number[]} group
 */
function end(tree, node, leaf, group) {
  const { to, leaves } = node;
  if (leaves.length > 1 && !(leaf === group[0] && leaf === leaves[0]))
    tree.nodes.push({ from: to, to, row: tree.rows.length, parent: node, leaves: [leaf] });
  return leaf;
}

/**
 * Number of tokens that all these texts share, counted from the start; search begins at `from`.
 *
 * @param {BranchToken[][]} texts
 * @param {number[]} leaves
 * @param {number} from
 */
function sharedUntil(texts, [first, ...others], from) {
  const own = texts[first];
  let to = from;
  while (to < own.length && others.every((leaf) => texts[leaf][to]?.id === own[to].id)) to += 1;
  return to;
}

/**
 * Group texts by their next token (or end), in order of first occurrence.
 *
 * @param {BranchToken[][]} texts
 * @param {number[]} leaves
 * @param {number} at
 */
function partsAt(texts, leaves, at) {
  /** @type {Map<number | null, number[]>} */
  const parts = new Map();
  for (const leaf of leaves) {
    const key = texts[leaf][at]?.id ?? null;
    const own = parts.get(key);
    if (own) own.push(leaf);
    else parts.set(key, [leaf]);
  }
  return [...parts.values()];
}

/**
 * Likelihood of a text at temperature 1: {total, mean, n}, log-probabilities in nats; null if some
 * are unknown.
 *
 * @param {BranchToken[]} tokens
 */
export function likelihoodOf(tokens) {
  const n = tokens.length;
  const total = tokens.reduce((sum, { logprob }) => sum + logprob, 0);
  const known = n > 0 && Number.isFinite(total);
  return { n, total: known ? total : null, mean: known ? total / n : null };
}
