// The form of a replay file, versions 1 to 3: docs/replay.md in code. Names of fields are those of the
// messages (app/protocol.py) and their events (gpu/events.py).

import {
  BadReplay,
  flag,
  integer,
  list,
  matching,
  nullable,
  number,
  oneOf,
  record,
  tagged,
  text,
} from "./replaycheck.js";
import { MOST_PATCHES, MOST_STEERS } from "./reach.js";
import { checkTurn } from "./replayruns.js";

export const FORMAT = "tokenglass replay";
/** Version 2 is version 1 with `reach`, 3 with adapters, experts and `reached`; a file is of the least
 * it can be. */
export const VERSIONS = [1, 2, 3];

const MOST_LAYERS = 1024;
const MOST_HEADS = 1024;
const MOST_EXPERTS = 1024;
const MOST_LORAS = 64;
const MOST_TOKENS = 2 ** 24;
const MOST_EVENTS = 2 ** 20;
const MOST_TURNS = 10_000;
const MOST_CHARS = 2 ** 24;
const MOST_PIECE_CHARS = 4096;

const any = number();
const ms = number(0);
const rate = number(0);
/** null: not a number, which JSON cannot say. */
const measured = nullable(any);
const count = integer(0, Number.MAX_SAFE_INTEGER);
const id = integer(0, 2 ** 31 - 1);
const name = text(1000);
const piece = text(MOST_PIECE_CHARS);
const prose = text(MOST_CHARS);
const seed = matching(/^\d{1,20}$/, "a text of 1 to 20 digits");

// ---- what wrote it ---------------------------------------------------------------------------

const live = {
  temperature: number(0, 10),
  top_k: integer(0, 2 ** 31 - 1),
  top_p: number(0, 1),
  min_p: number(0, 1),
  repetition_penalty: number(0.1, 10),
  max_tokens: integer(1, 2 ** 31 - 1),
};
const more = {
  first_index: integer(0, 2 ** 31 - 1),
  stop: list(text(256), 16),
  ignore_eos: flag,
};
const params = record({ ...live, seed }, more);
const defaults = record(live, { ...more, seed: nullable(integer(0, 2 ** 64)) });

const lora = record({ name, rank: count, parameters: count, modules: count });
const kv_formats = record({}, { f32: count, f16: count, q8: count, q8q4: count, rotated4: count });

const hello = record(
  {
    model: record(
      {
        name,
        dtype: name,
        n_layers: integer(1, MOST_LAYERS),
        n_heads: integer(1, MOST_HEADS),
        n_kv_heads: integer(1, MOST_HEADS),
        head_dim: integer(1, 65_536),
        hidden_size: integer(1, 2 ** 24),
        vocab_size: integer(1, 2 ** 31 - 1),
        parameters: count,
        chat: flag,
      },
      {
        eos_ids: list(id, 1000),
        kv_dtype: name,
        kv_formats,
        loras: list(lora, MOST_LORAS),
        n_experts: integer(1, MOST_EXPERTS),
        conversion: name,
      },
    ),
    device: record({
      name,
      driver: name,
      backend: name,
      kind: name,
      software: flag,
      features: list(name, 1000),
      lacks: list(name, 1000),
    }),
    limits: record({
      context: integer(1, MOST_TOKENS),
      active: count,
      queue: count,
      message_bytes: count,
      kv_blocks: integer(1, 2 ** 31),
      block_tokens: integer(1, MOST_TOKENS),
      kv_block_bytes: count,
      in_flight: integer(1, 1000),
    }),
    memory: record({ weights: count, kv_cache: count, work: count }),
    defaults,
    dispatches_per_token: count,
  },
  { type: oneOf("hello"), version: count },
);

// ---- what was changed inside the passes (reach.js) -------------------------------------------

const layerNumber = integer(0, MOST_LAYERS - 1);
const head = integer(0, MOST_HEADS - 1);
const factor = number(-8, 8);
const scaled = record({ layer: layerNumber, factor });
const inside = text(MOST_CHARS);
const reach = record(
  {},
  {
    heads: list(record({ layer: layerNumber, head, factor }), MOST_LAYERS * MOST_HEADS),
    attention: list(scaled, MOST_LAYERS),
    mlp: list(scaled, MOST_LAYERS),
    steer: list(
      record({ layer: layerNumber, toward: inside, strength: number(-16, 16) }, { away: inside }),
      MOST_STEERS,
    ),
    patch: list(
      record({
        layer: layerNumber,
        position: integer(0, MOST_TOKENS),
        prompt: inside,
        token: integer(0, MOST_TOKENS),
      }),
      MOST_PATCHES,
    ),
    loras: list(record({ name, strength: factor }), MOST_LORAS),
  },
);

// ---- what was written ------------------------------------------------------------------------

const layer = record(
  {
    residual: measured,
    attention: measured,
    mlp: measured,
    entropy: list(measured, MOST_HEADS, 1),
    attention_ms: nullable(ms),
    mlp_ms: nullable(ms),
  },
  { attention_cosine: measured, mlp_cosine: measured }, // files of before they were measured
);
const position = integer(0, MOST_TOKENS);
const route = record({
  layer: integer(0, MOST_LAYERS - 1),
  experts: list(integer(0, MOST_EXPERTS - 1), MOST_EXPERTS, 1),
  gates: list(measured, MOST_EXPERTS, 1),
});
const stats = record(
  {
    position,
    embedding: measured,
    layers: list(layer, MOST_LAYERS, 1),
    n_rows: integer(1, MOST_TOKENS),
    embed_ms: nullable(ms),
    head_ms: nullable(ms),
  },
  { timed_at: nullable(position), routes: list(route, MOST_LAYERS) },
);
const candidate = record({
  id,
  text: piece,
  before: any,
  after: any,
  cut: oneOf("", "top_k", "top_p", "min_p"),
});

const experts = nullable(record({ found: count, brought: count, n_bytes: count }));

const events = {
  accepted: {
    prompt: list(record({ id, text: piece }), MOST_TOKENS, 1),
    params,
    capture: flag,
    position: count,
    context: integer(1, MOST_TOKENS),
  },
  queued: { position: count },
  prefill: {
    done: count,
    total: count,
    reused: count,
    ms,
    gpu_ms: nullable(ms),
    kv_blocks: count,
    stats: list(stats, MOST_TOKENS),
  },
  token: {
    index: count,
    id,
    text: text(MOST_CHARS),
    logprob: any,
    probability: any,
    rank: count,
    n_kept: count,
    draw: any,
    mass: list(any, 4, 4),
    candidates: list(candidate, 1000),
    times: record({ interval: ms, gpu: nullable(ms), encode: ms, wait: ms, read: ms }),
    kv_blocks: count,
    stats: nullable(stats),
    eos: flag,
  },
  updated: { index: count, params, capture: flag }, // and `reach`
  done: {
    reason: oneOf("eos", "stop", "length", "context", "cancelled", "error"),
    prompt_tokens: count,
    completion_tokens: count,
    timings: record({
      cache_n: count,
      prompt_n: count,
      prompt_ms: ms,
      prompt_per_second: rate,
      predicted_n: count,
      predicted_ms: ms,
      predicted_per_second: rate,
      queue_ms: ms,
      ttft_ms: ms,
      tpot_ms: ms,
    }),
    message: prose,
  },
};
const event = tagged("type", events, {
  accepted: { texts: list(prose, MOST_TOKENS) },
  prefill: { experts },
  token: { experts },
  updated: { reach },
});

const message = record({ role: oneOf("system", "user", "assistant"), content: prose });
const change = record({ index: count }, { params: record({}, live), capture: flag, reach });
const request = record(
  { params, capture: flag },
  {
    messages: list(message, MOST_TURNS),
    prompt: prose,
    ids: list(id, MOST_TOKENS),
    written: count,
    continue_final: flag,
    reach,
    reached: list(record({ first: count, reach }), MOST_EVENTS),
    changes: list(change, MOST_EVENTS),
  },
);

// ---- what a branch is (branch.js) ------------------------------------------------------------

const put = record({
  id,
  text: piece,
  eos: flag,
  logprob: measured,
  rank: count,
  candidates: nullable(list(candidate, 1000)),
});
const branch = record({
  of: count,
  at: count,
  put: list(put, 10_000, 1),
  was: record({ id, text: piece, logprob: measured }, { eos: flag }),
  asked: record({}, { messages: list(message, MOST_TURNS), prompt: prose, continue_final: flag }),
});

// ---- the whole -------------------------------------------------------------------------------

const told = record({ at: ms, event }, { came: any, drawn: any });
const segment = record(
  { request },
  { prepared: ms, branch, events: list(told, MOST_EVENTS, 1), text: prose },
);
const answer = record({ segments: list(segment, MOST_TURNS, 1) });
const mode = oneOf("chat", "completion");
const turn = tagged("role", {
  user: { text: prose, mode },
  model: { mode, given: prose, shown: count, answers: list(answer, MOST_TURNS, 1) },
});

const file = record({
  format: oneOf(FORMAT),
  version: oneOf(...VERSIONS),
  saved: matching(/^\d{4}-\d\d-\d\dT[\d:.]{8,16}Z$/, "a date and time as 2026-01-31T12:00:00Z"),
  hello,
  turns: list(turn, MOST_TURNS, 1),
});

/** The file as its form has it, all of it sound; or a BadReplay. */
export function form(value, path = "replay") {
  if (value?.format !== FORMAT)
    throw new BadReplay(`This is no replay: it does not begin with {"format": "${FORMAT}", …}.`);
  if (!VERSIONS.includes(value.version))
    throw new BadReplay(
      `This replay is of version ${String(value.version).slice(0, 20)}; this page reads versions ` +
        `${VERSIONS[0]} to ${VERSIONS.at(-1)}. Open it with a Tokenglass that is newer, or as old as the file.`,
    );
  const checked = file(value, path);
  if (checked.turns.at(-1).role !== "model")
    throw new BadReplay(`${path}.turns must end with what the model wrote.`);
  checked.turns.forEach((each, i) => checkTurn(each, checked.hello, `${path}.turns[${i}]`));
  return checked;
}
