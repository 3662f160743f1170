// Texts that begin alike, as a tree: what they share is written once.

/**
 * A stretch of tokens that the same texts share.
 *
 *   from, to   its tokens: from … to − 1, numbered from the texts' beginning
 *   row        the line it is drawn on: that of its first text
 *   parent     the stretch it parts from, or null
 *   leaves     numbers of the texts that share it, in order
 *
 * @typedef {{from: number, to: number, row: number, parent: Node | null, leaves: number[]}} Node
 */

/**
 * The tree of `texts` (lists of tokens with `id`). `nodes`: parents before children; `rows`: number
 * of the text on each line. A text that another one begins with ends in a stretch of no length.
 */
export function treeOf(texts) {
  const tree = { nodes: [], rows: [] };
  if (texts.length) grow(tree, texts, texts.map((_, leaf) => leaf), 0, null);
  return tree;
}

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

/** A text that is over where others go on, or a second one that is the same. */
function end(tree, node, leaf, group) {
  const { to, leaves } = node;
  if (leaves.length > 1 && !(leaf === group[0] && leaf === leaves[0]))
    tree.nodes.push({ from: to, to, row: tree.rows.length, parent: node, leaves: [leaf] });
  return leaf;
}

/** How far all of them are the same, from `from` on. */
function sharedUntil(texts, [first, ...others], from) {
  const own = texts[first];
  let to = from;
  while (to < own.length && others.every((leaf) => texts[leaf][to]?.id === own[to].id)) to += 1;
  return to;
}

/** Who goes on with the same token there (or ends), in the order of the first of each. */
function partsAt(texts, leaves, at) {
  const parts = new Map();
  for (const leaf of leaves) {
    const key = texts[leaf][at]?.id ?? null;
    if (!parts.has(key)) parts.set(key, []);
    parts.get(key).push(leaf);
  }
  return [...parts.values()];
}

/**
 * What the model makes of a text, at temperature 1: {total, mean, n}, log-probabilities in nats;
 * null where those of some of its tokens are not here.
 */
export function likelihoodOf(tokens) {
  const n = tokens.length;
  const total = tokens.reduce((sum, { logprob }) => sum + logprob, 0);
  const known = n > 0 && Number.isFinite(total);
  return { n, total: known ? total : null, mean: known ? total / n : null };
}
