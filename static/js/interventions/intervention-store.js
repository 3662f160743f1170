// Interventions set on the page: they act on the current run and every later answer until reset.
// Every step can be undone.

import {
  factorOf,
  fitToModel,
  isPlace,
  newKey,
  NO_INTERVENTIONS,
  withFactor,
  withLora,
} from "./intervention-wire.js";
import { on, setState, state } from "../state.js";

const MAX_STEPS = 200;

/**
 * Return a store for `setting`, which another version of the page may have saved: with defaults for
 * missing fields, and without factors of places unknown here.
 *
 * @param {Partial<Setting>} [setting]
 * @returns {InterventionStore}
 */
export function newStore({ factors = {}, ...setting } = {}) {
  const known = Object.entries(factors).filter(([place]) => isPlace(place));
  return {
    setting: { ...NO_INTERVENTIONS, ...setting, factors: Object.fromEntries(known) },
    past: [],
    future: [],
  };
}

/** Called after each change, before anything else is sent. */
let onChange = () => {};

/**
 * Drop interventions on layers and heads that a newly loaded model does not have.
 *
 * @param {() => void} onChanged
 */
export function setUpInterventionStore(onChanged) {
  onChange = onChanged;
  on("hello", () => {
    if (!state.hello || state.replay) return;
    const fits = fitToModel(state.interventions.setting, state.hello.model);
    if (JSON.stringify(fits) !== JSON.stringify(state.interventions.setting)) put(newStore(fits));
  });
}

// ---- changing ----------------------------------------------------------------------------------

/**
 * Set `setting` as one undoable step. Steps of the same `gesture` (any value that stays the same
 * during a drag) are undone together.
 *
 * @param {Setting} setting
 * @param {unknown | null} [gesture]
 */
export function change(setting, gesture = null) {
  const { interventions } = state;
  if (state.replay || JSON.stringify(setting) === JSON.stringify(interventions.setting)) return;
  const last = interventions.past.at(-1);
  const sameGesture = gesture !== null && last?.gesture === gesture && !interventions.future.length;
  const step = { setting: interventions.setting, gesture };
  const past = sameGesture ? interventions.past : [...interventions.past, step].slice(-MAX_STEPS);
  put({ setting, past, future: [] });
}

export function undo() {
  const { setting, past, future } = state.interventions;
  const step = past.at(-1);
  if (!step || state.replay) return false;
  put({ setting: step.setting, past: past.slice(0, -1), future: [...future, setting] });
  return true;
}

export function redo() {
  const { setting, past, future } = state.interventions;
  if (!future.length || state.replay) return false;
  const step = { setting, gesture: null };
  put({ setting: future[future.length - 1], past: [...past, step], future: future.slice(0, -1) });
  return true;
}

/** Remove all interventions. Can be undone. */
export const reset = () => change(NO_INTERVENTIONS);

/** @param {InterventionStore} store */
function put(store) {
  setState({ interventions: store });
  if (state.problem?.param?.startsWith("reach")) setState({ problem: null });
  onChange();
}

// ---- factors -----------------------------------------------------------------------------------

/**
 * @param {string} place
 * @param {number} factor
 * @param {unknown | null} [gesture]
 */
export const setFactor = (place, factor, gesture = null) =>
  change(withFactor(state.interventions.setting, place, factor), gesture);

/** Switch a place off, or on again. @param {string} place */
export const toggle = (place) =>
  setFactor(place, factorOf(state.interventions.setting, place) === 0 ? 1 : 0);

// ---- adapters ----------------------------------------------------------------------------------

/**
 * @param {string} name
 * @param {number} strength
 * @param {unknown | null} [gesture]
 */
export const setLora = (name, strength, gesture = null) =>
  change(withLora(state.interventions.setting, name, strength), gesture);

export const clearLoras = () => change({ ...state.interventions.setting, loras: {} });

// ---- vectors and patches -----------------------------------------------------------------------

/**
 * Add a steering vector or a patch; `list`: "steer" or "patch".
 *
 * @param {"steer" | "patch"} list
 * @param {Partial<Setting["steer"][number] & Setting["patch"][number]>} one
 */
export function add(list, one) {
  const { setting } = state.interventions;
  const added = [...setting[list], { key: newKey(), muted: false, ...one }];
  change(/** @type {Setting} */ ({ ...setting, [list]: added }));
}

/**
 * @param {"steer" | "patch"} list
 * @param {string} key
 * @param {Partial<Setting["steer"][number] & Setting["patch"][number]>} values
 * @param {unknown | null} [gesture]
 */
export function edit(list, key, values, gesture = null) {
  const { setting } = state.interventions;
  const edited = setting[list].map((one) => (one.key === key ? { ...one, ...values } : one));
  change(/** @type {Setting} */ ({ ...setting, [list]: edited }), gesture);
}

/**
 * @param {"steer" | "patch"} list
 * @param {string} key
 */
export function remove(list, key) {
  const { setting } = state.interventions;
  change({ ...setting, [list]: setting[list].filter((one) => one.key !== key) });
}

/** Remove all patches, whose positions belong to the current text. */
export function clearPatches() {
  const { setting } = state.interventions;
  if (setting.patch.length) change({ ...setting, patch: [] });
}
