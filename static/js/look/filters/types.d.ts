// Shapes of the sampling waterfall (gpu/inspection/waterfall.py).

/** The engine's answer about one token: its shares by stage, and what removed it. */
interface WaterfallRow {
  id: number;
  raw: number;
  penalised: number;
  tempered: number;
  marked: number;
  above: number;
  markedAbove: number;
  after: number;
  cut: number;
  low: number;
  high: number;
  logit: number;
  seen: number;
  written: number;
  count: number;
}

/** A part of the tokens that are not listed; the number of its tokens is null when not known. */
interface RestPart {
  id?: undefined;
  cut: number;
  count: number | null;
  tempered: number;
  marked: number;
}

interface WaterfallStage {
  name: string;
  n_kept: number;
  kept: number;
  removed: number;
  entropy: number;
}

/**
 * A token, or a part of the remaining ones.
 *   id, cut, seen, written, logit, low, high   of the engine's answer; null for a part of the rest
 *   count   number of tokens in it; null when not known
 *   cut     number of the filter that removed it; 0: it was kept
 *   sizes   its share in each column, including that of the filter that removes it
 *   tops    sum of the sizes above it in each column
 */
interface Band {
  id: number | null;
  count: number | null;
  cut: number;
  seen: number;
  written: number;
  logit: number | null;
  low: number | null;
  high: number | null;
  sizes: number[];
  tops: number[];
}

/** The answer as bands (flow.js). */
interface Flow {
  stages: WaterfallStage[];
  draw: number;
  draw_at: number;
  chosen: number;
  greedy: boolean;
  allowed?: { n: number; probability: number };
  bands: Band[];
  forbidden: { id: number; share: number }[];
  byId: Map<number | null, Band>;
}

/** Values of the settings that have a stage, by name. */
type StageSettings = Record<string, number>;

type NamedBand = Pick<Band, "id"> & Partial<Band>;

interface StageChange {
  name: string;
  label: string;
  from: number;
  to: number;
}

/** What the instrument shows; `real`: the run, under a preview; null: `flow` is the run. */
interface FlowNow {
  token: Token;
  used: StageSettings;
  wanted: StageSettings;
  changes: StageChange[];
  texts: Map<number, string>;
  flow: Flow;
  real: Flow | null;
  vocabulary: number;
  nameOf(band: NamedBand): string;
}
