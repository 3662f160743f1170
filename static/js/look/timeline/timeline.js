// Timeline instrument: what host, GPU, network and page did during a request, and what of the prompt
// each answer of the conversation reused or computed.

import { Views } from "../shared/views.js";
import { request } from "./request.js";
import { turns } from "./turns.js";

/** @type {Views<RunFocus>} */
const views = new Views("timeline-view", [request, turns]);

/** Show the request in view, for the tour or a lesson. */
export const showRequest = () => views.lend(request.name);

/** @type {Instrument} */
export const timeline = {
  needs: "run",
  setUp: (root) => views.setUp(root),
  show: (focus) => views.show(focus),
  hide: (isClosed) => views.hide(isClosed),
  table: () => views.table(),
};
