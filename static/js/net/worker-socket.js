// Connection to an engine in this browser, in place of the server's WebSocket: a worker that speaks
// the same messages.

const WORKER = new URL("../local/worker.js", import.meta.url);
const CRASHED = "the worker that runs the model has crashed; this browser may be out of memory";

export class WorkerSocket {
  /**
   * `base`: address of the export, or `hub`: a model of a hub (local/hub/hub-files.js); `sampling`:
   * declarations of the sampling settings; `limits`: what bounds requests.
   * `onConnection(connection, retryAt, message)` is given "open" or "lost"; nothing is tried again
   * by itself, so `retryAt` is 0, and `message` says why it was lost.
   *
   * @param {PlaceHere & {sampling: unknown, limits: unknown}} place
   * @param {OnMessage} onMessage
   * @param {OnConnection} onConnection
   */
  constructor({ base, hub, sampling, limits }, onMessage, onConnection) {
    this.start = { type: "start", base, hub, sampling, limits };
    this.onMessage = onMessage;
    this.onConnection = onConnection;
    /** @type {Worker | null} */
    this.worker = null;
  }

  open() {
    const worker = new Worker(WORKER, { type: "module" });
    this.worker = worker;
    worker.onmessage = ({ data }) => {
      if (this.worker !== worker) return;
      if (data.type === "lost") this.lose(data.message);
      else this.onMessage(data);
    };
    worker.onmessageerror = () => this.lose(CRASHED);
    worker.onerror = ({ message }) => {
      if (this.worker === worker) this.lose(message ? `${CRASHED} (${message})` : CRASHED);
    };
    worker.postMessage(this.start);
    const message = "starting the engine in this browser";
    this.onMessage({ type: "status", state: "loading", message, progress: 0, retry_seconds: null });
    this.onConnection("open", 0);
  }

  /** End the worker for good. */
  close() {
    this.worker?.terminate();
    this.worker = null;
  }

  /** @param {string} message */
  lose(message) {
    this.worker?.terminate();
    this.worker = null;
    this.onConnection("lost", 0, message);
  }

  /** Load the model again, if the worker is gone. */
  retry() {
    if (this.worker === null) this.open();
  }

  /** Send a message; false without a worker. @param {PageMessage} message */
  send(message) {
    if (this.worker === null) return false;
    this.worker.postMessage(message);
    return true;
  }
}
