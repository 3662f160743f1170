// Experts instrument: which experts the tokens were routed to, which can be spared, and what offloaded
// ones cost to load.

import { Views } from "../shared/views.js";
import { offload } from "./offload.js";
import { prune } from "./prune.js";
import { use } from "./use.js";

/** @type {Views<RunFocus>} */
const views = new Views("ex-view", [use, prune, offload]);

/** @type {Instrument} */
export const experts = {
  needs: "run",
  setUp: (root) => views.setUp(root),
  show: (focus) => views.show(focus),
  hide: (isClosed) => views.hide(isClosed),
  table: () => views.table(),
};
