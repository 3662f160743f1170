// Binding of the page's controls (sampling panel, adapters, Reach in) to a column of a comparison:
// they change that column's settings instead of the page's own until they are released.

import { setState, state } from "../state.js";

/** @typedef {{name: string, settings: Settings, interventions: InterventionStore}} Bindable */

/**
 * What the controls are bound to: {name, settings, interventions}; null: the page.
 *
 * @type {Bindable | null}
 */
let target = null;

/**
 * Bind the controls to `one` {name, settings, interventions}, whose fields they change from now on.
 * `interventions`: a store of interventions/intervention-store.js.
 *
 * @param {Bindable} one
 */
export function bindControls(one) {
  if (target === one) return;
  if (target) target.interventions = state.interventions;
  const { settings, interventions } = state.own ?? state;
  target = one;
  setState({
    own: { settings, interventions, target: one.name },
    settings: one.settings,
    interventions: one.interventions,
  });
}

/** Let the controls act on the page's own settings again. */
export function releaseControls() {
  if (!target || !state.own) return;
  target.interventions = state.interventions;
  const { settings, interventions } = state.own;
  target = null;
  setState({ own: null, compared: null, settings, interventions });
}

/** The interventions that the controls of `one` have set. @param {Bindable} one */
export const interventionsOf = (one) =>
  one === target ? state.interventions : one.interventions;
