// The connection of this page: to the server, or to an engine in this browser. A page says
// <meta name="tokenglass-engine" content="local" data-base="model/"> if it has no server.

import { Socket, socketUrl } from "./socket.js";
import { WorkerSocket } from "./worker-socket.js";

const meta = document.querySelector('meta[name="tokenglass-engine"][content="local"]');
/** Has this page a server that can run the model? */
export const hasServer = meta === null;
/** Address of the export that runs in this browser; null: the model runs on the server. */
let base = hasServer ? null : new URL(meta.dataset.base ?? "", document.baseURI).href;
let socket = null;
let listener = null;

/** Does the model run in this browser? */
export const isLocal = () => base !== null;

export function connect(onMessage, onConnection) {
  listener = { onMessage, onConnection };
  open();
}

function open() {
  const { onMessage, onConnection } = listener;
  // A closed connection may still have messages under way.
  const mine = (handle) => (...args) => socket === opened && handle(...args);
  const opened = isLocal()
    ? new WorkerSocket(localModel(), mine(onMessage), mine(onConnection))
    : new Socket(socketUrl(), mine(onMessage), mine(onConnection));
  socket = opened;
  socket.open();
}

/**
 * Let the model run in this browser, from the export at `newBase`, or on the server (null). The
 * conversation stays; a run of the other side is over.
 */
export function moveEngine(newBase) {
  socket.close();
  base = newBase === null ? null : new URL(newBase, document.baseURI).href;
  listener.onConnection("connecting", 0);
  open();
}

/** Return the address of the exported model, and the declarations of the sampling settings. */
function localModel() {
  return { base, sampling: JSON.parse(document.getElementById("sampling-data").textContent) };
}

/** Send a message; false while disconnected. */
export const send = (message) => socket.send(message);

/** id of a generation outside the conversation → listener for its messages */
const listeners = new Map();

/** Send the messages of generation `id` to `receive`; null removes it. */
export function listenTo(id, receive) {
  if (receive) listeners.set(id, receive);
  else listeners.delete(id);
}

export const notifyListener = (message) => listeners.get(message.id)?.(message);

/** Reconnect now, if disconnected. */
export const reconnect = () => socket.retry();
