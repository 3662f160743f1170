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

/** A column of figures beside the rows of a grid: `at` is the length of a bar, from 0 to 1. */
interface GridColumn<T> {
  name: string;
  at(layer: T): number;
  text(layer: T): string;
}

/** Places of a grid of layers and experts (grid.js). */
interface GridPlaces<T> {
  column: number;
  row: number;
  numbered: boolean;
  worded: boolean;
  foot: number;
  right: number;
  x(expert: number): number;
  y(layer: number): number;
  wide(expert: number): number;
  high: number;
  beside: (GridColumn<T> & { x: number })[];
}

/** Where an expert was in a step: in host memory only, on the device and not used, used there, or loaded. */
type ExpertState = "" | "held" | "found" | "brought";
