"""A text under teacher forcing: the engine's losses, what they add up to, and texts it refuses."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from e2e.bundled import ask_engine
from e2e.look.panel import LookPanel
from e2e.net.message_log import MessageLog
from e2e.playground import Playground
from e2e.site import Site
from e2e.waiting import TWO_FRAMES, until
from gpu import Tokenizer
from gpu.inspection.requests import Losses

ASK = "Tell me a story about a fox who finds a lantern"
TEXT = (
    "Mia was a little fox who lived in the old forest.\n\n"
    'One day she found a lantern. "Quantum café ✨," said the owl, and went home.'
)
TOP = 6


def read(look: LookPanel, text: str) -> None:
    """Type a text of one's own and wait until it was read, or refused."""
    look.panel.get_by_text("Any text", exact=True).click()
    field = look.panel.get_by_role("textbox", name="Text")
    field.fill(text)
    settle(look)


def settle(look: LookPanel) -> None:
    look.page.evaluate(TWO_FRAMES)
    expect(look.panel).not_to_have_attribute("aria-busy", "true", timeout=60_000)


def figures(look: LookPanel) -> dict[str, dict[str, str]]:
    """{column: {figure: text}} of the small table."""
    rows = look.panel.locator(".ls-figures").evaluate(
        "(table) => [...table.rows].map((row) => [...row.cells].map((c) => c.textContent))"
    )
    (_, *columns), *lines = rows
    return {
        column: {name: cells[at] for name, *cells in lines} for at, column in enumerate(columns)
    }


def number(text: str) -> float:
    return float(text.replace(",", "").replace("−", "-"))


@pytest.mark.quick
def test_a_texts_losses_are_the_engines(page: Page, bundled: Site) -> None:
    play = Playground(page, bundled).open()
    look = play.look.open("loss")
    read(look, TEXT)
    assert isinstance(bundled.engine.tokenizer, Tokenizer)
    ids = bundled.engine.tokenizer.encode(TEXT)
    answer = ask_engine(bundled, Losses(ids, TOP))
    expect(look.source).to_contain_text(f"Teacher forcing: {len(ids)} tokens read by the engine")
    first, *rows = look.csv()
    assert first["loss, nats"] == ""
    assert [int(row["id"]) for row in (first, *rows)] == ids
    for at, row in enumerate(rows):
        assert float(row["loss, nats"]) == -float(answer["logprob"][at])
        assert float(row["p"]) == pytest.approx(math.exp(float(answer["logprob"][at])))
        assert int(row["rank"]) == answer["rank"][at] + 1
        assert float(row["entropy, bits"]) == float(answer["entropy"][at])
        for place in range(5):
            expected = math.exp(float(answer["top_logprobs"][at][place]))
            assert float(row[f"p {place + 1}"]) == pytest.approx(expected)
            piece = bundled.engine.tokenizer.piece(int(answer["top_ids"][at][place]))
            assert row[f"expected {place + 1}"] == piece
    shown = figures(look)["text"]
    assert number(shown["tokens"]) == len(ids) - 1
    assert number(shown["mean loss, nats"]) == pytest.approx(answer.info["mean_loss"], abs=5e-4)
    assert number(shown["perplexity"]) == pytest.approx(answer.info["perplexity"], rel=5e-3)
    assert play.tokens.count() == 0


@pytest.mark.quick
def test_a_long_text_is_read_in_pieces(page: Page, bundled: Site) -> None:
    play = Playground(page, bundled).open()
    text = TEXT * 4
    read(look := play.look.open("loss"), text)
    rows = look.csv()
    ids = [int(row["id"]) for row in rows]
    assert len(ids) > 2 * 64
    asked = inspections(play.messages)
    assert [one["first"] for one in asked] == list(range(0, len(ids) - 1, 64))
    whole = ask_engine(bundled, Losses(ids, TOP))
    for name, column in (("loss, nats", -whole["logprob"]), ("entropy, bits", whole["entropy"])):
        assert [float(row[name]) for row in rows[1:]] == pytest.approx(column.tolist(), abs=1e-4)
    assert [int(row["rank"]) - 1 for row in rows[1:]] == whole["rank"].tolist()
    expect(look.source).to_contain_text(f"{len(ids)} tokens read by the engine in")
    expect(look.panel.get_by_role("progressbar", name="Tokens read")).to_be_hidden()


def test_reading_a_long_text_may_be_stopped(page: Page, own_site: Callable[..., Site]) -> None:
    play = Playground(page, own_site(ask_seconds=0.7)).open()
    look = play.look.open("loss")
    look.panel.get_by_role("textbox", name="Text").fill("the fox and the lamp " * 40)
    bar = look.panel.get_by_role("progressbar", name="Tokens read")
    expect(bar).to_be_visible()
    expect(look.panel.locator(".ls-wait .sub")).to_have_text(re.compile(r"^\d+ of \d+ tokens$"))
    look.panel.get_by_role("button", name="Stop", exact=True).click()
    problem = look.panel.locator(".ls-problem")
    expect(problem).to_have_text(re.compile(r"^Stopped after \d+ of \d+ tokens.$"))
    n, total = map(int, re.findall(r"\d+", problem.inner_text()))
    assert n % 64 == 0
    assert 0 < n < total
    expect(bar).to_be_hidden()
    look.panel.get_by_role("button", name="Continue", exact=True).click()
    expect(look.source).to_contain_text("Teacher forcing", timeout=15_000)
    asked = [one["first"] for one in inspections(play.messages)]
    assert asked == list(range(0, asked[-1] + 1, 64)), "nothing is asked twice"
    expect(look.panel.get_by_role("button", name="Continue", exact=True)).to_be_hidden()


def test_bits_are_shared_out_over_bytes_and_characters(page: Page, bundled: Site) -> None:
    """Only judged tokens count: the bytes of the first token do not."""
    play = Playground(page, bundled).open()
    look = play.look.open("loss")
    read(look, TEXT)
    assert isinstance(bundled.engine.tokenizer, Tokenizer)
    ids = bundled.engine.tokenizer.encode(TEXT)
    judged = b"".join(bundled.engine.tokenizer.token_bytes(id) for id in ids[1:])
    bits = -float(ask_engine(bundled, Losses(ids))["logprob"].astype(np.float64).sum()) / math.log(
        2
    )
    shown = figures(look)["text"]
    assert number(shown["bits per byte"]) == pytest.approx(bits / len(judged), abs=5e-4)
    characters = len(judged.decode())
    assert characters < len(judged)
    assert number(shown["bits per character"]) == pytest.approx(bits / characters, abs=5e-4)


@pytest.mark.quick
def test_the_answers_losses_are_the_runs(page: Page, bundled: Site) -> None:
    play = Playground(page, bundled).open()
    messages = play.messages
    play.set(temperature="1.1", max_tokens=30, seed=4)
    play.ask(ASK)
    play.wait_tokens(10)
    play.wait_done()
    look = play.look.open("loss")
    settle(look)
    events = messages.events("token")
    logprobs = [event["logprob"] for event in events]
    rows = look.csv()
    for row, logprob in zip(rows[-len(events) :], logprobs, strict=True):
        assert -float(row["loss, nats"]) == pytest.approx(logprob, abs=1e-4)
    told = re.search(r"match the run within (\S+)\.$", look.source.inner_text())
    assert told is not None
    losses = [float(row["loss, nats"]) for row in rows[-len(events) :]]
    off = max(abs(a + b) for a, b in zip(losses, logprobs, strict=True))
    assert float(told[1]) == pytest.approx(off, rel=0.5)
    shown = figures(look)
    assert number(shown["answer"]["tokens"]) == len(events)
    mean = -sum(logprobs) / len(logprobs)
    assert number(shown["answer"]["mean loss, nats"]) == pytest.approx(mean, abs=1e-3)
    ids = [int(row["id"]) for row in rows]
    whole = ask_engine(bundled, Losses(ids))
    assert number(shown["all"]["mean loss, nats"]) == pytest.approx(
        whole.info["mean_loss"], abs=5e-4
    )


def test_the_gradient_is_what_training_would_move(page: Page, bundled: Site) -> None:
    """p − 1 and p, and so nothing in all; the token's own row is the one that is pushed up."""
    play = Playground(page, bundled).open()
    look = play.look.open("loss")
    read(look, TEXT)
    rows = look.csv()
    worst = max(range(1, len(rows)), key=lambda i: float(rows[i]["loss, nats"]))
    sure = min(range(1, len(rows)), key=lambda i: float(rows[i]["loss, nats"]))
    for at in (worst, sure, 3):
        look.panel.locator(f".ls-tok[data-i='{at}']").click()
        expect(look.panel.locator(".ls-one .tok-no")).to_have_text(str(at + 1))
        lines = look.panel.locator(".ls-rows").get_by_role("row")
        found = [line.locator("> *").all_inner_texts() for line in lines.all()[1:]]
        gradients = [number(line[2]) for line in found]
        assert sum(gradients) == pytest.approx(0, abs=0.005)
        p = float(rows[at]["p"])
        assert gradients[0] == pytest.approx(p - 1, abs=6e-4)
        assert all(gradient >= 0 for gradient in gradients[1:])
        assert len(found) == 7
        named = [line[0] for line in found[1:-1]]
        assert len(set(named)) == len(named)
        assert found[-1][0] == "4,090 more"


# ---- with an engine that answers at once --------------------------------------------------------


def wrote(page: Page, here: Site, n: int = 20) -> tuple[Playground, LookPanel, MessageLog]:
    play = Playground(page, here).open()
    messages = play.messages
    play.set(max_tokens=n, seed=5)
    play.ask()
    play.wait_tokens(n)
    play.wait_done()
    return play, play.look, messages


def inspections(messages: MessageLog) -> list[dict[str, Any]]:
    return [message["question"] for message in messages.sent if message["type"] == "inspect"]


@pytest.mark.slow
def test_a_run_that_writes_is_not_asked_about(page: Page, site: Callable[..., Site]) -> None:
    play = Playground(page, site(delay=0.03)).open()
    messages = play.messages
    play.set(max_tokens=120, seed=5)
    play.ask()
    play.wait_tokens(6)
    look = play.look.open("loss")
    expect(look.source).to_contain_text("log-probabilities of the run itself")
    expect(look.panel.locator(".ls-one")).to_contain_text("known once the answer is complete")
    rows = look.csv()
    assert inspections(messages) == []
    written = [row for row in rows if row["loss, nats"]]
    events = messages.events("token")
    for row, event in zip(written, events, strict=False):
        assert float(row["loss, nats"]) == -event["logprob"]
    assert list(figures(look)) == ["answer"]
    play.wait_done()
    expect(look.source).to_contain_text("Teacher forcing")
    assert {question["kind"] for question in inspections(messages)} == {"losses"}
    assert list(figures(look)) == ["all", "prompt", "answer"]
    assert figures(look)["prompt"]["bits per byte"] == "–", (
        "which of its tokens add text is unknown"
    )


def test_words_and_the_core_look_at_the_same_token(page: Page, site: Callable[..., Site]) -> None:
    play, look, messages = wrote(page, site())
    look.open("loss")
    settle(look)
    prompt = len(messages.events("accepted")[-1]["prompt"])
    words = look.panel.locator(".ls-tok")
    expect(words).to_have_count(prompt + 20)
    first = words.first.element_handle()
    words.nth(prompt + 4).hover()
    expect(page.locator("#tok-no")).to_have_text("5")
    expect(look.panel.locator(".ls-one .tok-no")).to_have_text(str(prompt + 5))
    page.mouse.move(5, 5)
    expect(page.locator("#tok-no")).to_have_text("20")
    play.core.focus()
    page.keyboard.press("Home")
    expect(look.panel.locator(".ls-tok.on")).to_have_attribute("data-i", str(prompt))
    assert len(inspections(messages)) == 1, "looking around asks nothing"
    assert first.evaluate("(node) => node.isConnected"), "and draws no word anew"


def test_the_keyboard_moves_among_words_and_the_hardest(
    page: Page, site: Callable[..., Site]
) -> None:
    play, look, messages = wrote(page, site())
    look.open("loss")
    settle(look)
    prompt = len(messages.events("accepted")[-1]["prompt"])
    reached = look.panel.locator(".ls-tok[tabindex='0']")
    expect(reached).to_have_count(1)
    reached.focus()
    page.keyboard.press("Home")
    expect(look.panel.locator(".ls-one")).to_contain_text("no context, so no loss")
    page.keyboard.press("ArrowRight")
    expect(look.panel.locator(".ls-one .tok-no")).to_have_text("2")
    expect(look.panel.locator(".ls-tok:focus")).to_have_attribute("data-i", "1")
    page.keyboard.press("End")
    expect(play.core).to_have_attribute("aria-valuenow", "20")
    rows = look.csv()
    losses = {i: float(rows[i]["loss, nats"]) for i in range(prompt, len(rows))}
    hardest = max(losses, key=lambda i: losses[i])
    first = look.panel.locator(".ls-hard button").first
    expect(first).to_contain_text(f"{losses[hardest]:.2f}")
    first.focus()
    page.keyboard.press("Enter")
    expect(look.panel.locator(".ls-one .tok-no")).to_have_text(str(hardest + 1))
    expect(look.panel.locator(".ls-tok.on")).to_be_in_viewport()


def test_a_text_is_read_again_by_the_model_that_is_loaded_then(
    page: Page, site: Callable[..., Site]
) -> None:
    play = Playground(page, site()).open()
    look = play.look.open("loss")
    read(look, "The fox found a lamp.")
    expect(look.source).to_contain_text("read by the engine")

    def n_asked() -> int:
        sent = [m["question"]["kind"] for m in play.messages.sent if m["type"] == "inspect"]
        return sent.count("losses")

    assert n_asked() == 1
    play.load_as(dtype="q8")
    until(page, lambda: n_asked() == 2, "the question to the other weights")


def test_texts_that_cannot_be_read_are_told_beside_the_field(
    page: Page, site: Callable[..., Site]
) -> None:
    here = site(context=64)
    play = Playground(page, here).open()
    messages = play.messages
    look = play.look.open("loss")
    say = look.panel.locator(".ls-problem")
    field = look.panel.get_by_role("textbox", name="Text")
    expect(look.panel.get_by_role("radio", name="This answer")).to_be_disabled()
    expect(say).to_contain_text("Type or paste a text")
    read(look, "  \n ")
    expect(say).to_contain_text("Type or paste a text")
    assert inspections(messages) == []
    read(look, "the fox " * 9_000)
    expect(say).to_contain_text("more than the 65,536 of a request. Shorten it.")
    assert [message["type"] for message in messages.sent] == []
    read(look, "the fox " * 60)
    n = len(here.engine.tokenizer.encode("the fox " * 60))
    expect(look.source).to_contain_text("64 tokens")
    expect(look.source).to_contain_text(f"The text has {n}; the rest exceeds the context.")
    expect(say).to_be_hidden()
    assert len(inspections(messages)[-1]["ids"]) == 64
    read(look, "the fox")
    n = len(here.engine.tokenizer.encode("the fox"))
    expect(look.source).to_have_text(re.compile(rf"^Teacher forcing: {n} tokens"))
    assert field.input_value() == "the fox"


def test_a_refusal_of_the_engine_leaves_the_field(
    page: Page, own_site: Callable[..., Site]
) -> None:
    here = own_site()
    play = Playground(page, here).open()
    look = play.look.open("loss")
    read(look, "the fox")
    page.evaluate(
        "async () => { const { state } = await import('/static/js/state.js');"
        " state.hello.model.vocab_size = 0; }"
    )
    read(look, "the fox and the lamp")
    expect(look.panel.locator(".ls-problem")).to_contain_text("top")
    expect(look.panel.get_by_role("textbox", name="Text")).to_be_editable()


COLOURS = """async () => {
  const words = [...document.querySelectorAll(".ls-tok:not(.unknown)")];
  const parse = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (colour) => {
    const [r, g, b] = parse(colour).map((c) => c / 255)
      .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  return words.map((word) => {
    const style = getComputedStyle(word);
    const [a, b] = [light(style.color), light(style.backgroundColor)];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  });
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_words_are_readable_on_every_tint(page: Page, bundled: Site, theme: str) -> None:
    page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
    play = Playground(page, bundled).open()
    look = play.look.open("loss")
    read(look, TEXT)
    contrasts = page.evaluate(COLOURS)
    assert len(contrasts) > 30
    assert min(contrasts) >= 4.5
    page.locator("#theme").click()
    settle(look)
    assert min(page.evaluate(COLOURS)) >= 4.5, "in the other theme"
