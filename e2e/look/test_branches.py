"""The tree of an answer's versions, and the likeliest ways to go on."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

from e2e.bundled import ask_engine
from e2e.chat.branching import force, look_at, other_than_drawn, sent, wrote
from e2e.look.panel import LookPanel
from e2e.net.message_log import MessageLog
from e2e.playground import Playground
from e2e.site import Site
from e2e.waiting import until
from gpu.inspection.requests import Beam, Losses
from tests.app import fake_inspection
from tests.app.fake_options import info_of
from tests.app.fake_tokenizer import FakeTokenizer

N = 40


def branched(page: Page, here: Site) -> tuple[Playground, LookPanel, list[dict[str, Any]]]:
    """Three versions: the second parts from the first at token 11, the third from that at 31. The
    tokens that were drawn for each."""
    play, messages, first = wrote(page, here, N)
    force(play, 10, other_than_drawn(first[10]))
    play.wait_tokens(N + 11)
    play.wait_done()
    second = messages.events("token")[N:]
    force(play, 30, other_than_drawn(second[19]))
    play.wait_tokens(N + 31)
    play.wait_done()
    return play, play.look, messages.events("token")


def beam_mode(look: LookPanel) -> None:
    look.panel.get_by_text("Beam search", exact=True).click()


def rows(look: LookPanel) -> Locator:
    return look.panel.locator(".br-rows button")


def number(text: str) -> float:
    return float(text.replace("−", "-").replace(",", ""))


def losses_of(here: Site, message: dict[str, Any]) -> float:
    """Return the log-probability of the token that a message of the page puts in."""
    question = Losses(message["ids"], top=20, first=len(message["ids"]) - 2)
    return float(fake_inspection.answer(question, info_of(here.options))["logprob"][0])


def test_every_version_has_the_likelihood_of_its_tokens(
    page: Page, site: Callable[..., Site]
) -> None:
    here = site()
    play, messages, first = wrote(page, here, N)
    force(play, 10, other_than_drawn(first[10]))
    play.wait_tokens(N + 11)
    play.wait_done()
    look = play.look.open("branches")
    table = look.csv()
    assert [row["which"] for row in table] == ["version 1", "version 2"]
    drawn = messages.events("token")[N:]
    judged = losses_of(here, sent(messages)[-1])
    lead = [token["logprob"] for token in first[:10]]
    wanted = [
        [token["logprob"] for token in first],
        [*lead, judged, *(token["logprob"] for token in drawn)],
    ]
    for row, logprobs in zip(table, wanted, strict=True):
        assert int(row["tokens"]) == len(logprobs)
        assert float(row["log p"]) == pytest.approx(sum(logprobs), abs=1e-5)
        assert float(row["log p per token"]) == pytest.approx(sum(logprobs) / len(logprobs))
    for row, p in zip(table, (first[10]["logprob"], judged), strict=True):
        assert int(row["at token"]) == 11
        assert float(row["its p"]) == pytest.approx(math.exp(p))
    assert [row["branches from"] for row in table] == ["", "version 1"]
    assert table[1]["text"] == play.text()
    for button, row in zip(rows(look).all(), table, strict=True):
        total, mean, n = button.locator(".n").all_inner_texts()
        assert number(total) == pytest.approx(float(row["log p"]), abs=0.006)
        assert number(mean) == pytest.approx(float(row["log p per token"]), abs=0.0006)
        assert n == row["tokens"]


def test_the_tree_writes_once_what_is_shared(page: Page, site: Callable[..., Site]) -> None:
    _, look, _ = branched(page, site())
    look.open("branches")
    expect(look.panel.locator(".br-summary")).to_have_text(
        "3 versions; all share their first 10 tokens."
    )
    table = look.csv()
    assert [(row["branches from"], row["at token"]) for row in table] == [
        ("", "11"),
        ("version 1", "31"),
        ("version 2", "31"),
    ]
    expect(rows(look)).to_have_count(3)
    expect(look.panel.locator(".br-rows [aria-current]")).to_have_count(1)
    expect(look.panel.locator(".br-rows li").nth(2)).to_have_class(re.compile(r"\bon\b"))


def test_a_press_shows_a_version(page: Page, site: Callable[..., Site]) -> None:
    play, look, _ = branched(page, site())
    text = play.text()
    look.open("branches")
    rows(look).first.click()
    expect(page.locator("#version")).to_have_text("1/3")
    expect(play.core).to_have_attribute("aria-valuemax", str(N))
    expect(look.panel.locator(".br-rows li").first).to_have_class(re.compile(r"\bon\b"))
    rows(look).nth(2).focus()
    expect(rows(look).nth(2)).to_contain_text("show this version")
    page.keyboard.press("ArrowUp")
    expect(rows(look).nth(1)).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#version")).to_have_text("2/3")
    page.keyboard.press("ArrowLeft")
    expect(play.core).to_have_attribute("aria-valuenow", str(N + 10))
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    expect(page.locator("#version")).to_have_text("3/3")
    canvas = look.panel.locator(".br-plot canvas")
    canvas.click(position={"x": 300, "y": 20})
    expect(page.locator("#version")).to_have_text("1/3")
    page.keyboard.press("Escape")
    for version in ("2/3", "3/3"):
        page.get_by_role("button", name="Next version").click()
        expect(page.locator("#version")).to_have_text(version)
    assert play.text() == text


@pytest.mark.slow
def test_what_is_pointed_at_in_the_tree_is_the_cores_focus(
    page: Page, site: Callable[..., Site]
) -> None:
    play, look, _ = branched(page, site())
    look.open("branches")
    canvas = look.panel.locator(".br-plot canvas")
    box = canvas.bounding_box()
    assert box is not None
    left = 88
    each = (box["width"] - left - 12) / (N + 31)
    canvas.hover(position={"x": left + 40.5 * each, "y": 2.5 * 42})
    expect(play.core).to_have_attribute("aria-valuenow", "41")
    canvas.hover(position={"x": left + 20.5 * each, "y": 1.5 * 42})
    expect(play.core).to_have_attribute("aria-valuenow", "21")
    canvas.hover(position={"x": left + 20.5 * each, "y": 0.5 * 42})
    expect(play.core).to_have_attribute("aria-valuenow", str(N + 31))


@pytest.mark.slow
def test_versions_wait_until_the_writing_ends(page: Page, site: Callable[..., Site]) -> None:
    play = Playground(page, site(delay=0.1)).open()
    play.set(max_tokens=30, seed=3)
    play.ask()
    look = play.look.open("branches")
    expect(rows(look)).to_have_count(1)
    expect(rows(look).first).to_have_attribute("aria-disabled", "true")
    beam_mode(look)
    says = look.panel.locator(".br-summary")
    expect(says).to_contain_text("Generating. Select a token")
    expect(rows(look)).to_have_count(0)
    play.wait_done()
    expect(says).to_contain_text("In place of token 30")
    expect(rows(look)).to_have_count(5)


# ---- the beam --------------------------------------------------------------------------------


def beams(messages: MessageLog) -> list[dict[str, Any]]:
    asked = [message["question"] for message in sent(messages, "inspect")]
    return [question for question in asked if question["kind"] == "beam"]


@pytest.mark.quick
def test_the_beam_is_the_engines_and_can_be_written(page: Page, site: Callable[..., Site]) -> None:
    here = site()
    play, messages, tokens = wrote(page, here, N)
    look_at(play, 12)
    look = play.look.open("branches")
    beam_mode(look)
    expect(rows(look)).to_have_count(5)
    for name, value in (("beams", 3), ("tokens each", 6)):
        field = look.panel.get_by_label(name)
        field.fill(str(value))
        field.press("Enter")
    expect(rows(look)).to_have_count(4)
    until(page, lambda: beams(messages)[-1]["depth"] == 6, "the question with both numbers")
    expect(look.panel).not_to_have_attribute("aria-busy", "true")
    prompt = [token["id"] for token in messages.events("accepted")[0]["prompt"]]
    ids = prompt + [token["id"] for token in tokens[:12]]
    wanted = fake_inspection.answer(Beam(ids, width=3, depth=6), info_of(here.options))
    table = look.csv()
    assert [row["which"] for row in table] == ["1.", "2.", "3.", "generated"]
    pieces = FakeTokenizer().piece
    for i, row in enumerate(table[:3]):
        n = int(wanted["lengths"][i])
        assert row["text"] == "".join(pieces(int(id)) for id in wanted["ids"][i, :n])
        assert int(row["tokens"]) == n
        assert float(row["log p"]) == pytest.approx(float(wanted["logprobs"][i].sum()), abs=1e-5)
    assert table[3]["text"] == "".join(token["text"] for token in tokens[12:18])
    rows(look).first.hover()
    expect(look.panel.locator(".br-rows .hot")).to_contain_text("use this instead")
    rows(look).first.click()
    expect(page.locator("#version")).to_have_text("2/2")
    play.wait_done()
    message = sent(messages)[-1]
    n = int(wanted["lengths"][0])
    assert message["ids"] == ids + [int(id) for id in wanted["ids"][0, :n]]
    assert (message["written"], message["params"]["first_index"]) == (12 + n, 12 + n)
    expect(look.panel.get_by_role("radio", name="Versions")).to_be_checked()
    expect(rows(look)).to_have_count(2)


def test_the_beam_follows_the_focus_and_says_where_there_is_none(
    page: Page, site: Callable[..., Site]
) -> None:
    play, messages, _ = wrote(page, site(), N)
    look = play.look.open("branches")
    beam_mode(look)
    says = look.panel.locator(".br-summary")
    expect(says).to_contain_text(f"In place of token {N}")
    play.core.focus()
    page.keyboard.press("Home")
    expect(says).to_contain_text("In place of token 1,")
    page.keyboard.press("ArrowLeft")
    expect(says).to_contain_text("Select a generated token")
    page.keyboard.press("ArrowRight")
    expect(says).to_contain_text("In place of token 1,")
    asked = beams(messages)
    assert len({str(question) for question in asked}) == len(asked), "none is asked twice"
    look.panel.get_by_label("length-normalised").check()
    until(
        page,
        lambda: sent(messages, "inspect")[-1]["question"]["length_penalty"] == 1,
        "the beam that is length-normalised",
    )
    expect(look.source).to_contain_text("4 beams over 8 tokens")


def test_a_beam_at_the_end_of_the_context_is_as_deep_as_fits(
    page: Page, own_site: Callable[..., Site]
) -> None:
    play, messages, _ = wrote(page, own_site(context=64), 40, max_tokens=60)
    play.wait_done()
    look = play.look.open("branches")
    beam_mode(look)
    question = until(page, lambda: beams(messages), "a question for a beam")[-1]
    assert question["depth"] == 64 - len(question["ids"]) < 8


def test_a_phone_scrolls_the_words_beside_their_figures(
    page: Page, site: Callable[..., Site]
) -> None:
    page.set_viewport_size({"width": 360, "height": 640})
    play = Playground(page, site()).open()
    play.ask()
    play.wait_tokens(20)
    play.stop.click()
    play.wait_done()
    look = play.look.open("branches")
    beam_mode(look)
    expect(rows(look)).to_have_count(5)
    plot = look.panel.locator(".br-plot")
    assert plot.evaluate("(node) => node.scrollWidth > node.clientWidth")
    expect(rows(look).first.locator(".n").first).to_be_visible()
    expect(rows(look).first.locator(".n").nth(1)).to_be_hidden()
    assert play.overflow() <= 0
    rows(look).first.tap() if page.evaluate("'ontouchstart' in window") else rows(
        look
    ).first.click()
    expect(page.locator("#version")).to_have_text("2/2")


def test_on_the_bundled_model_the_numbers_are_the_engines_own(page: Page, bundled: Site) -> None:
    """The probability of what is put in is the one its row had, nearly nothing is computed again,
    and the token that was drawn anyway gives the very same text."""
    here = bundled
    settings = {"temperature": "1", "top_k": 0, "top_p": 1, "min_p": 0, "repetition_penalty": 1}
    play, messages, tokens = wrote(page, here, N, **settings)
    at = next(i for i, t in enumerate(tokens) if i > 5 and t["candidates"][1]["before"] > 0.1)
    other = next(c for c in tokens[at]["candidates"] if c["id"] != tokens[at]["id"])
    force(play, at, other)
    play.wait_tokens(at + 1 + N)
    play.wait_done()
    prefill = messages.events("prefill")[-1]
    assert prefill["reused"] == prefill["total"] - 1
    look = play.look.open("branches")
    row = look.csv()[1]
    assert float(row["its p"]) == pytest.approx(other["before"], rel=1e-3)
    ids = sent(messages)[-1]["ids"] + [t["id"] for t in messages.events("token")[N:]]
    n = int(row["tokens"])
    judged = ask_engine(here, Losses(ids, top=1, first=len(ids) - n - 1))
    total = float(judged["logprob"].astype(np.float64).sum())
    assert float(row["log p"]) == pytest.approx(total, abs=1e-3)
    page.keyboard.press("Escape")
    branch = [t["id"] for t in messages.events("token")[N:]]
    look_at(play, at + 7)
    page.locator(".cands .pick-row button").click()
    expect(page.locator("#version")).to_have_text("3/3")
    play.wait_tokens(at + 8 + N)
    play.wait_done()
    again = [t["id"] for t in messages.events("token")[2 * N :]]
    n_same = N - 7  # the branch drew its first token at `at + 1`, this one at `at + 8`
    assert again[:n_same] == branch[7:]
    assert play.numbers() == list(range(at + 8 + N))
