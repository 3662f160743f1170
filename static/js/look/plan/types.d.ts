// Shapes of plans and their costs, which the timeline and the tour use, too.

/** Dispatches before, in or after a layer; a cell has those of one label, by their numbers in the plan. */
interface PlanRow {
  title: string;
  layer: number | null;
  cells: { label: string; name: string; numbers: number[] }[];
}

/**
 * Peak rates of the device; `read_bytes`: read by the shader that measured the bandwidth; `cache_bytes`:
 * the largest set that is read faster than memory. 0: the device has none of it.
 */
interface Peaks {
  bytes_per_s: number;
  flops_per_s: number;
  read_bytes?: number;
  cache_bytes?: number;
  cache_bytes_per_s?: number;
  bus_bytes_per_s?: number;
}

/** What is known of them: nothing of an engine without a GPU. */
type KnownPeaks = Peaks | { [Name in keyof Peaks]?: undefined };

/** Operations of a step, and bytes that it moves. */
interface StepCost {
  flops: number;
  bytes: number;
}
