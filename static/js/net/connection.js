// The connection of this page: to the server, or to an engine in this browser. A page says
// <meta name="tokenglass-engine" content="local" data-base="model/"> if it has no server.

import { pageData } from "../ui/page-data.js";
import {
  findRememberedPlace,
  isPlaceRemembered,
  rememberLoaded,
  rememberPlace,
} from "./remembered-place.js";
import { Socket, socketUrl } from "./socket.js";
import { WorkerSocket } from "./worker-socket.js";

/** @type {HTMLMetaElement | null} */
const meta = document.querySelector('meta[name="tokenglass-engine"][content="local"]');
/** Has this page a server that can run the model? */
export const hasServer = meta === null;
/**
 * Where the model runs. null: on the server. {base}: in this browser, from an export at that address.
 * {hub, dtype, name}: in this browser, from the files of a hub (local/hub), where it is called `name`.
 *
 * @type {PlaceHere | null}
 */
let here = meta && { base: absolute(meta.dataset.base ?? "") };
/** @type {Socket | WorkerSocket | null} */
let socket = null;
/** @type {{onMessage: OnMessage, onConnection: OnConnection} | null} */
let listener = null;

/** Does the model run in this browser? */
export const isLocal = () => here !== null;

/** What runs or is to run in this browser, or null. */
export const placeHere = () => here;

/**
 * Connect to where the model ran before a reload. `onStayed(problem)` is called if that was in this
 * browser and it cannot go on there.
 *
 * @param {OnMessage} onMessage
 * @param {OnConnection} onConnection
 * @param {(problem: string) => void} onStayed
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
  if (!listener) throw new Error("connect() comes first");
  const { onMessage, onConnection } = listener;
  // A closed connection may still have messages under way.
  /**
   * @template {unknown[]} Args
   * @param {(...args: Args) => void} handle
   * @returns {(...args: Args) => void}
   */
  const mine = (handle) => (...args) => void (socket === opened && handle(...args));
  const place = here;
  /** @type {OnMessage} */
  const onLocalMessage = (message) => {
    if (message.type === "hello" && hasServer && place) rememberLoaded(place, message.model);
    onMessage(message);
  };
  /** @type {Socket | WorkerSocket} */
  const opened = place
    ? new WorkerSocket(localModel(place), mine(onLocalMessage), mine(onConnection))
    : new Socket(socketUrl(), mine(onMessage), mine(onConnection));
  socket = opened;
  socket.open();
}

/** Return an address that is relative to the page. @param {string} address */
export function absolute(address) {
  return new URL(address, document.baseURI).href;
}

/**
 * Let a model run in this browser, a `here`, or the server's there (null). The conversation stays; a
 * run of the other side is over.
 *
 * @param {PlaceHere | null} place
 */
export function moveEngine(place) {
  socket?.close();
  here = place;
  rememberPlace(place);
  listener?.onConnection("connecting", 0);
  open();
}

/** Return what the worker is started with. @param {PlaceHere} place */
function localModel(place) {
  return { ...place, sampling: pageData("sampling-data"), limits: pageData("limits-data") };
}

/** Send a message; false while disconnected. @param {PageMessage} message */
export const send = (message) => socket?.send(message) ?? false;

/**
 * id of a generation outside the conversation → listener for its messages.
 *
 * @type {Map<string, (message: ToPage.Generation | ToPage.Error) => void>}
 */
const listeners = new Map();

/**
 * Send the messages of generation `id` to `receive`; null removes it.
 *
 * @param {string} id
 * @param {((message: ToPage.Generation | ToPage.Error) => void) | null} receive
 */
export function listenTo(id, receive) {
  if (receive) listeners.set(id, receive);
  else listeners.delete(id);
}

/** @param {ToPage.Generation | ToPage.Error} message */
export const notifyListener = (message) => listeners.get(message.id)?.(message);

/** Reconnect now, if disconnected. */
export const reconnect = () => socket?.retry();
