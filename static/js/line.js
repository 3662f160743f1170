// The one line of this page.

import { Socket, socketUrl } from "./socket.js";

let socket = null;

export function connect(onMessage, onLine) {
  socket = new Socket(socketUrl(), onMessage, onLine);
  socket.open();
}

/** Send a message; false when the line is down. */
export const send = (message) => socket.send(message);

/** Try again now, if the line is down. */
export const reconnect = () => socket.retry();
