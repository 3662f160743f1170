"""Attention: the scores of heads, and the weights of a real run as the engine itself gives them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import msgspec
import numpy as np
import pytest
from playwright.sync_api import Page, WebSocketRoute, expect

from e2e.look.panel import LookPanel
from e2e.look.test_looks import open_page, violations
from e2e.net.message_log import MessageLog
from e2e.playground import Playground
from e2e.site import Site
from e2e.waiting import until
from gpu import Engine
from gpu.inspection.requests import Answer, AttentionFrom, AttentionTo, Question
from tests.app.fake_engine import FakeEngine
from tests.app.fake_options import FakeOptions

SCORES = """async ([ids, position, weights]) => {
  const scores = await import("/static/js/look/attention/scores.js");
  const places = scores.placesOf(ids, position);
  if (!weights) return { places };
  const shape = [weights.length, weights[0].length, position + 1];
  const found = scores.scoresOf({ shape, values: new Float32Array(weights.flat(2)) }, places);
  const n = shape[0] * shape[1];
  const heads = Array.from({ length: n }, (_, i) => i);
  const names = heads.map((i) => scores.nameOf(found, i)?.place ?? null);
  const list = (values) => values && [...values];
  const all = Object.fromEntries(scores.PLACES.map((place) => [place, list(found[place])]));
  return { places, scores: all, names, counts: scores.namedBy(found, n) };
}"""


# ---- scores ----------------------------------------------------------------------------------


def test_no_position_is_of_two_places(loaded: Page) -> None:
    rng = np.random.default_rng(4)
    for n in (1, 2, 3, 4, 7, 40):
        ids = rng.integers(0, 4, n).tolist()
        places = loaded.evaluate(SCORES, [ids, n - 1, None])["places"]
        listed = [at for where in places.values() for at in where or ()]
        assert len(listed) == len(set(listed)), (ids, places)
        assert all(0 <= at < n for at in listed)
        expected = [j for j in range(1, n - 2) if ids[j - 1] == ids[n - 1]]
        assert (places["copy"] or []) == expected, ids
    assert loaded.evaluate(SCORES, [[5], 0, None])["places"] == dict.fromkeys(
        ("first", "previous", "copy", "self")
    ), "a token alone can look at nothing else"


def test_heads_are_named_after_where_they_look(loaded: Page) -> None:
    ids = [9, 7, 3, 5, 7, 4, 5, 1, 2, 8, 6, 7]
    rows = {
        "first": {0: 0.9, 4: 0.1},
        "previous": {10: 0.8, 0: 0.2},
        "copy": {2: 0.3, 5: 0.4, 11: 0.3},
        "self": {11: 0.6, 10: 0.4},
        None: {1: 0.5, 3: 0.5},
    }
    weights = [[[row.get(at, 0.0) for at in range(len(ids))] for row in rows.values()]]
    found = loaded.evaluate(SCORES, [ids, len(ids) - 1, weights])
    assert found["places"]["copy"] == [2, 5], "after both earlier 7s"
    assert found["names"] == list(rows)
    assert found["counts"] == {"first": 1, "previous": 1, "copy": 1, "self": 1}
    assert found["scores"]["copy"] == pytest.approx([0, 0, 0.7, 0, 0])


def test_an_even_head_has_no_name(loaded: Page) -> None:
    """In a short context a quarter on one place is chance; in a longer one it is not."""
    for n, name in [(4, None), (40, "previous")]:
        row = [0.75 / (n - 1)] * n
        row[n - 2] = 0.25
        found = loaded.evaluate(SCORES, [list(range(n)), n - 1, [[row]]])
        assert found["names"] == [name], n


def test_a_mean_is_over_the_tokens_that_have_the_place(loaded: Page) -> None:
    mean = loaded.evaluate(
        """async () => {
          const { meanScores } = await import("/static/js/look/attention/scores.js");
          const one = (copy, even) => ({
            first: [0.5], previous: [0], self: [0], copy, even: { copy: even },
          });
          const all = [one([0.2], 0.1), one(null, 0), one([0.6], 0.3)];
          const { first, copy, even } = meanScores(all);
          return { first, copy, even: even.copy };
        }"""
    )
    assert mean == {
        "first": pytest.approx([0.5]),
        "copy": pytest.approx([0.4]),
        "even": pytest.approx(0.2),
    }


def test_a_long_context_is_shown_in_parts_that_say_what_they_leave_out(loaded: Page) -> None:
    rng = np.random.default_rng(8)
    n, position = 4096, 3000
    line = rng.dirichlet([0.05] * (position + 1)).tolist() + [0.0] * (n - position - 1)
    line[3500] = 0.9
    parts = loaded.evaluate(
        """async ([line, position]) => {
          const { partsOf } = await import("/static/js/look/attention/words.js");
          return partsOf(new Float32Array(line), position);
        }""",
        [line, position],
    )
    assert [part["from"] for part in parts] == [0, *(part["to"] for part in parts[:-1])]
    assert parts[-1]["to"] == n
    shown = [at for part in parts if not part["gap"] for at in range(part["from"], part["to"])]
    assert len(shown) <= 700
    assert {0, position, 3500, int(np.argmax(line[:position]))} <= set(shown)
    left = sum(part["share"] for part in parts if part["gap"])
    seen = sum(line[at] for at in shown if at <= position)
    assert left + seen == pytest.approx(1, abs=1e-4)


@pytest.mark.quick
@pytest.mark.parametrize(("n_layers", "n_heads", "n_kv_heads"), [(8, 6, 3), (32, 32, 8), (3, 4, 4)])
def test_heads_that_share_keys_stand_together(
    loaded: Page, n_layers: int, n_heads: int, n_kv_heads: int
) -> None:
    shape = {"nLayers": n_layers, "nHeads": n_heads, "nKvHeads": n_kv_heads}
    places = loaded.evaluate(
        """async (shape) => (await import("/static/js/look/attention/map.js"))
          .layOut(540, 260, 88, shape)""",
        shape,
    )
    mean, *heads = places["columns"]
    assert mean["head"] is None
    ends = [one["x"] + one["width"] for one in heads]
    assert ends[-1] <= 540
    gaps = [two["x"] - end for two, end in zip(heads[1:], ends, strict=False)]
    each = n_heads // n_kv_heads
    between = [gap for i, gap in enumerate(gaps, 1) if i % each == 0]
    within = [gap for i, gap in enumerate(gaps, 1) if i % each]
    assert min(gaps) >= 0
    assert not within or min(between) > max(within)
    tops = [row["y"] for row in places["rows"][:n_layers]]
    assert tops == sorted(tops, reverse=True), "layers rise"
    assert places["rows"][-1]["y"] > max(tops), "and the mean of all is below them"


# ---- a real run ------------------------------------------------------------------------------


def real_run(page: Page, url: str, n: int = 40) -> tuple[Playground, LookPanel, list[int], int]:
    """A page after a run; its ids, and how many of them are the prompt's."""
    play = Playground(page, url=url).open()
    messages = play.messages
    play.set(max_tokens=n, seed=11)
    play.ask("Tell me a story about a fox who finds a lantern")
    play.wait_tokens(n)
    play.wait_done()
    prompt = [token["id"] for token in messages.events("accepted")[0]["prompt"]]
    ids = prompt + [token["id"] for token in messages.events("token")]
    return play, play.look, ids, len(prompt)


def pin(page: Page, index: int) -> None:
    page.evaluate("async (i) => (await import('/static/js/view.js')).pin(i)", index)


def shown_at(page: Page, position: int) -> None:
    expect(page.locator(f'.aw.on[data-at="{position}"]')).to_have_count(1, timeout=15_000)


def weights_of(rows: list[dict[str, str]], column: str) -> list[float]:
    return [float(row[column]) if row[column] else np.nan for row in rows]


@pytest.mark.quick
def test_the_weights_are_those_of_the_engine(
    page: Page, bundled: Site, bundled_engine: Engine
) -> None:
    _, look, ids, n_prompt = real_run(page, bundled.url)
    position = n_prompt + 20
    pin(page, 20)
    look.open("attention")
    shown_at(page, position)
    grid = page.get_by_role("slider", name="Head")
    grid.focus()
    for key in ("ArrowUp", "ArrowUp", "ArrowUp"):  # from the mean of all to layers 0, 1, 2
        page.keyboard.press(key)
    expect(grid).to_have_attribute("aria-valuetext", re.compile("layer 2, mean of 6 heads"))
    before = bundled_engine.inspect(AttentionFrom(ids[: position + 1], position)).result()[
        "weights"
    ]
    after = bundled_engine.inspect(AttentionTo(ids, position)).result()["weights"]
    until(page, lambda: look.csv()[-1]["head 0"], "what looked at the token")
    rows = look.csv()
    for head in range(bundled_engine.info.model.n_heads):
        got = np.array(weights_of(rows, f"head {head}"), np.float32)
        assert np.array_equal(got[: position + 1], before[2, head]), (
            f"head {head}, what it looked at"
        )
        assert np.array_equal(got[position + 1 :], after[1:, 2, head]), f"head {head}, what looked"
        assert got[: position + 1].sum() == pytest.approx(1, abs=1e-5)
    mean = weights_of(rows, "layer 2")
    assert mean[: position + 1] == pytest.approx(before[2].mean(0), abs=1e-6)
    assert [int(row["id"]) for row in rows] == ids
    expect(look.source).to_contain_text("all entropies match those measured in the run")


def test_the_scores_are_sums_of_the_engines_weights(
    page: Page, bundled: Site, bundled_engine: Engine
) -> None:
    _, look, ids, n_prompt = real_run(page, bundled.url)
    position = next(
        at
        for at in range(n_prompt + 4, len(ids))
        if any(ids[j - 1] == ids[at] for j in range(1, at - 1))
    )
    pin(page, position - n_prompt)
    look.open("attention")
    shown_at(page, position)
    page.get_by_role("radio", name="Copy").check()
    weights = bundled_engine.inspect(AttentionFrom(ids[: position + 1], position)).result()[
        "weights"
    ]
    after = [j for j in range(1, position - 1) if ids[j - 1] == ids[position]]
    rows = {(int(row["layer"]), int(row["head"])): row for row in look.csv()}
    assert len(rows) == bundled_engine.info.model.n_layers * bundled_engine.info.model.n_heads
    for (layer, head), row in rows.items():
        own = weights[layer, head].astype(np.float64)
        assert int(row["KV head"]) == head // 2
        expected = {
            "first": own[0],
            "previous": own[position - 1],
            "copy": own[after].sum(),
            "self": own[position],
            "entropy (bits)": -(own[own > 0] * np.log2(own[own > 0])).sum(),
        }
        for name, value in expected.items():
            assert float(row[name]) == pytest.approx(value, abs=2e-5), (layer, head, name)


def test_special_tokens_of_the_prompt_are_among_the_words(page: Page, bundled: Site) -> None:
    _, look, _, _ = real_run(page, bundled.url, n=4)
    look.open("attention")
    special = page.locator(".aw.special")
    expect(special.first).to_have_text(re.compile(r"^<\|im_start\|>"))
    assert special.count() >= 3


# ---- driving it ------------------------------------------------------------------------------


def fake_run(page: Page, here: Site, n: int = 30) -> tuple[Playground, LookPanel, MessageLog]:
    play = open_page(page, here)
    messages = play.messages
    play.set(max_tokens=n, seed=3)
    play.ask()
    play.wait_tokens(n)
    play.wait_done()
    return play, play.look, messages


def asked(messages: MessageLog, kind: str) -> list[dict[str, Any]]:
    questions = [message["question"] for message in messages.sent if message["type"] == "inspect"]
    return [question for question in questions if question["kind"] == kind]


def test_pointing_at_a_word_looks_at_it(page: Page, site: Callable[..., Site]) -> None:
    play, look, messages = fake_run(page, site())
    look.open("attention")
    words = page.locator(".aw")
    expect(words.last).to_have_class(re.compile(r"\bon\b"))
    n = words.count()
    words.nth(n - 10).hover()
    expect(words.nth(n - 10)).to_have_class(re.compile(r"\bon\b"))
    expect(page.locator("#tok-no")).to_have_text(str(30 - 9))
    expect(page.locator(".aw.off")).to_have_count(0)
    assert asked(messages, "attention_to")[-1]["position"] == n - 10
    page.mouse.move(5, 400)
    expect(words.last).to_have_class(re.compile(r"\bon\b"))
    words.nth(n - 20).click()
    page.mouse.move(5, 400)
    expect(words.nth(n - 20)).to_have_class(re.compile(r"\bon\b"))
    expect(play.core).to_have_attribute("aria-valuenow", str(30 - 19))


@pytest.mark.slow
def test_an_answer_is_asked_for_once(page: Page, site: Callable[..., Site]) -> None:
    _, look, messages = fake_run(page, site())
    look.open("attention")
    words = page.locator(".aw")
    n = words.count()
    for at in (n - 8, n - 12, n - 8, n - 12):
        words.nth(at).hover()
        expect(words.nth(at)).to_have_class(re.compile(r"\bon\b"))
    positions = [question["position"] for question in asked(messages, "attention_from")]
    assert sorted(positions) == sorted(set(positions))
    assert all(len(q["ids"]) == q["position"] + 1 for q in asked(messages, "attention_from"))


def test_heads_and_words_by_keyboard(page: Page, site: Callable[..., Site]) -> None:
    play, look, _ = fake_run(page, site())
    look.open("attention")
    grid = page.get_by_role("slider", name="Head")
    expect(grid).to_have_attribute("aria-valuetext", re.compile("mean of all 64 heads"))
    grid.focus()
    for key, says in [
        ("ArrowUp", "layer 0, mean of 8 heads"),
        ("ArrowRight", "layer 0, head 0, KV head 0"),
        ("End", "layer 0, head 7, KV head 3"),
        ("ArrowRight", "layer 0, head 7, KV head 3"),
        ("ArrowUp", "layer 1, head 7"),
        ("Home", "layer 1, mean"),
        ("ArrowDown", "layer 0, mean"),
        ("ArrowDown", "mean of all"),
    ]:
        page.keyboard.press(key)
        expect(grid).to_have_attribute("aria-valuetext", re.compile(says))
    page.keyboard.press("ArrowUp")
    expect(page.locator("#gutter .on")).to_have_text("layer 0")
    page.keyboard.press("Tab")
    expect(page.locator(".aw.on")).to_be_focused()
    page.keyboard.press("ArrowLeft")
    expect(play.core).to_have_attribute("aria-valuenow", "29")
    expect(page.locator(".aw.on")).to_be_focused()
    page.keyboard.press("Home")
    expect(page.locator("#tok-no")).to_have_text("prompt 1")


def test_a_head_marks_its_row_in_the_core(page: Page, site: Callable[..., Site]) -> None:
    play, look, _ = fake_run(page, site(n_layers=4, n_heads=4))
    page.get_by_role("radio", name="Attention entropy").check()
    look.open("attention")
    canvas = page.locator(".at-map canvas")
    expect(page.locator(".aw.on")).to_have_count(1)
    box = canvas.bounding_box()
    assert box is not None
    canvas.click(position={"x": box["width"] - 8, "y": 30})
    expect(page.get_by_role("slider", name="Head")).to_have_attribute(
        "aria-valuetext", re.compile("layer 3, head 3")
    )
    expect(play.core).to_have_attribute("aria-valuetext", re.compile("layer 3 head 3"))


def test_the_run_measured_nothing_at_the_token_that_it_drew_last(
    page: Page, site: Callable[..., Site]
) -> None:
    _, look, _ = fake_run(page, site(n_layers=4, n_heads=4))
    look.open("attention")
    expect(look.source).to_contain_text("the run has not read this token")
    pin(page, 3)
    # The fake engine invents what a run measured, so that differs from what is computed.
    expect(look.source).to_contain_text("by up to")


@pytest.mark.slow
def test_several_tokens_are_asked_one_by_one_until_the_panel_closes(
    page: Page, own_site: Callable[..., Site]
) -> None:
    _, look, messages = fake_run(page, own_site(ask_seconds=0.15), n=40)
    look.open("attention")
    expect(page.locator(".aw.on")).to_have_count(1)
    over = page.get_by_role("button", name=re.compile("32"))
    over.click()
    expect(page.locator(".at-bar button")).to_have_text(re.compile(r"^[2-5] of 32$"))
    page.keyboard.press("Escape")
    expect(look.panel).to_be_hidden()
    page.wait_for_timeout(300)
    n = len(asked(messages, "attention_from"))
    page.wait_for_timeout(500)
    assert len(asked(messages, "attention_from")) == n < 32
    look.open("attention")
    expect(page.locator(".at-help")).to_contain_text(
        re.compile(r"Mean over tokens \d+ to \d+"), timeout=15_000
    )
    positions = [question["position"] for question in asked(messages, "attention_from")]
    last = max(positions)
    assert set(positions) == set(range(last - 31, last + 1))
    assert len(positions) <= 34, "what was answered before the panel closed was kept"


@pytest.mark.parametrize("stored", ["dtype", "kv_dtype"])
def test_the_mean_over_tokens_is_measured_again_if_the_numbers_are_stored_otherwise(
    page: Page, site: Callable[..., Site], stored: str
) -> None:
    play, look, messages = fake_run(page, site(), n=6)
    look.open("attention")
    expect(page.locator(".aw.on")).to_have_count(1)
    page.get_by_role("button", name=re.compile("Mean over 32")).click()
    mean = page.locator(".at-help")
    expect(mean).to_contain_text("Mean over tokens")
    before = asked(messages, "attention_from")
    play.load_as(**{stored: "q8"})
    positions = {question["position"] for question in before}
    until(
        page,
        lambda: (
            {q["position"] for q in asked(messages, "attention_from")[len(before) :]} == positions
        ),
        "the questions to the other model",
    )
    expect(mean).to_contain_text("Mean over tokens")


def test_while_a_run_writes_what_looked_at_a_token_is_asked_on_demand(
    page: Page, site: Callable[..., Site]
) -> None:
    play = open_page(page, site(delay=0.03))
    messages = play.messages
    play.set(max_tokens=120)
    play.ask()
    play.wait_tokens(12)
    pin(page, 4)
    look = play.look.open("attention")
    button = page.get_by_role("button", name=re.compile(r"Query \d+ later tokens"))
    expect(button).to_be_visible()
    page.wait_for_timeout(500)
    assert not asked(messages, "attention_to")
    button.click()
    expect(page.locator(".aw.on ~ .aw:not(.off)").first).to_be_attached()
    page.keyboard.press("Escape")
    expect(look.panel).to_be_hidden()
    page.keyboard.press("Escape")
    play.wait_done()
    found = [q["position"] for q in asked(messages, "attention_to")]
    assert found == [found[0]]


def test_a_run_that_writes_is_asked_about_with_rests(page: Page, site: Callable[..., Site]) -> None:
    """Every question about the newest token takes time from the run."""
    play = open_page(page, site(delay=0.01))
    messages = play.messages
    play.set(max_tokens=200)
    play.ask()
    page.evaluate("() => { location.hash = 'look=attention' }")
    play.wait_tokens(200)
    play.wait_done()
    expect(page.locator(".aw.on")).to_be_visible()
    expect(page.locator("#look")).not_to_have_attribute("aria-busy", "true")
    took = sum(event["times"]["interval"] for event in messages.events("token"))
    n = len(asked(messages, "attention_from"))
    assert 3 <= n <= took / 120 + 3
    newest = asked(messages, "attention_from")[-1]["ids"]
    assert newest[-1] == messages.events("token")[-1]["id"], "and in the end about the last"


class SlowAnswers(FakeEngine):
    """Tells how long an answer took, as the real engine does."""

    def _answer(self, question: Question, future: Future[Answer]) -> None:
        inner: Future[Answer] = Future()
        super()._answer(question, inner)
        answer = inner.result()
        ms = 1000 * self.options.ask_seconds
        future.set_result(msgspec.structs.replace(answer, info={**answer.info, "ms": ms}))


@pytest.mark.slow
def test_slow_answers_are_asked_for_less_often(page: Page, own_site: Callable[..., Site]) -> None:
    """Whatever a question takes of the engine, together they take a fifth of the time at most."""
    options = FakeOptions(delay=0.01, ask_seconds=0.15)
    play = open_page(page, own_site(load=lambda _progress: SlowAnswers(options)))
    messages = play.messages
    play.set(max_tokens=300)
    play.ask()
    page.evaluate("() => { location.hash = 'look=attention' }")
    play.wait_tokens(300)
    play.wait_done()
    took = sum(event["times"]["interval"] for event in messages.events("token"))
    n = len(asked(messages, "attention_from"))
    assert 3 <= n <= took / (5 * 150) + 2


def test_many_later_tokens_are_asked_about_on_demand_until_that_is_known_to_be_quick(
    page: Page, own_site: Callable[..., Site]
) -> None:
    """The next instrument would wait for them, as no question is cancelled."""
    options = FakeOptions(delay=0.001, ask_seconds=0.05)
    here = own_site(load=lambda _progress: SlowAnswers(options))
    _, look, messages = fake_run(page, here, n=60)
    pin(page, 3)
    look.open("attention")
    button = page.get_by_role("button", name="Query 56 later tokens")
    expect(button).to_be_visible()
    page.wait_for_timeout(500)
    assert not asked(messages, "attention_to")
    button.click()
    expect(page.locator(".aw.off")).to_have_count(0)
    pin(page, 2)
    until(page, lambda: len(asked(messages, "attention_to")) == 2, "the question about token 3")


def test_an_error_about_what_looked_at_it_leaves_what_it_looked_at(
    page: Page, site: Callable[..., Site]
) -> None:
    def on_socket(route: WebSocketRoute) -> None:
        server = route.connect_to_server()

        def on_message(text: str | bytes) -> None:
            message = json.loads(text)
            if message.get("question", {}).get("kind") != "attention_to":
                server.send(text)
                return
            error = {"type": "error", "code": "queue_full", "message": "no KV cache is free"}
            route.send(json.dumps({**error, "id": "", "param": "", "request": message["request"]}))

        route.on_message(on_message)

    page.route_web_socket("**/ws", on_socket)
    play = open_page(page, site())
    play.set(max_tokens=20)
    play.ask()
    play.wait_tokens(20)
    play.wait_done()
    pin(page, 5)
    play.look.open("attention")
    expect(page.locator(".at-help")).to_have_text(
        "Attention from later tokens failed: no KV cache is free"
    )
    expect(page.locator(".aw.on")).to_have_count(1)
    expect(page.get_by_role("button", name="Query 14 later tokens")).to_be_visible()


@pytest.mark.parametrize("theme", [pytest.param("light", marks=pytest.mark.slow), "dark"])
def test_axe_finds_nothing_in_attention(page: Page, site: Callable[..., Site], theme: str) -> None:
    page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
    _, look, _ = fake_run(page, site())
    pin(page, 12)
    look.open("attention")
    expect(page.locator(".aw.off")).to_have_count(0)
    assert violations(page) == []


@pytest.mark.parametrize("width", [360, 768])
def test_attention_fits_small_windows(page: Page, site: Callable[..., Site], width: int) -> None:
    play, look, _ = fake_run(page, site())
    look.open("attention")
    expect(page.locator(".aw.on")).to_have_count(1)
    page.set_viewport_size({"width": width, "height": 800})
    page.wait_for_timeout(100)
    assert play.overflow() <= 0
    root = page.locator(".instrument.attention")
    assert root.evaluate("(n) => n.scrollWidth - n.clientWidth") <= 0
    heads, side = (page.locator(name).bounding_box() for name in (".at-heads", ".at-side"))
    assert heads is not None
    assert side is not None
    assert heads["y"] + heads["height"] <= side["y"], "one under the other"
