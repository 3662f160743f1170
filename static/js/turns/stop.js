// Stopping the run of the page's conversation.

import { send } from "../net/connection.js";
import { state } from "../state.js";

/** Stop the run and keep its text. */
export function stop() {
  if (state.replay) return false;
  const segment = state.active?.segment;
  if (!segment) return false;
  send({ type: "stop", id: segment.id });
  return true;
}
