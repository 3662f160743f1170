// Train: an adapter trained on the user's lines, one step of a full fine-tune on a text, and what a loaded
// adapter changed. All is computed by the server.

import { hasServer, isLocal } from "../../net/connection.js";
import { Missing } from "../shared/context.js";
import { Views } from "../shared/views.js";
import { adapterView } from "./adapter.js";
import { changesView } from "./changes.js";
import { stepView } from "./step-view.js";

/** @type {Views<Focus>} */
const views = new Views("train-view", [adapterView, stepView, changesView]);

/** @type {Instrument} */
export const train = {
  needs: "nothing",
  setUp: (root) => views.setUp(root),
  show(focus) {
    if (!hasServer) throw new Missing("Only a server trains adapters, and this page has none.");
    if (isLocal()) throw new Missing("The model runs in this browser. Training needs it on the server.");
    return views.show(focus);
  },
  hide: (isClosed) => views.hide(isClosed),
  table: () => views.table(),
};
