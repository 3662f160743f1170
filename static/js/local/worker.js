// Worker that runs the engine, so that the page is never blocked. It speaks the protocol of the
// WebSocket (app/protocol/messages.py) in messages; net/worker-socket.js is the other end.
//
//   {type: "start", base, hub, sampling, limits}   first message: address of the export
//                             (docs/plan-format.md), or a model of a hub in its place
//                             (hub/hub-files.js), declarations of the sampling settings, and what
//                             bounds requests (app/http/page_data.py)
//   {type: "lost", message}   to the page: the device is gone, and this worker with it

import { EngineError, errorAbout, messageOf } from "./shared/errors.js";
import { requestAdapter } from "./gpu/device.js";
import { LocalEngine } from "./gpu/engine.js";
import { ExportFiles } from "./gpu/export-files.js";
import { helloOf } from "./hello.js";
import { HubFiles } from "./hub/hub-files.js";
import { Inspector } from "./inspection/inspector.js";
import { answering } from "./messages.js";
import { RequestChecks } from "./request-checks.js";
import { LocalSession } from "./session.js";
import { ChatTemplate } from "./text/chat-template.js";
import { LocalTokenizer } from "./text/tokenizer.js";

const MEGABYTE = 1e6;
const SCHEMA = new URL("../net/protocol-schema.json", import.meta.url);
/** @type {LocalSession | null} */
let session = null;

/**
 * @param {import("./session.js").Sent | {type: "lost", message: string}} message
 * @param {ArrayBuffer[]} [moved]
 */
const post = (message, moved = []) => self.postMessage(message, { transfer: moved });

/** @param {ToPage.Status["state"]} state @param {string} message @param {number | null} [progress] */
function postStatus(state, message, progress = null) {
  post({ type: "status", state, message, progress, retry_seconds: null });
}

/**
 * Load the model and open the session.
 *
 * @param {PlaceHere & {sampling: SamplingData, limits: RequestLimits}} place
 */
async function start({ base = "", hub, sampling, limits }) {
  try {
    postStatus("loading", "opening the model", 0);
    const adapter = await requestAdapter(); // plain http has no hashes to check files by, either
    const { version, from_page: schema } = await (await fetch(SCHEMA)).json();
    const files = hub ? await HubFiles.open(hub) : await ExportFiles.open(base);
    const text = LocalTokenizer.from(await files.modelFiles(), files.chat);
    const engine = await LocalEngine.load({
      adapter,
      files,
      text,
      onProgress: progressTeller(),
      onLost: (message) => post({ type: "lost", message }),
    });
    const template = new ChatTemplate(text.chatTemplate, text);
    const hello = helloOf(engine.info, version, limits.session);
    const { plan } = engine.info;
    const checks = new RequestChecks(sampling, limits, sizesOf(plan, text));
    const { recomputer, activations } = engine;
    const endIds = hello.model.eos_ids;
    const asking = { recomputer, activations, engine, plan, checks, endIds };
    const inspector = new Inspector({ ...asking, limits: limits.questions });
    const parts = { engine, inspector, text, template, hello, checks, schema, post };
    const opened = new LocalSession(parts);
    engine.alsoWaiting = () => opened.runs.waitingRuns;
    opened.open();
    session = opened;
  } catch (error) {
    console.error(error);
    postStatus("failed", messageOf(error));
  }
}

/** What a request is checked against. @param {Exported.PlanFile} plan @param {LocalTokenizer} text */
const sizesOf = ({ model, limits }, text) => ({
  vocabSize: model.vocab_size,
  nLayers: model.n_layers,
  nHeads: model.n_heads,
  context: limits.context,
  tokenize: (/** @type {string} */ each) => text.encode(each),
  loras: (model.loras ?? []).map(({ name }) => name),
  moe: { layers: model.expert_layers, n: model.n_experts, perToken: model.experts_per_token },
});

/**
 * Return a function that tells the page how far weights and kernels are, which load side by side.
 *
 * @returns {(at: import("./gpu/engine.js").LoadProgress) => void}
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
    const { id, request } = answering(data);
    post(errorAbout(error, id, request));
  }
};
