// Shapes of the branches instrument.

/** A token of a text of the tree. */
type BranchToken = Pick<Token, "id" | "text" | "logprob"> & { eos?: boolean; put?: boolean };

/**
 * An edge of the tree: tokens shared by the same texts.
 *
 *   from, to   tokens from … to − 1, numbered from the start of the texts
 *   row        line it is drawn on, that of its first text
 *   parent     the edge it branches from, or null
 *   leaves     numbers of the texts that share it, in order
 */
interface TreeEdge {
  from: number;
  to: number;
  row: number;
  parent: TreeEdge | null;
  leaves: number[];
}

/** Edges, parents before children, and the number of the text on each line (tree.js). */
interface TextTree {
  nodes: TreeEdge[];
  rows: number[];
}

/** Places of tokens on the canvas (draw.js). */
interface TreeScale {
  width: number;
  x(index: number): number;
  at(px: number): number;
}

/** Texts to show as a tree, and what can be done with them (branches.js). */
interface TreeTexts {
  texts: BranchToken[][];
  names: string[];
  partings: ({ of: number; at: number } | null)[];
  shown: number | null;
  focus: number | null;
  each: boolean;
  choose?: ((i: number) => void) | null;
  act(i: number): string;
  says: string;
  source: string;
}

type TreeNow = TreeTexts & { tree: TextTree; scale: TreeScale };

interface BeamSettings {
  width: number;
  depth: number;
  perToken: boolean;
}

type TreeMode = "versions" | "beam";
