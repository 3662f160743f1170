// The connection of this page: to the server, or to an engine in this browser where the page says
// <meta name="tokenglass-engine" content="local" data-base="model/">.

import { Socket, socketUrl } from "./socket.js";
import { WorkerSocket } from "./worker-socket.js";

const meta = document.querySelector('meta[name="tokenglass-engine"][content="local"]');
/** Does the model run in this browser? */
export const isLocal = meta !== null;
let socket = null;

export function connect(onMessage, onConnection) {
  socket = isLocal
    ? new WorkerSocket(localModel(), onMessage, onConnection)
    : new Socket(socketUrl(), onMessage, onConnection);
  socket.open();
}

/** Return the address of the exported model, and the declarations of the sampling settings. */
function localModel() {
  const base = new URL(meta.dataset.base ?? "", document.baseURI).href;
  return { base, sampling: JSON.parse(document.getElementById("sampling-data").textContent) };
}

/** Send a message; false while disconnected. */
export const send = (message) => socket.send(message);

/** id of a generation outside the conversation → listener for its messages */
const listeners = new Map();

/** Send the messages of generation `id` to `listener`; null removes it. */
export function listenTo(id, listener) {
  if (listener) listeners.set(id, listener);
  else listeners.delete(id);
}

export const notifyListener = (message) => listeners.get(message.id)?.(message);

/** Reconnect now, if disconnected. */
export const reconnect = () => socket.retry();
