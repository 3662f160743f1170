// @ts-nocheck
// Worker that runs the engine, so that the page is never blocked. It speaks the protocol of the
// WebSocket (app/ws/protocol.py) in messages; net/worker-socket.js is the other end.
//
//   {type: "start", base, hub, sampling}   first message: address of the export (docs/plan-format.md),
//                                          or a model of a hub in its place (hub/hub-files.js), and
//                                          declarations of the sampling settings
//   {type: "lost", message}                to the page: the device is gone, and this worker with it

import { EngineError, errorAbout } from "./shared/errors.js";
import { LocalEngine } from "./gpu/engine.js";
import { helloOf } from "./hello.js";
import { HubFiles } from "./hub/hub-files.js";
import { Inspector } from "./inspection/inspector.js";
import { RequestChecks } from "./request-checks.js";
import { LocalSession } from "./session.js";
import { ChatTemplate } from "./text/chat-template.js";
import { LocalTokenizer } from "./text/tokenizer.js";

const MEGABYTE = 1e6;
const SCHEMA = new URL("../net/protocol-schema.json", import.meta.url);
let session = null;

const post = (message, moved = []) => self.postMessage(message, moved);

function postStatus(state, message, progress = null) {
  post({ type: "status", state, message, progress, retry_seconds: null });
}

/** Load the model and open the session. */
async function start({ base, hub = null, sampling }) {
  try {
    postStatus("loading", "opening the model", 0);
    const { from_page: schema } = await (await fetch(SCHEMA)).json();
    let text = null;
    const engine = await LocalEngine.load({
      base,
      files: hub && (await HubFiles.open(hub)),
      text: (files, chat) => (text = LocalTokenizer.from(files, chat)),
      onProgress: progressTeller(),
      onLost: (message) => post({ type: "lost", message }),
    });
    const template = new ChatTemplate(text.chatTemplate, text);
    const hello = helloOf(engine.info);
    const { plan } = engine.info;
    const checks = new RequestChecks(sampling, sizesOf(plan, text));
    const { recomputer, activations } = engine;
    const endIds = hello.model.eos_ids;
    const inspector = new Inspector({ recomputer, activations, engine, plan, checks, endIds });
    const parts = { engine, inspector, text, template, hello, checks, schema, post };
    session = new LocalSession(parts);
    engine.alsoWaiting = () => session.runs.waitingRuns;
    session.open();
  } catch (error) {
    console.error(error);
    postStatus("failed", error.message);
  }
}

/** What a request is checked against. */
const sizesOf = ({ model, limits }, text) => ({
  vocabSize: model.vocab_size,
  nLayers: model.n_layers,
  nHeads: model.n_heads,
  context: limits.context,
  tokenize: (each) => text.encode(each),
  loras: (model.loras ?? []).map(({ name }) => name),
});

/**
 * Return a function that tells the page how far weights and kernels are, which load side by side.
 */
function progressTeller() {
  const shares = { weights: 0, kernels: 0 };
  return ({ stage, done, total }) => {
    shares[stage] = total ? done / total : 1;
    const megabytes = [done, total].map((bytes) => (bytes / MEGABYTE).toFixed());
    const message =
      stage === "weights"
        ? `reading weights, ${megabytes.join(" of ")} MB`
        : `compiling shaders, ${done} of ${total}`;
    postStatus("loading", message, (shares.weights + shares.kernels) / 2);
  };
}

self.onmessage = ({ data }) => {
  if (data.type === "start") start(data);
  else if (session) session.handle(data);
  else {
    const error = new EngineError(
      "unavailable",
      "the model is still loading; try again in a moment",
    );
    post(errorAbout(error, data.id, data.request));
  }
};
