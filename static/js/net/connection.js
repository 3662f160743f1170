// The WebSocket connection of this page.

import { Socket, socketUrl } from "./socket.js";

let socket = null;

export function connect(onMessage, onConnection) {
  socket = new Socket(socketUrl(), onMessage, onConnection);
  socket.open();
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
