// The one line of this page.

import { Socket, socketUrl } from "./socket.js";

let socket = null;

export function connect(onMessage, onLine) {
  socket = new Socket(socketUrl(), onMessage, onLine);
  socket.open();
}

/** Send a message; false when the line is down. */
export const send = (message) => socket.send(message);

/** id of a generation that is no part of a conversation → who hears its messages */
const listeners = new Map();

/** Hand the messages of generation `id` to `listener`, until it is null. */
export function listenTo(id, listener) {
  if (listener) listeners.set(id, listener);
  else listeners.delete(id);
}

export const toListener = (message) => listeners.get(message.id)?.(message);

/** Try again now, if the line is down. */
export const reconnect = () => socket.retry();
