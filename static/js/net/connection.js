// @ts-nocheck
// The connection of this page: to the server, or to an engine in this browser. A page says
// <meta name="tokenglass-engine" content="local" data-base="model/"> if it has no server.

import {
  findRememberedPlace,
  isPlaceRemembered,
  rememberLoaded,
  rememberPlace,
} from "./remembered-place.js";
import { Socket, socketUrl } from "./socket.js";
import { WorkerSocket } from "./worker-socket.js";

const meta = document.querySelector('meta[name="tokenglass-engine"][content="local"]');
/** Has this page a server that can run the model? */
export const hasServer = meta === null;
/**
 * The model that runs in this browser: {base}, the address of an export, or {hub} (local/hub), with
 * its `dtype` and its `name` of a hub, else ""; null: it runs on the server.
 */
let here = hasServer ? null : { base: absolute(meta.dataset.base ?? "") };
let socket = null;
let listener = null;

/** Does the model run in this browser? */
export const isLocal = () => here !== null;

/** What runs or is to run in this browser, or null. */
export const placeHere = () => here;

/**
 * Connect to where the model ran before a reload. `onStayed(problem)` is called if that was in this
 * browser and it cannot go on there.
 */
export async function connect(onMessage, onConnection, onStayed) {
  listener = { onMessage, onConnection };
  if (hasServer && isPlaceRemembered()) {
    const { place, problem } = await findRememberedPlace();
    here = place;
    if (problem) onStayed(problem);
  }
  open();
}

function open() {
  const { onMessage, onConnection } = listener;
  // A closed connection may still have messages under way.
  const mine = (handle) => (...args) => socket === opened && handle(...args);
  const place = here;
  const onLocalMessage = (message) => {
    if (message.type === "hello" && hasServer) rememberLoaded(place, message.model);
    onMessage(message);
  };
  const opened = isLocal()
    ? new WorkerSocket(localModel(), mine(onLocalMessage), mine(onConnection))
    : new Socket(socketUrl(), mine(onMessage), mine(onConnection));
  socket = opened;
  socket.open();
}

/** Return an address that is relative to the page. */
export function absolute(address) {
  return new URL(address, document.baseURI).href;
}

/**
 * Let a model run in this browser, a `here`, or the server's there (null). The conversation stays; a
 * run of the other side is over.
 */
export function moveEngine(place) {
  socket.close();
  here = place;
  rememberPlace(place);
  listener.onConnection("connecting", 0);
  open();
}

/** Return what the worker is started with. */
function localModel() {
  return { ...here, sampling: JSON.parse(document.getElementById("sampling-data").textContent) };
}

/** Send a message; false while disconnected. */
export const send = (message) => socket?.send(message) ?? false;

/** id of a generation outside the conversation → listener for its messages */
const listeners = new Map();

/** Send the messages of generation `id` to `receive`; null removes it. */
export function listenTo(id, receive) {
  if (receive) listeners.set(id, receive);
  else listeners.delete(id);
}

export const notifyListener = (message) => listeners.get(message.id)?.(message);

/** Reconnect now, if disconnected. */
export const reconnect = () => socket?.retry();
