// The page's controls (sampling panel, adapters, Reach in) act for a while on settings that are not
// the page's own: those of a column of a comparison.

import { changed, state } from "../state.js";

/** Who has the controls: {name, settings, interventions}, or null. */
let borrower = null;

/**
 * Lend the controls to `one` {name, settings, interventions}, whose fields they change from now on.
 * `interventions`: a store of interventions/intervention-store.js.
 */
export function lendControls(one) {
  if (borrower === one) return;
  if (borrower) borrower.interventions = state.interventions;
  const { settings, interventions } = state.own ?? state;
  borrower = one;
  state.own = { settings, interventions, borrower: one.name };
  Object.assign(state, { settings: one.settings, interventions: one.interventions });
  changed("settings", "interventions");
}

/** Give the controls back to the page. */
export function returnControls() {
  if (!borrower) return;
  borrower.interventions = state.interventions;
  const { settings, interventions } = state.own;
  borrower = state.own = state.compared = null;
  Object.assign(state, { settings, interventions });
  changed("settings", "interventions");
}

/** The interventions that the controls of `one` have set. */
export const interventionsOf = (one) =>
  one === borrower ? state.interventions : one.interventions;
