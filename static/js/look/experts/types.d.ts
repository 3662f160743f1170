// Shapes of the experts instrument.

/** Use of the experts of a MoE layer (figures.js). */
type ExpertLayer = ReturnType<typeof import("./figures.js").layersOf>[number];

/** Summary of all layers (figures.js). */
type ExpertTotal = ReturnType<typeof import("./figures.js").totalOf>;

interface ExpertCell {
  layer: number;
  expert: number;
}

/** What the colours show. */
type ExpertMode = "run" | "token";

/** What is drawn (experts.js). */
interface ExpertsNow {
  use: Answer["use"];
  counted: number;
  layers: ExpertLayer[];
  n: number;
  nLayers: number;
  mode: ExpertMode;
  stats: Stats | null;
  byLayer: Map<number, ExpertLayer>;
  at: ExpertLayer;
  word: string;
}
