// The server's side of the page's protocol, for an engine in this browser (app/ws/page_connection.py,
// app/ws/sessions.py): the page cannot tell which one it listens to.

import { EngineError, errorAbout, InvalidRequest, NotInBrowser } from "./shared/errors.js";
import { GenerationLog, RequestClock } from "./generation-log.js";
import { toldParams } from "./gpu/run-events.js";
import { answering, MessageReader } from "./messages.js";
import { RunQueue, ZERO_TIMINGS } from "./run-queue.js";
import { promptIds } from "./text/prompts.js";
import { segmented, tokenized } from "./text/tokenizing.js";
import { readConversation } from "./text/truncation.js";
import { merged, UpdateMerger } from "./updates.js";

const MAX_FINISHED = 64;
const FINISHED_MS = 15 * 60 * 1000;
/** Arrays of an answer that hold ids of tokens. */
const ID_ARRAYS = ["ids", "top_ids"];

/**
 * What a session sends to the page.
 *
 * @typedef {Exclude<ToPage.Any, ToPage.Hello> | Hello | FrameAnswer} Sent
 */

/** @typedef {ReturnType<typeof import("./hello.js").helloOf>} Hello */

/** @typedef {{ask(pieces: Pieces<InspectionAnswer>): Promise<InspectionAnswer>}} Asked */

/**
 *   engine    `ask(pieces)` resolves to what the async generator `pieces` returns
 *   schema    of the page's messages: `from_page` of net/protocol-schema.json
 *   post      sends a message to the page, given the buffers that move there with it
 *
 * @typedef {{
 *   engine: import("./run-queue.js").RunEngine & Asked,
 *   inspector: import("./inspection/inspector.js").Inspector,
 *   text: import("./text/tokenizer.js").LocalTokenizer,
 *   template: import("./text/chat-template.js").ChatTemplate, hello: Hello,
 *   checks: import("./request-checks.js").RequestChecks, schema: JsonSchema,
 *   post: (message: Sent, moved?: ArrayBuffer[]) => void,
 * }} SessionParts
 */

export class LocalSession {
  /** @param {SessionParts} parts */
  constructor({ engine, inspector, text, template, hello, checks, schema, post }) {
    this.engine = engine;
    this.inspector = inspector;
    this.text = text;
    this.template = template;
    this.hello = hello;
    this.checks = checks;
    this.post = post;
    const { limits } = hello;
    this.reader = new MessageReader(schema);
    this.nQuestions = 0;
    this.runs = new RunQueue(engine, (id) => text.piece(id), limits);
    this.limits = checks.limits;
    const { update_seconds: seconds } = this.limits.session;
    this.updates = new UpdateMerger((id, updates) => this.applyUpdates(id, updates), 1000 * seconds);
    /** By id. @type {Map<string, GenerationLog>} */
    this.generations = new Map();
  }

  /** Tell the page that the engine is ready. */
  open() {
    this.post(this.hello);
    this.post({
      type: "status",
      state: "ready",
      message: "ready",
      progress: null,
      retry_seconds: null,
    });
  }

  /** Handle a message of the page, and answer it. @param {unknown} raw */
  handle(raw) {
    const { message, error } = this.reader.read(raw);
    if (error) return this.post(error);
    if (message.type !== "update") this.updates.flush();
    try {
      this.act(message);
    } catch (wrong) {
      const { id, request } = answering(message);
      this.post(errorAbout(wrong, id, request));
    }
  }

  /** @param {Read.Any} message */
  act(message) {
    switch (message.type) {
      case "generate":
        return this.generate(message);
      case "update":
        return this.update(message);
      case "stop":
        return this.stop(message);
      case "resume":
        return this.resume(message);
      case "count":
        return this.count(message);
      case "tokenize":
        return this.tokenize(message);
      case "segment":
        return this.segment(message);
      case "inspect":
        return this.inspect(message);
    }
  }

  // ---- one method for each type of message -------------------------------------------------

  /** @param {Read.Generate} message */
  generate(message) {
    const { id, capture, changes, reach, reached } = message;
    const clock = new RequestClock();
    if (message.grammar) throw new NotInBrowser("grammars are", "grammar");
    if (message.truncation === "slide")
      throw new NotInBrowser("texts that slide through a full context are", "truncation");
    refuseTools(message);
    if (message.cache_reuse) throw new NotInBrowser("moved chunks of the cache are", "cache_reuse");
    this.checks.checkPace(message);
    const { ids, dropped } = this.readPrompt(message);
    if (reached.length && message.ids === null)
      throw new InvalidRequest(
        "reached names the interventions that ids were computed with; send ids, or leave reached out",
        "reached",
      );
    clock.prepared = clock.now();
    const nContinued = continuationLength(message);
    const texts = this.continuationTexts(ids, nContinued);
    if (this.generations.has(id))
      throw new InvalidRequest(`there is a generation '${id}' already; use a new id`, "id");
    const { post } = this;
    const log = new GenerationLog(id, { clock, texts, dropped, post, onDone: () => this.forget() });
    /** @param {EngineEvent} event */
    const onEvent = (event) => log.onEvent(event);
    const params = withSeed(message.params);
    if (nContinued && this.hasEnded(ids, params)) this.reportEnded(ids, params, onEvent);
    else {
      const checked = { ids, params, updates: changes, reach, reached };
      const interventions = this.checks.check(checked);
      const updates = changes.map(({ index, params: set, capture: on }) => ({
        index,
        params: set,
        capture: on,
      }));
      const { pace } = message;
      const request = { ids, params, capture, updates, interventions, pace };
      log.run = this.runs.submit(request, onEvent);
    }
    this.generations.set(id, log);
    log.follow(0);
  }

  /** @param {Read.Update} message */
  update(message) {
    this.checks.checkRanges(message.params);
    this.checks.checkPace(message);
    this.updates.add(message);
  }

  /** @param {Read.Stop} message */
  stop({ id }) {
    this.generation(id).cancel();
  }

  /** @param {Read.Resume} message */
  resume({ id, after }) {
    this.generation(id).follow(after);
  }

  /** @param {Read.Count} message */
  count(message) {
    refuseTools(message);
    const { request, prompt, messages } = message;
    const tokens = promptIds(this.text, this.template, { prompt, messages }).length;
    this.post({ type: "counted", request, tokens });
  }

  /** @param {Read.Tokenize} message */
  tokenize(message) {
    refuseTools(message);
    this.post(tokenized(this.text, this.template, this.hello.model.name, message));
  }

  /** @param {Read.Segment} message */
  segment(message) {
    this.post(segmented(this.text, message));
  }

  /** @param {Read.Inspect} message */
  inspect({ request, question, engine }) {
    if (engine < 0 || engine > 1)
      throw new InvalidRequest(`there is no engine ${engine}: the model has engine 1 only`, "engine");
    const { at_once: most } = this.limits.questions;
    if (this.nQuestions >= most)
      throw new EngineError(
        "queue_full",
        `${most} questions of this page are being answered, the most at a time; wait for an answer`,
      );
    const answer = this.engine.ask(this.inspector.start(question));
    this.nQuestions += 1;
    answer
      .then((found) => this.postAnswer(request, question.kind, found))
      .catch((error) => this.post(errorAbout(error, "", request)))
      .finally(() => {
        this.nQuestions -= 1;
      });
  }

  // ---- their parts -------------------------------------------------------------------------

  /** @param {number} request @param {string} kind @param {InspectionAnswer} answer */
  postAnswer(request, kind, { info, arrays }) {
    const ids = new Set(ID_ARRAYS.flatMap((name) => [...(arrays[name]?.values ?? [])]));
    const pieces = Object.fromEntries([...ids].map((id) => [id, this.text.piece(id)]));
    const told = ids.size ? { ...info, pieces } : info;
    const moved = Object.values(arrays).map(({ values }) => values.buffer);
    this.post({ type: "answer", request, kind, info: told, arrays }, moved);
  }

  /**
   * Apply updates together; each alone if their interventions are refused, so that good ones act.
   *
   * @param {string} id
   * @param {Read.Update[]} updates
   */
  applyUpdates(id, updates) {
    /** @param {unknown} error */
    const refused = (error) => {
      if (updates.length > 1 && error instanceof EngineError && error.param.startsWith("reach"))
        for (const update of updates) this.applyUpdates(id, [update]);
      else this.post(errorAbout(error, id));
    };
    try {
      this.applyUpdate(id, merged(updates))?.catch(refused);
    } catch (error) {
      refused(error);
    }
  }

  /** @param {string} id @param {ReturnType<typeof merged>} update */
  applyUpdate(id, { params, capture, reach, pace }) {
    const run = this.generation(id).liveRun;
    const encoded = reach === null ? null : this.checks.interventions.encode(reach);
    return run.update(params, capture, encoded, pace);
  }

  /** @param {string} id */
  generation(id) {
    const found = this.generations.get(id);
    if (found) return found;
    throw new EngineError(
      "unknown_generation",
      `there is no generation '${id}' here: it was never started, or it ended too long ago to be ` +
        "kept; start it again",
    );
  }

  /** @param {Read.Generate} message */
  readPrompt({ prompt, messages, ids, continue_final: continueFinal, params, truncation }) {
    /** @param {FromPage.Message[] | null} some */
    const encode = (some) =>
      promptIds(this.text, this.template, { prompt, messages: some, ids, continueFinal });
    if (messages !== null) {
      const room = { context: this.hello.limits.context, maxTokens: params.max_tokens };
      return readConversation(messages, encode, room, truncation);
    }
    if (truncation !== "disabled")
      throw new InvalidRequest(
        `truncation ${truncation} applies to messages only; leave it out, or send messages`,
        "truncation",
      );
    return { ids: encode(null), dropped: [] };
  }

  /** Return the text that each of the last `n` ids adds. @param {number[]} ids @param {number} n */
  continuationTexts(ids, n) {
    if (!n) return [];
    const stream = this.text.decodeStream(ids.slice(0, -n));
    return ids.slice(-n).map((id) => stream.push(id));
  }

  /** @param {number[]} ids @param {SamplerParams} params */
  hasEnded(ids, params) {
    return this.hello.model.eos_ids.includes(ids[ids.length - 1]) && !params.ignore_eos;
  }

  /**
   * Send the events of a generation whose text has ended already; the engine gets no request.
   *
   * @param {number[]} ids
   * @param {SamplerParams} params
   * @param {(event: EngineEvent) => void} onEvent
   */
  reportEnded(ids, params, onEvent) {
    const { context } = this.hello.limits;
    onEvent({
      type: "accepted",
      prompt: ids.map((id) => ({ id, text: this.text.piece(id) })),
      params: toldParams(params),
      capture: false,
      position: 0,
      context,
      texts: [],
      dropped: [],
      run: 0,
    });
    onEvent({
      type: "done",
      reason: "eos",
      prompt_tokens: ids.length,
      completion_tokens: 0,
      timings: ZERO_TIMINGS,
      message: "",
    });
  }

  /** Drop finished generations past the bounds, oldest first. */
  forget() {
    const finished = [...this.generations.values()].flatMap(({ id, finishedAt: at }) =>
      at === null ? [] : [{ id, at }],
    );
    finished.sort((a, b) => a.at - b.at);
    const oldest = performance.now() - FINISHED_MS;
    finished.forEach(({ id, at }, i) => {
      if (finished.length - i > MAX_FINISHED || at < oldest) this.generations.delete(id);
    });
  }
}

/**
 * Throw for tools, their calls and their results: no chat template is given any here.
 *
 * @param {Read.Generate | Read.Count | Read.Tokenize} message
 */
function refuseTools({ tools, messages }) {
  const hasCalls = messages?.some(({ role, tool_calls: calls }) => role === "tool" || calls?.length);
  if (tools?.length || hasCalls) throw new NotInBrowser("tools are", "tools");
}

/**
 * Return how many of the last ids the page has as text already. Throws InvalidRequest.
 *
 * @param {Read.Generate} message
 */
function continuationLength({ ids, written }) {
  const n = ids?.length ?? 0;
  if (written >= 0 && written <= n) return written;
    throw new InvalidRequest(`written must be from 0 to ${n}, the number of ids, but got ${written}`, "written");
}

/**
 * Return the params with a seed: one of 32 bits is drawn if they have none.
 *
 * @param {Read.SamplingParams} params
 * @returns {SamplerParams}
 */
function withSeed(params) {
  const seed = params.seed ?? crypto.getRandomValues(new Uint32Array(1))[0];
  return { ...params, seed: BigInt(seed) };
}
