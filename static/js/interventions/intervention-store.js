// What a hand has set inside the model: it acts on what is being written and on every answer after,
// until it is taken back. Every step can be undone.

import { saveSoon } from "./persist.js";
import { factorOf, fitting, newKey, NONE, withFactor, withLora } from "./reachsetting.js";
import { changed, on, state } from "./state.js";
import { pushSettings } from "./updates.js";

const MOST_STEPS = 200;

/** A desk on which `setting` lies: state.reach. What was kept by an older page may lack something. */
export const deskOf = (setting) => ({ setting: { ...NONE, ...setting }, past: [], future: [] });

/** Another model may have fewer layers and heads: what is set there goes. */
export function setUpReachDesk() {
  on("hello", () => {
    if (!state.hello || state.replay) return;
    const fits = fitting(state.reach.setting, state.hello.model);
    if (JSON.stringify(fits) !== JSON.stringify(state.reach.setting)) put(deskOf(fits));
  });
}

// ---- changing ----------------------------------------------------------------------------------

/**
 * Let `setting` be what is set. Steps of one `gesture` (a drag: any value that is the same during
 * it) are undone together.
 */
export function change(setting, gesture = null) {
  const { reach } = state;
  if (state.replay || JSON.stringify(setting) === JSON.stringify(reach.setting)) return;
  const last = reach.past.at(-1);
  const goesOn = gesture !== null && last?.gesture === gesture && !reach.future.length;
  const step = { setting: reach.setting, gesture };
  const past = goesOn ? reach.past : [...reach.past, step].slice(-MOST_STEPS);
  put({ setting, past, future: [] });
}

export function undo() {
  const { setting, past, future } = state.reach;
  const step = past.at(-1);
  if (!step || state.replay) return false;
  put({ setting: step.setting, past: past.slice(0, -1), future: [...future, setting] });
  return true;
}

export function redo() {
  const { setting, past, future } = state.reach;
  if (!future.length || state.replay) return false;
  const step = { setting, gesture: null };
  put({ setting: future.at(-1), past: [...past, step], future: future.slice(0, -1) });
  return true;
}

/** Leave everything alone again. It can be undone. */
export const reset = () => change(NONE);

function put(desk) {
  state.reach = desk;
  if (state.problem?.param?.startsWith("reach")) state.problem = null;
  saveSoon();
  pushSettings();
  changed("reach");
}

// ---- factors -----------------------------------------------------------------------------------

export const setFactor = (place, factor, gesture = null) =>
  change(withFactor(state.reach.setting, place, factor), gesture);

/** Off, or on again. */
export const toggle = (place) =>
  setFactor(place, factorOf(state.reach.setting, place) === 0 ? 1 : 0);

// ---- adapters ----------------------------------------------------------------------------------

export const setLora = (name, strength, gesture = null) =>
  change(withLora(state.reach.setting, name, strength), gesture);

export const lorasOff = () => change({ ...state.reach.setting, loras: {} });

// ---- vectors and patches -----------------------------------------------------------------------

/** `list`: "steer" or "patch". */
export function add(list, one) {
  const { setting } = state.reach;
  change({ ...setting, [list]: [...setting[list], { key: newKey(), muted: false, ...one }] });
}

export function edit(list, key, values, gesture = null) {
  const { setting } = state.reach;
  const edited = setting[list].map((one) => (one.key === key ? { ...one, ...values } : one));
  change({ ...setting, [list]: edited }, gesture);
}

export function remove(list, key) {
  const { setting } = state.reach;
  change({ ...setting, [list]: setting[list].filter((one) => one.key !== key) });
}

/** Another text is asked for: patches are of tokens of this one. */
export function dropPatches() {
  const { setting } = state.reach;
  if (setting.patch.length) change({ ...setting, patch: [] });
}
