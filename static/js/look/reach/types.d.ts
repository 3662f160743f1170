// Shapes of Reach in.

/** A value without and one with interventions. */
interface Both<Value> {
  without: Value;
  with: Value;
}

interface EffectQuery {
  key: string;
  question: FromPage.LogitLens;
}

/** What is asked about the effect on the focused token, or why nothing is (effect.js). */
type EffectAsked = Both<EffectQuery> & {
  key: string;
  did: boolean;
  chosen: number;
  name: string;
  label: string;
  why?: undefined;
};
type Effect = EffectAsked | { why: string; label?: undefined; name?: undefined };

/** The effect on the focused token. */
interface EffectFound {
  byLayer: Both<Float32Array | Uint32Array>;
  tokens: (Both<number | null> & { id: number; text: string })[];
  entropy: Both<number>;
  rank: Both<number>;
}

/** A range slider. */
interface RangeSlider {
  node: HTMLElement;
  input: HTMLInputElement;
}

/** A token as a place to patch, or why it cannot be one. */
type PatchTarget =
  | { position: number; at: number | null; token: Token | PromptToken; here: string; why?: undefined }
  | { why: string };

type SteerVector = Setting["steer"][number];
type PatchEntry = Setting["patch"][number];
