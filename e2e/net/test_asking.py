"""`static/js/net/inspect.js` against a real server: answers as typed arrays, errors, and only the
newest question of a slider."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from playwright.sync_api import Page, WebSocketRoute

from e2e.playground import Playground
from e2e.site import Site
from e2e.waiting import until
from gpu.inspection.requests import Question
from tests.app import fake_inspection
from tests.app.fake_options import FakeOptions, info_of

LOST_LINE = "WebSocket connection to"
IDS = [0, 262, 263, 264, 265]
QUESTIONS: list[dict[str, Any]] = [
    {"kind": "attention_from", "ids": IDS, "position": 2},
    {"kind": "logit_lens", "ids": IDS, "position": 2, "chosen": 270, "top": 3},
    {
        "kind": "waterfall",
        "ids": IDS,
        "position": 4,
        "params": {"seed": "18446744073709551615"},
        "index": 1,
    },
]

ASK = """async (question) => {
  const { inspect } = await import("/static/js/net/inspect.js");
  const { kind, info, arrays } = await inspect(question);
  const told = Object.entries(arrays).map(([name, { shape, values }]) => [
    name,
    { shape, type: values.constructor.name, values: [...values], offset: values.byteOffset },
  ]);
  const buffers = new Set(Object.values(arrays).map(({ values }) => values.buffer));
  return { kind, info, arrays: Object.fromEntries(told), buffers: buffers.size };
}"""


def outcome(page: Page, module_call: str, argument: Any) -> Any:
    """Return the value of a promise of net/inspect.js, or {code} if it rejects."""
    return page.evaluate(
        "async (argument) => { const asking = await import('/static/js/net/inspect.js');"
        f" return (asking.{module_call}).then((found) => found, ({{ code }}) => ({{ code }})); }}",
        argument,
    )


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question["kind"])
def test_an_answers_numbers_are_views_on_its_frame(
    page: Page, play: Callable[..., Playground], question: dict[str, Any]
) -> None:
    play()
    told = page.evaluate(ASK, question)
    plain = msgspec.json.encode(question).decode().replace('"18446744073709551615"', f"{2**64 - 1}")
    wanted = fake_inspection.answer(
        msgspec.json.decode(plain, type=Question), info_of(FakeOptions())
    )
    assert told["kind"] == question["kind"]
    assert told["buffers"] == 1, "all arrays look into the one frame that came"
    assert list(told["arrays"]) == [array.name for array in wanted.arrays]
    for array in wanted.arrays:
        found = told["arrays"][array.name]
        assert found["type"] == {"f32": "Float32Array", "u32": "Uint32Array"}[array.dtype]
        assert found["shape"] == list(array.shape)
        assert found["values"] == array.numpy().ravel().tolist()
        assert found["offset"] % 8 == 0


@pytest.mark.quick
def test_what_the_server_refuses_is_rejected(page: Page, play: Callable[..., Playground]) -> None:
    play()
    bad = {"kind": "losses", "ids": []}
    assert outcome(page, "inspect(argument)", bad) == {"code": "invalid_request"}
    assert outcome(page, "inspect(argument)", {"kind": "no"}) == {"code": "bad_message"}
    assert outcome(page, "tokenize(argument)", {}) == {"code": "invalid_request"}
    assert outcome(page, "tokenize(argument)", {"text": "Once"})["rendered"] == "Once"


LATEST = """async (n) => {
  const { inspect, latest } = await import("/static/js/net/inspect.js");
  const settled = [];
  const question = (position) => ({ kind: "attention_from", ids: Array(n).fill(1), position });
  for (let i = 0; i < n; i += 1) {
    const tell = (what) => settled.push([i, what]);
    latest("slider", question(i), inspect).then(
      (answer) => tell(answer.arrays.weights.shape[2]), () => tell("no"));
  }
  while (!settled.some(([i]) => i === n - 1)) await new Promise((done) => setTimeout(done, 10));
  await new Promise((done) => setTimeout(done, 200));
  return settled;
}"""


@pytest.mark.quick
def test_only_the_newest_question_of_a_slider_is_answered(
    page: Page, site: Callable[..., Site]
) -> None:
    """While one is on the line the others wait, and the newest of them pushes out the rest."""
    asked, most, open_now = [0], [0], [0]

    def on_socket(route: WebSocketRoute) -> None:
        server = route.connect_to_server()

        def up(message: str | bytes) -> None:
            if isinstance(message, str) and '"inspect"' in message:
                asked[0] += 1
                open_now[0] += 1
                most[0] = max(most[0], open_now[0])
            server.send(message)

        def down(message: str | bytes) -> None:
            open_now[0] -= isinstance(message, bytes)
            route.send(message)

        route.on_message(up)
        server.on_message(down)

    page.route_web_socket("**/ws", on_socket)
    Playground(page, site(ask_seconds=0.05)).open()
    assert page.evaluate(LATEST, 40) == [[39, 40]]
    assert (most, asked) == ([1], [2])


def test_keys_do_not_wait_for_each_other(page: Page, play: Callable[..., Playground]) -> None:
    play(ask_seconds=0.05)
    assert page.evaluate("""async () => {
      const { inspect, latest } = await import("/static/js/net/inspect.js");
      const ask = (key) => latest(key, { kind: "profile" }, inspect).then(() => key);
      return Promise.all(["a", "b", "c"].map(ask));
    }""") == ["a", "b", "c"]


def test_the_newest_question_may_fail(page: Page, play: Callable[..., Playground]) -> None:
    """And the next is asked as if nothing had been."""
    play(ask_seconds=0.05)
    assert page.evaluate("""async () => {
      const { inspect, latest } = await import("/static/js/net/inspect.js");
      const told = [];
      const ask = (question) => latest("a", question, inspect).then(
        () => told.push("answer"), ({ code }) => told.push(code));
      ask({ kind: "profile" });
      await ask({ kind: "losses", ids: [] });
      await ask({ kind: "profile" });
      return told;
    }""") == ["invalid_request", "answer"]


@pytest.mark.quick
def test_a_lost_line_rejects_what_is_under_way(
    page: Page, site: Callable[..., Site], allowed_console: list[str]
) -> None:
    allowed_console.append(LOST_LINE)
    play = Playground(page, site(ask_seconds=0.5))
    play.route_sockets()
    play.open()
    page.evaluate("""async () => {
      const { inspect, latest } = await import("/static/js/net/inspect.js");
      window.told = [];
      const tell = (promise) => promise.then(
        () => window.told.push("answer"), ({ code }) => window.told.push(code));
      tell(inspect({ kind: "profile" }));
      tell(latest("a", { kind: "profile" }, inspect));
      tell(latest("a", { kind: "profile", n_rows: 2 }, inspect));
    }""")
    play.cut()
    until(page, lambda: page.evaluate("window.told.length === 2"), "both refusals")
    assert page.evaluate("window.told") == ["lost", "lost"]
    play.wait_ready()
    assert outcome(page, "inspect(argument)", {"kind": "profile"})["kind"] == "profile"
