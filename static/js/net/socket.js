// WebSocket that reconnects with exponential back-off.

import { decodeFrame } from "./frames.js";

const FIRST_WAIT_MS = 250;
const LONGEST_WAIT_MS = 8000;
/** The back-off starts over after a connection that lasted this long. */
const STEADY_MS = 3000;

export class Socket {
  /**
   * `onConnection(connection, retryAt)` is given "connecting", "open" or "lost".
   *
   * @param {string} url
   * @param {OnMessage} onMessage
   * @param {OnConnection} onConnection
   */
  constructor(url, onMessage, onConnection) {
    this.url = url;
    this.onMessage = onMessage;
    this.onConnection = onConnection;
    this.wait = FIRST_WAIT_MS;
    this.timer = 0;
    /** @type {WebSocket | null} */
    this.ws = null;
    this.closing = new AbortController();
    const { signal } = this.closing;
    addEventListener("online", () => this.retry(), { signal });
    addEventListener("pagehide", () => this.ws?.close(), { signal });
    addEventListener("pageshow", (event) => event.persisted && this.retry(), { signal });
  }

  open() {
    clearTimeout(this.timer);
    this.timer = 0;
    const ws = new WebSocket(this.url);
    ws.binaryType = "arraybuffer";
    let openedAt = 0;
    this.ws = ws;
    ws.onopen = () => {
      openedAt = performance.now();
      this.onConnection("open", 0);
    };
    ws.onmessage = ({ data }) =>
      this.onMessage(typeof data === "string" ? JSON.parse(data) : decodeFrame(data));
    ws.onclose = () => {
      if (this.ws !== ws) return;
      this.ws = null;
      if (openedAt && performance.now() - openedAt > STEADY_MS) this.wait = FIRST_WAIT_MS;
      const pause = this.wait * (0.75 + Math.random() / 2);
      this.wait = Math.min(LONGEST_WAIT_MS, this.wait * 2);
      this.timer = setTimeout(() => this.open(), pause);
      this.onConnection("lost", Date.now() + pause);
    };
  }

  /** End this connection for good. */
  close() {
    this.closing.abort();
    clearTimeout(this.timer);
    const { ws } = this;
    this.ws = null;
    ws?.close();
  }

  /** Reconnect now, if disconnected. */
  retry() {
    if (this.ws === null) this.open();
  }

  /** Send a message; false while disconnected. @param {PageMessage} message */
  send(message) {
    if (this.ws?.readyState !== WebSocket.OPEN) return false;
    this.ws.send(encode(message));
    return true;
  }
}

/**
 * Encode a message as JSON with `seed` as a number: it is a string of digits here, because numbers
 * have 53 bits and seeds 64. The pattern cannot match inside a string: quotes are escaped there.
 *
 * @param {PageMessage} message
 */
export function encode(message) {
  return JSON.stringify(message).replace(/"seed":"(\d+)"/, '"seed":$1');
}

/** Return the WebSocket address next to this page. */
export function socketUrl() {
  const url = new URL("ws", document.baseURI);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  url.hash = "";
  return url.href;
}
