"""Experiments of Lab: the runs that they request, and numbers that are the engine's."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from playwright.sync_api import Page, expect
from transformers import AutoModelForCausalLM

from app import tale
from e2e.look.panel import LookPanel
from e2e.look.test_looks import open_page, violations
from e2e.playground import Playground
from e2e.site import Site
from e2e.waiting import until
from gpu.info import KvGroupInfo
from gpu.inspection.requests import Divergence
from tests.app.fake_engine import FakeEngine
from tests.app.fake_inspection import answer as fake_answer
from tests.app.fake_options import FakeOptions
from tests.app.fake_plan import fake_plan

GIVEN, WRITTEN = 16, 48
"""Tokens of the text that is written with and without the cache."""


def run(play: Playground, name: str) -> LookPanel:
    """Run an experiment to its end."""
    look = begin(play, name)
    expect(look.panel.get_by_role("button", name="Run again")).to_be_visible()
    return look


def begin(play: Playground, name: str) -> LookPanel:
    look = play.look.open("lab")
    look.panel.get_by_role("radio", name=name, exact=True).check()
    look.panel.get_by_role("button", name=re.compile("^Run")).click()
    return look


def asked(play: Playground) -> list[dict[str, Any]]:
    """Return the requests of the lab's runs, in order."""
    return [message for message in play.messages.sent if message["type"] == "generate"]


def timings(play: Playground) -> list[dict[str, Any]]:
    return [event["timings"] for event in play.messages.events("done")]


def numbers(look: LookPanel) -> list[dict[str, float]]:
    return [{name: float(value) for name, value in row.items()} for row in look.csv()]


def test_the_first_token_by_prompt_length(page: Page, site: Callable[..., Site]) -> None:
    play = open_page(page, site(delay=0.001))
    look = run(play, "First token")
    rows, found = numbers(look), timings(play)
    assert [row["prompt tokens"] for row in rows] == [len(each["ids"]) for each in asked(play)]
    assert len(rows) == len(found) > 3
    for row, each in zip(rows, found, strict=True):
        assert row["first token, ms"] == pytest.approx(each["ttft_ms"] - each["queue_ms"])
        assert row["each after it, ms"] == each["tpot_ms"]
        assert each["cache_n"] == 0, "nothing was found in the cache"
    expect(look.panel.get_by_role("status").last).to_contain_text("times as long a prompt")
    assert violations(page) == []


def test_without_the_cache_all_is_read_again(page: Page, site: Callable[..., Site]) -> None:
    play = open_page(page, site(delay=0.001))
    look = run(play, "KV cache")
    cached, *again = asked(play)
    tokens = play.messages.events("token")
    assert cached["params"]["max_tokens"] == WRITTEN
    assert [len(each["ids"]) for each in again] == [GIVEN + i for i in range(1, WRITTEN)]
    written = [token["id"] for token in tokens[:WRITTEN]]
    for i, each in enumerate(again, 1):
        assert each["ids"][1:] == [*cached["ids"][1:], *written[:i]]
        assert each["params"]["max_tokens"] == 1
    rows, (_, *found) = numbers(look), timings(play)
    assert [row["with the cache, ms"] for row in rows] == [
        token["times"]["interval"] for token in tokens[1:WRITTEN]
    ]
    assert [row["without, ms"] for row in rows] == [each["prompt_ms"] for each in found]
    assert rows[-1]["without, all so far, ms"] == pytest.approx(
        sum(each["prompt_ms"] for each in found)
    )
    assert {each["cache_n"] for each in found} == {0}


@pytest.mark.quick
def test_both_phases_have_the_costs_of_the_plan(page: Page, site: Callable[..., Site]) -> None:
    play = open_page(page, site(delay=0.001))
    look = run(play, "Phases")
    read, written = look.csv()
    (request,) = asked(play)
    n, n_written = len(request["ids"]), request["params"]["max_tokens"]
    info = FakeEngine(FakeOptions()).info
    decode = [fake_plan(info, 1, n + i) for i in range(n_written - 1)]
    assert float(written["operations"]) == sum(plan["flops"] for plan in decode)
    assert float(written["bytes"]) == sum(plan["n_bytes"] for plan in decode)
    gpu = [event["times"]["gpu"] for event in play.messages.events("token")[1:]]
    assert float(written["time, ms"]) == pytest.approx(sum(gpu))
    done = [0, *(event["done"] for event in play.messages.events("prefill"))]
    chunks = [fake_plan(info, b - a, a) for a, b in itertools.pairwise(done)]
    assert float(read["operations"]) == sum(plan["flops"] for plan in chunks)
    assert int(read["tokens"]) == n
    for row in (read, written):
        intensity = float(row["operations"]) / float(row["bytes"])
        assert float(row["operations per byte"]) == pytest.approx(intensity)
        assert row["bound by"] == ("bandwidth" if intensity < 3e11 / 2e10 else "arithmetic")


def test_streams_run_at_the_same_time(page: Page, site: Callable[..., Site]) -> None:
    play = open_page(page, site(delay=0.001))
    look = run(play, "Streams")
    rows, found = numbers(look), timings(play)
    assert [row["streams"] for row in rows] == [1, 2, 4, 8]
    assert len(found) == 15
    assert rows[0]["tokens/s, each"] == pytest.approx(1000 / found[0]["tpot_ms"])
    kinds = [
        message["event"]["type"] if message["type"] == "event" else ""
        for message in play.messages.received
    ]
    last = kinds[: -kinds[::-1].index("accepted")]
    assert last[-8:].count("accepted") > 1, "the last eight were asked together"


def test_a_slot_has_its_next_text_at_once_or_when_the_batch_has_ended(
    page: Page, site: Callable[..., Site]
) -> None:
    play = open_page(page, site(delay=0.004))
    look = run(play, "Batching")
    found: dict[str, list[dict[str, float]]] = {"static": [], "continuous": []}
    for row in look.csv():
        found[row.pop("batching")].append({name: float(value) for name, value in row.items()})
    lengths = [request["params"]["max_tokens"] for request in asked(play)]
    for rows in found.values():
        rows.sort(key=lambda row: row["text"])
        assert [row["tokens"] for row in rows] == lengths[:8] == lengths[8:]
    static, continuous = found.values()
    slots = int(max(row["slot"] for row in static))
    assert slots == min(4, play.messages.last("hello")["limits"]["active"])
    for first in range(slots, 8, slots):
        ended = max(row["to, ms"] for row in static[first - slots : first])
        assert all(row["from, ms"] >= ended for row in static[first : first + slots])
    for row in continuous[slots:]:
        before = [
            one for one in continuous if one["slot"] == row["slot"] and one["text"] < row["text"]
        ]
        assert row["from, ms"] >= max(one["to, ms"] for one in before)
    begun = continuous[slots]["from, ms"]
    assert any(row["from, ms"] < begun < row["to, ms"] for row in continuous), "beside longer ones"
    expect(look.panel.get_by_role("status").last).to_contain_text("in static batches")
    assert violations(page) == []


WINDOW = 16
VARIANTS: dict[str, tuple[str, int, dict[str, dict[str, Any]]]] = {
    "bits": (
        "K and V bits",
        0,
        {"K8 V4": {"keys": "q8", "values": "q4"}, "K4 V8": {"keys": "q4", "values": "q8"}},
    ),
    "windows": ("Window", 0, {"window 32": {"window": 32}, "window 8": {"window": 8}}),
    "own window": ("Window", WINDOW, {"no window": {"window": 0}, "window 8": {"window": 8}}),
}
"""Experiment, window of the model (0: none), and what is asked for each variant."""


@pytest.mark.quick
@pytest.mark.parametrize(("name", "window", "variants"), VARIANTS.values(), ids=VARIANTS)
def test_a_text_is_compared_with_itself_piece_by_piece(
    page: Page,
    site: Callable[..., Site],
    name: str,
    window: int,
    variants: dict[str, dict[str, Any]],
) -> None:
    """The text is that of the last answer; all numbers are sums or rows of the engine's answers."""
    options = FakeOptions(
        delay=0.001, kv_groups=(KvGroupInfo(n_layers=8, window=window),) if window else ()
    )
    play = open_page(page, site(delay=0.001, kv_groups=options.kv_groups))
    play.write("A question that is long enough for a prompt of its own", n=90)
    ids = [token["id"] for token in play.messages.events("accepted")[0]["prompt"]]
    ids = [*ids, *(token["id"] for token in play.messages.events("token"))][: 64 + window]
    look = run(play, name)
    rows, info = look.csv(), FakeEngine(options).info
    assert [int(row["token"]) for row in rows] == list(range(1, 65 + window))
    for variant, change in variants.items():
        gained = np.zeros(len(ids))
        for first in range(0, len(ids), 16):
            part = ids[: first + 16]
            answer = fake_answer(Divergence(ids=part, first=first, **change), info)
            mine = rows[first : first + 16]
            for column, values in (
                (f"KL, {variant}", answer["kl"]),
                (f"moved %, {variant}", 100 * answer["moved"]),
                *([(f"blocks, {variant}", answer["blocks"][1])] if "window" in change else []),
            ):
                got = [float(row[column]) for row in mine]
                np.testing.assert_allclose(got, values, rtol=1e-4, atol=1e-7)
            gained[: len(part)] += np.diff(answer["received"], axis=0)[0]
        got = [float(row[f"gained, {variant}"]) for row in rows]
        np.testing.assert_allclose(got, gained, rtol=1e-3, atol=1e-4)
    expect(look.panel.get_by_role("status").last).to_contain_text("nats on average")
    assert violations(page) == []


def test_a_text_that_another_model_wrote_is_not_compared(
    page: Page, site: Callable[..., Site]
) -> None:
    play = open_page(page, site(delay=0.001))
    play.write("A question that is long enough for a prompt of its own", n=30)
    play.load_as(name="another")
    run(play, "K and V bits")
    (first, *_) = [m["question"] for m in play.messages.sent if m["type"] == "inspect"]
    prompt = [token["id"] for token in play.messages.events("accepted")[0]["prompt"]]
    assert first["ids"] != prompt[: len(first["ids"])]


NEEDLE = "The keeper of the old mill is called Rosalind. "
ORDER = [0, 100, 50, 25, 75, 12.5, 87.5, 37.5, 62.5]
MEASURED_MS = 240_000


def test_a_needle_is_found_as_pytorch_finds_it(page: Page, bundled: Site) -> None:
    """The log-probability of the answer, with the sentence at each place and without it."""
    play = Playground(page, bundled).open()
    look = begin(play, "Lost in the middle")
    again = look.panel.get_by_role("button", name="Run again")
    expect(again).to_be_visible(timeout=MEASURED_MS)
    rows = {float(row["place, %"]): row for row in look.csv()}
    assert list(rows) == sorted(ORDER)
    asked = [m["question"] for m in play.messages.sent if m["type"] == "inspect"]
    assert len(asked) == 1 + len(ORDER)
    model = AutoModelForCausalLM.from_pretrained(tale.model_dir(), dtype=torch.float32).eval()
    tokenizer = bundled.engine.tokenizer

    def logprob(question: dict[str, Any]) -> float:
        ids = torch.tensor([question["ids"]])
        answer = tokenizer.decode(question["ids"][question["first"] + 1 :])
        assert answer == " Rosalind"
        with torch.no_grad():
            found = model(ids).logits[0, :-1].log_softmax(-1)
        return float(found.gather(1, ids[0, 1:, None])[question["first"] :].sum())

    without, *placed = asked
    assert NEEDLE not in tokenizer.decode(without["ids"])
    alone = logprob(without)
    texts = [tokenizer.decode(question["ids"]) for question in placed]
    before = [text.index(NEEDLE) for text in texts]
    assert [ORDER[i] for i in np.argsort(before)] == sorted(ORDER)
    assert len({text.replace(NEEDLE, "") for text in texts}) == 1, "only its place changes"
    for place, question in zip(ORDER, placed, strict=True):
        row, wanted = rows[place], logprob(question)
        assert float(row["log-probability"]) == pytest.approx(wanted, abs=0.05)
        assert float(row["loss, nats"]) == -float(row["log-probability"])
        assert float(row["probability"]) == pytest.approx(np.exp(float(row["log-probability"])))
        assert float(row["loss without it, nats"]) == pytest.approx(-alone, abs=0.05)
    expect(look.panel.get_by_role("status").last).to_contain_text("The answer is likeliest")
    assert violations(page) == []


def test_on_a_phone_the_choice_scrolls_to_the_last_experiment(
    page: Page, site: Callable[..., Site]
) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    look = open_page(page, site()).look.open("lab")
    widths = "(node) => node.scrollWidth - node.clientWidth"
    assert look.panel.locator(".instrument.lab").evaluate(widths) == 0
    assert look.panel.locator(".lb-bar > .seg").evaluate(widths) > 0
    last = look.panel.get_by_role("radio", name="Lost in the middle", exact=True)
    last.check()
    box = last.bounding_box()
    assert box is not None
    assert box["x"] + box["width"] <= 360


def test_a_question_of_an_experiment_is_stopped(page: Page, site: Callable[..., Site]) -> None:
    """Without an answer, the text is the lab's own."""
    play = open_page(page, site(delay=0.001, ask_seconds=0.3))
    look = begin(play, "Window")
    asked = play.messages.sent
    until(page, lambda: [m["type"] for m in asked].count("inspect") > 1, "the second question")
    look.panel.get_by_role("button", name="Stop").click()
    expect(look.panel.get_by_role("button", name="Run again")).to_be_enabled()
    n = [message["type"] for message in asked].count("inspect")
    assert len(look.csv()) == 64
    assert [message["type"] for message in asked].count("inspect") == n < 8


def test_an_experiment_is_stopped_by_its_button_and_by_closing_the_panel(
    page: Page, site: Callable[..., Site]
) -> None:
    play = open_page(page, site(delay=0.02))
    look = begin(play, "KV cache")
    until(page, lambda: play.messages.events("token"), "the first token")
    look.panel.get_by_role("button", name="Stop").click()
    expect(look.panel.get_by_role("button", name="Run", exact=True)).to_be_enabled()
    until(page, lambda: play.messages.events("done"), "the end of the run")
    assert [done["reason"] for done in play.messages.events("done")] == ["cancelled"]
    assert len(asked(play)) == 1
    look.panel.get_by_role("button", name="Run", exact=True).click()
    until(page, lambda: len(asked(play)) == 2, "another run")
    look.open("schedule")
    until(page, lambda: play.messages.events("token")[3:], "more tokens beside another instrument")
    page.keyboard.press("Escape")
    expect(look.panel).to_be_hidden()
    until(page, lambda: len(play.messages.events("done")) == 2, "the end of that run")
    assert play.messages.events("done")[1]["reason"] == "cancelled"
    assert len(asked(play)) == 2
