"""The session of the engine in the browser answers the page as the server does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import pytest
from playwright.sync_api import BrowserContext, Page, Route, expect

from app import tale
from app.http.page_data import limits_data, sampling_data
from app.protocol.schema import protocol_schema
from app.ws.incoming import decode
from e2e.local import session_script as script
from e2e.local.text_cases import chat_of, files_of
from e2e.playground import Playground
from e2e.site import Site
from gpu import SamplingParams
from gpu.inspection.requests import (
    DevicePeaks,
    Divergence,
    Embedding,
    Encode,
    EncoderAttention,
    ForwardPass,
    Neighbours,
    Question,
    Seq2Seq,
    WeightsDigest,
)
from gpu.text.tokenizer import Tokenizer

pytestmark = pytest.mark.quick

OPEN = """async (given) => {
  const { files, chat, hello, sampling, requestLimits, schema, recorded } = JSON.parse(given);
  const { LocalSession } = await import("/static/js/local/session.js");
  const { Inspector } = await import("/static/js/local/inspection/inspector.js");
  const { RequestChecks } = await import("/static/js/local/request-checks.js");
  const { LocalTokenizer } = await import("/static/js/local/text/tokenizer.js");
  const { ChatTemplate } = await import("/static/js/local/text/chat-template.js");

  // Plays the events of a recorded run: those of updates once they were asked for, and the end of a
  // cancelled run once it was cancelled.
  class RecordedRun {
    constructor(events, { params, updates, onEvent }) {
      const asked = updates.map((update) => update.params);
      Object.assign(this, { events: [...events], params, onEvent, asked });
      this.cancelled = false;
      this.encoded = [];
      this.next();
    }
    update(changes, capture, encoded) {
      this.asked.push(changes);
      this.encoded.push(encoded);
    }
    cancel() {
      this.cancelled = true;
    }
    get mayGoOn() {
      const [event] = this.events;
      if (event?.type === "updated") return this.asked.length > 0;
      return event && (event.reason !== "cancelled" || this.cancelled);
    }
    next() {
      const event = this.events.shift();
      if (event.type === "updated") this.params = { ...this.params, ...this.asked.shift() };
      const params = { ...this.params, seed: Number(this.params.seed) };
      this.onEvent(event.params ? { ...event, params } : event);
    }
  }
  const runs = [];
  const engine = {
    submit(request) {
      runs.push(new RecordedRun(recorded[runs.length], request));
      return runs.at(-1);
    },
  };

  const text = LocalTokenizer.from(files, chat);
  const template = new ChatTemplate(text.chatTemplate, text);
  const posted = [];
  const post = (message) => posted.push(structuredClone(message));
  const { model, limits } = hello;
  const checks = new RequestChecks(sampling, requestLimits, {
    vocabSize: model.vocab_size, nLayers: model.n_layers, nHeads: model.n_heads,
    context: limits.context, tokenize: (each) => text.encode(each),
    loras: model.loras.map(({ name }) => name),
  });
  const plan = { model: { ...model, n_experts: 0 }, limits };
  const asking = { plan, checks, endIds: model.eos_ids, limits: requestLimits.questions };
  const inspector = new Inspector(asking);
  const parts = { engine, inspector, text, template, hello, checks, schema, post };
  const session = new LocalSession(parts);
  window.local = { session, posted, runs };
}"""

PLAY = """async ([script, bad]) => {
  const { session, posted, runs } = local;
  const posts = ({ type, id }) =>
    posted.some((each) => each.event?.type === type && each.id === id);
  const pump = () => runs.filter((run) => run.mayGoOn).forEach((run) => run.next());
  session.open();
  for (const [step, message] of script) {
    if (step === "send") session.handle(message);
    else
      for (let n = 0; !posts(message); n += 1) {
        if (n > 1000) throw new Error(`there was no ${JSON.stringify(message)}`);
        pump();
        await new Promise((resolve) => setTimeout(resolve));
      }
  }
  for (const [n, [, message]] of bad.entries()) {
    session.handle(message);
    session.handle({ type: "count", request: 1000 + n, prompt: "a" });
  }
  return JSON.stringify(posted);
}"""


def events_of(messages: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the messages of every generation by its id, each once, in order."""
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for message in messages:
        if message["type"] == "event":
            found.setdefault(message["id"], {})[message["seq"]] = message
    return {id: [by_seq[seq] for seq in sorted(by_seq)] for id, by_seq in found.items()}


def recording(messages: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return the events of every run that started, as an engine without a queue would give them."""
    runs = []
    for log in events_of(messages).values():
        events = [message["event"] for message in log]
        if not any(event["type"] == "prefill" for event in events):
            continue
        waited = max((i for i, event in enumerate(events) if event["type"] == "queued"), default=0)
        runs.append([{**events[0], "position": 0}, *events[waited + 1 :]])
    for event in (event for run in runs for event in run if "params" in event):
        event["params"] = {**event["params"], "seed": str(event["params"]["seed"])}
    return runs


def comparable(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message without clock times, and with seeds as JavaScript's numbers have them."""
    kept = {name: value for name, value in message.items() if name not in ("at", "prepared")}
    event = kept.get("event", {})
    if "params" in event:
        params = {**event["params"], "seed": float(event["params"]["seed"])}
        kept["event"] = event = {**event, "params": params}
    if event.get("type") == "done" and not event["completion_tokens"]:
        kept["event"] = {**event, "timings": sorted(event["timings"])}
    return kept


@pytest.fixture(scope="module")
def heard() -> list[dict[str, Any]]:
    """All messages of the server for the script."""
    with script.server() as port:
        return script.play(port)


@pytest.fixture
def local(loaded: Page, heard: list[dict[str, Any]]) -> Page:
    """The shared page, with a session of the recorded engine in `window.local`."""
    folder = tale.model_dir()
    given = {
        "files": files_of(folder),
        "chat": chat_of(Tokenizer.load(folder)),
        "hello": next(each for each in heard if each["type"] == "hello"),
        "sampling": sampling_data(),
        "requestLimits": limits_data(),
        "schema": protocol_schema()["from_page"],
        "recorded": recording(heard),
    }
    loaded.evaluate(OPEN, json.dumps(given))  # as text: much faster than as objects
    return loaded


def test_all_messages_are_the_servers(local: Page, heard: list[dict[str, Any]]) -> None:
    """Runs, updates, stops, the queue, continued texts, questions, and every refusal."""
    posted = json.loads(local.evaluate(PLAY, [script.SCRIPT, script.BAD]))
    want, got = events_of(heard), events_of(posted)
    assert got.keys() == want.keys()
    for id, log in want.items():
        assert [comparable(each) for each in got[id]] == [comparable(each) for each in log], id
        assert [each.get("prepared") is not None for each in got[id][:2]] == [True, False]
        assert [each["at"] for each in got[id]] == sorted(each["at"] for each in got[id])
    rest = [
        [comparable(m) for m in messages if m["type"] != "event"] for messages in (posted, heard)
    ]
    for found, wanted in zip(*rest, strict=True):
        assert found == wanted
    errors = [each for each in posted if each["type"] == "error"]
    assert len(errors) >= len(script.BAD) + 8
    resumed = [each["seq"] for each in posted if each["type"] == "event" and each["id"] == "chat"]
    assert resumed == [*range(1, len(want["chat"]) + 1), *range(3, len(want["chat"]) + 1)]


ASK = """(messages) => {
  const { session, posted } = local;
  posted.length = 0;
  for (const message of messages) session.handle(message);
  return posted;
}"""


REFUSED = (
    Divergence,
    Embedding,
    Encode,
    EncoderAttention,
    ForwardPass,
    Neighbours,
    DevicePeaks,
    WeightsDigest,
    Seq2Seq,
)
"""Questions that only the server answers."""


def test_what_a_browser_cannot_do_is_said(local: Page) -> None:
    """Each instrument by its name; the parts of a request by their field."""
    questions = [
        {"type": "inspect", "request": n, "question": shortest(kind)}
        for n, kind in enumerate(REFUSED)
    ]
    fields: dict[str, Any] = {
        "grammar": {"kind": "regex", "text": "a"},
        "cache_reuse": 16,
        "truncation": "slide",
        "tools": [{"type": "function", "function": {"name": "add", "parameters": {"a": [{}]}}}],
    }
    runs = [
        {"type": "generate", "id": "a", "ids": [5, 6], name: value}
        for name, value in fields.items()
    ]
    knockout = {"first": 0, "end": 1, "first_layer": 0, "end_layer": 1}
    variants: dict[str, Any] = {"rope": False, "knockout": knockout}
    passes = [
        {
            "type": "inspect",
            "request": len(REFUSED) + n,
            "question": {"kind": "losses", "ids": [5, 6], name: value},
        }
        for n, (name, value) in enumerate(variants.items())
    ]
    found = local.evaluate(ASK, [*questions, *runs, *passes])
    assert not [each for each in found if each["code"] != "not_in_browser"]
    assert all("not available while the model runs in this browser" in m["message"] for m in found)
    assert [each["request"] for each in found[: len(REFUSED)]] == list(range(len(REFUSED)))
    assert [each["param"] for each in found[len(REFUSED) :]] == [*fields, *variants]


def test_a_watermark_is_refused_whenever_it_is_to_begin(local: Page) -> None:
    """The exported sampler would draw without it, and not know of the token that it drew."""
    mark = {"watermark_bias": 2.0}
    run = {"type": "generate", "prompt": "Once", "params": {"seed": "1"}}
    asked = [
        {**run, "id": "a", "params": {"seed": "1", **mark}},
        {**run, "id": "b", "changes": [{"index": 2, "params": mark}]},
        {**run, "id": "c"},
        {"type": "update", "id": "c", "params": mark},
        {"type": "stop", "id": "c"},
    ]
    errors = [m for m in local.evaluate(ASK, asked) if m["type"] == "error"]
    assert [(m["id"], m["param"]) for m in errors] == [
        ("a", "watermark_bias"),
        ("b", "changes"),
        ("c", "watermark_bias"),
    ]
    assert all("a watermark is written on the server only" in m["message"] for m in errors)


def test_an_answer_is_the_message_that_the_servers_frame_holds(local: Page) -> None:
    """With the text of its ids; and no more than eight questions wait."""
    question = {"kind": "losses", "ids": [5, 6]}
    found = local.evaluate(
        """async (question) => {
          const { session, posted } = local;
          posted.length = 0;
          const arrays = { top_ids: { shape: [1, 1], values: Uint32Array.of(300) } };
          session.engine.ask = async () => ({ info: { ms: 1 }, arrays });
          for (let request = 1; request < 10; request++)
            session.handle({ type: "inspect", request, question });
          await new Promise((resolve) => setTimeout(resolve));
          return posted.map((each) => ({ ...each, text: session.text.piece(300) }));
        }""",
        question,
    )
    full, *answers = found
    assert (full["code"], full["request"]) == ("queue_full", 9)
    assert [each["request"] for each in answers] == list(range(1, 9))
    text = answers[0].pop("text")
    assert answers[0] == {
        "type": "answer", "request": 1, "kind": "losses",
        "info": {"ms": 1, "pieces": {"300": text}},
        "arrays": {"top_ids": {"shape": [1, 1], "values": [300]}},
    }  # fmt: skip


def test_every_kind_of_question_is_answered_or_refused(local: Page) -> None:
    names = {str(kind.__struct_config__.tag) for kind in get_args(Question)}
    known = local.evaluate(
        """(names) => {
          const { inspector } = local.session;
          return names.filter((name) => typeof inspector[name] === "function");
        }""",
        sorted(names),
    )
    refused = {str(kind.__struct_config__.tag) for kind in REFUSED}
    assert refused == names - set(known)


def shortest(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return a question of a kind with only the fields that it must have."""
    values: dict[Any, Any] = {
        int: 1, str: "a", float: 0.5, SamplingParams: {}, list[list[int]]: [[5, 6]]
    }  # fmt: skip
    fields = [each for each in msgspec.structs.fields(kind) if each.required]
    given = {each.encode_name: values.get(each.type, [5, 6]) for each in fields}
    return {"kind": str(kind.__struct_config__.tag), **given}


def test_more_runs_than_may_wait_are_refused(local: Page) -> None:
    run = {"type": "generate", "prompt": "Once", "params": {"seed": "1"}}
    found = local.evaluate(ASK, [{**run, "id": f"r{n}"} for n in range(11)])
    positions = [m["event"]["position"] for m in found if m["type"] == "event"]
    assert positions == [0, 0, *range(1, 9)]
    assert [(m["code"], m["id"]) for m in found if m["type"] == "error"] == [("queue_full", "r10")]


PLACES = """async () => {
  const { RunQueue } = await import("/static/js/local/run-queue.js");
  const begun = [];
  const engine = {
    submit({ onEvent, run: number }) {
      onEvent({ type: "accepted" });
      begun.push({ onEvent, number, paused: false });
      return begun.at(-1);
    },
  };
  const queue = new RunQueue(engine, String, { active: 2, queue: 16, context: 64 });
  const ask = () => queue.submit({ ids: [5], params: {} }, () => {});
  const pause = (n) => Object.assign(begun[n], { paused: true });
  const steps = [
    () => [ask(), ask(), ask(), ask()],
    () => pause(0),
    () => ask(),
    () => begun[0].onEvent({ type: "updated" }),
    () => pause(1).onEvent({ type: "prefill" }),
  ];
  return steps.map((act) => (act(), begun.map(({ number }) => number)));
}"""


def test_a_paused_run_gives_its_place_to_the_one_that_waits_longest(loaded: Page) -> None:
    """Also one that has no preview yet, or cannot have any."""
    two = [1, 2]
    assert loaded.evaluate(PLACES) == [two, two, two, [*two, 3], [*two, 3, 4]]


STEPS = """async () => {
  const { RunQueue } = await import("/static/js/local/run-queue.js");
  const asked = [];
  let isLost = false;
  const engine = {
    submit({ onEvent, pace }) {
      const run = { onEvent, paused: false, pace, given: [] };
      run.update = (...change) => {
        if (isLost) throw new Error("it has ended");
        run.given.push(change);
      };
      asked.push(run);
      if (isLost) onEvent({ type: "done" });
      return run;
    },
  };
  const queue = new RunQueue(engine, String, { active: 1, queue: 16, context: 64 });
  const told = [];
  const start = (pace, onEvent = () => {}) => queue.submit({ ids: [5], params: {}, pace }, onEvent);
  start(null);
  const stepped = start(0, ({ type }) => told.push(type));
  const other = start(2);
  stepped.update({}, null, null, { steps: 2 });
  stepped.update({}, null, null, { steps: 1 });
  let refused = "";
  try {
    other.update({}, null, null, { steps: 1 });
  } catch ({ message }) {
    refused = message;
  }
  other.update({}, null, null, { pace: 0 });
  for (const n of [0, 1]) asked[n].onEvent({ type: "done" });
  const begun = asked.slice(1).map(({ pace, given }) => ({ pace, given }));
  const ends = [];
  start(0, ({ type }) => ends.push(type)).update({}, null, null, { steps: 1 });
  isLost = true;
  asked[2].onEvent({ type: "done" });
  return { told, refused, begun, ends };
}"""


def test_steps_of_a_run_that_waits_are_written_once_it_starts(loaded: Page) -> None:
    """As on the server, which refuses those of a run that is not paused. One that ends at its start
    ends once."""
    found = loaded.evaluate(STEPS)
    assert found["ends"] == ["accepted", "queued", "done"]
    assert found["refused"].startswith("this run is not paused, so it cannot be stepped")
    assert found["told"] == ["accepted", "queued", "done"]
    assert found["begun"] == [
        {"pace": 0, "given": [[None, None, None, {"steps": 3}]]},
        {"pace": 0, "given": []},
    ]


def test_refused_interventions_do_not_discard_settings_merged_with_them(local: Page) -> None:
    """All updates but the first wait and are merged; a bad one is answered by an error."""
    off = {"heads": [{"layer": 1, "head": 0, "factor": 0}]}
    fields: list[dict[str, Any]] = [
        {"params": {"temperature": 0.5}},
        {"params": {"top_k": 5}},
        {"reach": off},
        {"reach": {"mlp": [{"layer": 99, "factor": 0}]}},
    ]
    updates = [{"type": "update", "id": "a", **each} for each in fields]
    run = {"type": "generate", "id": "a", "prompt": "Once", "params": {"seed": "1"}}
    stop = {"type": "stop", "id": "a"}
    found = local.evaluate(ASK, [run, *updates, stop])
    assert [m["param"] for m in found if m["type"] == "error"] == ["reach.mlp"]
    asked = local.evaluate(
        "window.local.runs[0].encoded.map((each) => each?.requested.heads ?? null)"
    )
    assert asked == [None, None, off["heads"]]
    [params] = local.evaluate("[window.local.runs[0].asked]")
    assert params == [{"temperature": 0.5}, {"top_k": 5}, {}]


SMALLEST: list[dict[str, Any]] = [
    {"type": "generate", "id": "a"},
    {"type": "update", "id": "a"},
    {"type": "stop", "id": "a"},
    {"type": "resume", "id": "a"},
    {"type": "count", "request": 1},
    {"type": "tokenize", "request": 1},
]


def test_every_field_and_its_default_are_those_of_the_protocol(loaded: Page) -> None:
    """A message with only what it must have, read by both sides."""
    found = loaded.evaluate(
        """async (messages) => {
          const { MessageReader } = await import("/static/js/local/messages.js");
          const schemas = await (await fetch("/static/js/net/protocol-schema.json")).json();
          const reader = new MessageReader(schemas.from_page);
          return JSON.stringify(messages.map((each) => reader.read(each).message));
        }""",
        SMALLEST,
    )
    for message, filled in zip(SMALLEST, json.loads(found), strict=True):
        ours = decode(json.dumps(message))
        names = zip(ours.__struct_fields__, ours.__struct_encode_fields__, strict=True)
        given = {wire: getattr(ours, name) for name, wire in names}
        want = {wire: value for wire, value in given.items() if value is not msgspec.UNSET}
        assert filled == {"type": message["type"], **json.loads(msgspec.json.encode(want))}


def test_a_seed_is_drawn_and_told(local: Page) -> None:
    runs = [{"type": "generate", "id": f"r{n}", "prompt": "Once"} for n in range(2)]
    seeds = [
        m["event"]["params"]["seed"] for m in local.evaluate(ASK, runs) if m["type"] == "event"
    ]
    assert len(set(seeds)) == 2
    assert all(0 <= seed < 2**32 for seed in seeds)


PLAN = {
    "profile": "software",
    "needs": {"bytes": 10_000, "features": [], "limits": {}},
    "model": {
        "architecture": "llama", "n_layers": 1, "n_heads": 2, "n_kv_heads": 2, "head_dim": 4,
        "hidden_size": 8, "vocab_size": 64, "eos_ids": [2], "expert_layers": [], "n_experts": 0,
        "experts_per_token": 0,
        "loras": [{"name": "tone", "rank": 8, "parameters": 640, "modules": 4}],
    },
    "limits": {"slots": 2, "context": 64, "n_blocks": 8, "block_tokens": 16},
    "buffers": [{"name": "a", "bytes": 4000, "weight": 0}, {"name": "kv", "bytes": 2048}],
    "views": [[1, 0, 1024], [1, 1024, 1024], [0, 0, 4]],
    "tensors": {"layer00.keys": {"view": 0}, "layer00.values": {"view": 1}, "step": {"view": 2}},
    "plans": [
        {"kind": "plain", "rows": 1, "samples": 0, "splits": 1, "dispatches": [[0, 2]]},
        {"kind": "plain", "rows": 1, "samples": 1, "splits": 1, "dispatches": [[0, 2], [5, 4]]},
    ],
}  # fmt: skip
MANIFEST = {
    "name": "small",
    "model": {"dtype": "q8", "kv_dtype": "f16", "parameters": 1234},
    "chat": {"eos_ids": [2, 7], "chat_template": None},
    "defaults": {"temperature": 0.5},
}


def test_the_hello_says_of_a_plan_what_the_server_says_of_its_engine(
    loaded: Page, heard: list[dict[str, Any]]
) -> None:
    theirs = next(each for each in heard if each["type"] == "hello")
    found = loaded.evaluate(
        """async ([info, session]) =>
          (await import("/static/js/local/hello.js")).helloOf(info, 1, session)""",
        [
            {
                "plan": PLAN,
                "manifest": MANIFEST,
                "adapter": "acme x1",
                "features": ["timestamp-query"],
                "clockMs": 0.0625,
            },
            limits_data()["session"],
        ],
    )
    assert found.keys() == theirs.keys() - {"recommended"}, "which only /v1 asks for"
    for part in ("device", "limits", "memory"):
        assert found[part].keys() == theirs[part].keys()
    assert theirs["model"].keys() == found["model"].keys()
    assert found["model"]["eos_ids"] == [2, 7]
    assert found["model"]["loras"] == PLAN["model"]["loras"]
    assert found["model"]["chat"] is False
    assert found["device"]["name"] == "acme x1"
    assert found["device"]["features"] == ["timestamp-query"]
    assert found["device"]["lacks"] == []
    assert (found["device"]["clock_ms"], theirs["device"]["clock_ms"]) == (0.0625, 0)
    assert found["memory"] == {"weights": 4000, "kv_cache": 2048, "work": 3952}
    assert found["limits"]["kv_block_bytes"] == 256
    assert found["dispatches_per_token"] == 6


WORKER = """
const hello = %s;
self.onmessage = ({ data }) => {
  if (data.type === "start") {
    if (!data.base.endsWith("/model/") || !data.sampling.settings) throw new Error("no base");
    postMessage(hello);
    postMessage({ type: "status", state: "ready", message: "ready", progress: null });
  } else if (data.type === "generate") {
    const prompt = [{ id: 5, text: "a" }];
    const accepted = { type: "accepted", prompt, params: { ...data.params, seed: 1 } };
    const event = { ...accepted, capture: false, position: 0, context: 64, texts: [], dropped: [] };
    postMessage({ type: "event", id: data.id, seq: 1, at: 1, event });
    postMessage({ type: "lost", message: "the GPU was reset" });
  } else if (data.type === "stop") throw new Error("out of memory");
  else if (data.type === "resume") {
    const error = { code: "unknown_generation", message: "there is no generation here", param: "" };
    postMessage({ type: "error", id: data.id, request: null, ...error });
  }
};
"""


@pytest.fixture
def scripted(page: Page, context: BrowserContext, heard: list[dict[str, Any]]) -> Iterator[Page]:
    """A page whose worker is scripted: it loses its device with the first generation."""
    hello = next(each for each in heard if each["type"] == "hello")

    def worker(route: Route) -> None:
        route.fulfill(body=WORKER % json.dumps(hello), content_type="text/javascript")

    context.route("**/static/js/local/worker.js", worker)
    return page


def local_page(page: Page, site: Site) -> Playground:
    """Open the page of a site as one whose model runs in the browser."""
    meta = '<meta name="tokenglass-engine" content="local" data-base="model/">'

    def index(route: Route) -> None:
        response = route.fetch()
        route.fulfill(response=response, body=response.text().replace("<head>", f"<head>{meta}"))

    page.route(site.url, index)
    return Playground(page, site).open()


def test_a_lost_device_is_said_and_the_model_can_be_started_again(
    scripted: Page, site: Any
) -> None:
    """The page's policy lets the worker run; what was asked stays on the page."""
    play = local_page(scripted, site())
    assert not play.messages.received, "a page with a model of its own needs no server"
    play.ask("A story of a fox")
    expect(play.notice).to_contain_text("The model has stopped")
    expect(play.notice).to_contain_text("The GPU was reset. Your text is kept.")
    scripted.get_by_role("button", name="Start it again").click()
    play.wait_ready()
    expect(play.notice).to_contain_text("Generation was interrupted")
    expect(scripted.get_by_role("article").first).to_contain_text("A story of a fox")
    expect(play.continue_button).to_be_enabled()


SOCKET = """async (base) => {
  const { WorkerSocket } = await import("/static/js/net/worker-socket.js");
  const log = [];
  const heard = (message) => log.push(message.type);
  const sampling = { settings: [] };
  const socket = new WorkerSocket({ base, sampling }, heard, (...what) => log.push(what));
  const until = async (n) => {
    for (const begun = performance.now(); log.length < n; ) {
      if (performance.now() - begun > 20_000) throw new Error(JSON.stringify(log));
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
  };
  const early = socket.send({ type: "stop" });
  socket.open();
  await until(4);
  const sent = socket.send({ type: "stop" });
  await until(5);
  const late = socket.send({ type: "stop" });
  socket.retry();
  await until(9);
  socket.retry(); // connected: nothing happens
  socket.lose("end of the test");
  return { log, sent: [early, sent, late] };
}"""


def test_a_worker_that_crashes_is_a_lost_connection(
    scripted: Page, site: Any, allowed_console: list[str]
) -> None:
    allowed_console.append("out of memory")
    play = Playground(scripted, site()).open()
    found = scripted.evaluate(SOCKET, f"{play.site.url}model/")
    assert found["sent"] == [False, True, False]
    opened = ["status", ["open", 0], "hello", "status"]
    *first, lost = found["log"][:5]
    assert first == opened
    assert lost[:2] == ["lost", 0]
    assert "has crashed" in lost[2]
    assert "out of memory" in lost[2]
    assert found["log"][5:] == [*opened, ["lost", 0, "end of the test"]]


def test_the_page_tells_the_worker_all_settings(loaded: Page) -> None:
    """The page's data has what the session needs to check a request."""
    limits = loaded.evaluate("JSON.parse(document.getElementById('limits-data').textContent)")
    assert limits == json.loads(msgspec.json.encode(limits_data()))
    data = loaded.evaluate("JSON.parse(document.getElementById('sampling-data').textContent)")
    assert data == json.loads(msgspec.json.encode(sampling_data()))
    assert data["meanings"].keys() == {
        *(each["name"] for each in data["settings"]), "seed", "first_index"
    }  # fmt: skip
