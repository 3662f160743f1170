"""A chat that outgrows the context goes on with a summary of its oldest turns by the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Locator, Page, expect

from app.prompt.prompts import prompt_ids
from app.protocol.messages import Message
from e2e.bundled import engine_tokens
from e2e.chat.test_attachments import attach, chips
from e2e.look.test_looks import open_page, violations
from e2e.playground import Playground
from e2e.replay import playback
from e2e.replay.playback import as_file
from e2e.site import Site
from e2e.waiting import until
from gpu import SamplingParams
from tests.app.fake_engine import FakeEngine
from tests.app.fake_options import FakeOptions

ONE, TWO, THREE, FOUR = (f"{name}\n{'🦊' * 70}" for name in ("One", "Two", "Three", "Four"))
"""280 tokens of the fake tokenizer each: with a context of 1,024 the fourth does not fit."""
SUMMARY = "The fox took the lamp and went into the dark."
ASKED = "Summarise our conversation so far."
EDITED = "A fox has the lamp."
ANSWER = "The light was golden."
OPTIONS: dict[str, Any] = {
    "context": 1024,
    "ends": True,
    "script": (ANSWER, ANSWER, ANSWER, SUMMARY, ANSWER),
}
LABELS = """() => {
  window.labels = new Set();
  const { prototype } = CanvasRenderingContext2D;
  const { fillText } = prototype;
  prototype.fillText = function (text, ...place) {
    window.labels.add(text);
    return fillText.call(this, text, ...place);
  };
}"""
"""Remembers what was written into canvases."""


def summaries(page: Page) -> Locator:
    return page.locator(".turn.summary")


def covered(page: Page) -> Locator:
    return page.locator(".turn[data-covered]")


def requests(play: Playground) -> list[dict[str, Any]]:
    return [message for message in play.messages.sent if message["type"] == "generate"]


def contents(request: dict[str, Any]) -> list[str]:
    return [message["content"] for message in request["messages"]]


def say(play: Playground, text: str, n_answers: int) -> None:
    """Send a message, and wait until the page has this many answers and summaries."""
    play.ask(text)
    expect(play.page.locator(".answer")).to_have_count(n_answers)
    play.wait_done()


def fill(play: Playground, max_tokens: int = 40) -> Playground:
    """Have three turns, after which a fourth does not fit, and choose to summarise."""
    play.page.locator("#capture").dispatch_event("click")  # statistics would only take time
    play.set(max_tokens=max_tokens, temperature=0, seed=1)
    play.page.get_by_label("When context is full").select_option("summarize")
    for n, text in enumerate((ONE, TWO, THREE), start=1):
        say(play, text, n)
    return play


@pytest.fixture
def full(page: Page, own_site: Callable[..., Site]) -> Playground:
    """A conversation of three turns, and a model whose next text is a summary."""
    return fill(Playground(page, own_site(delay=0.0, **OPTIONS)).open())


def test_a_summary_is_sent_in_place_of_the_oldest_turns(
    page: Page, own_site: Callable[..., Site]
) -> None:
    play = Playground(page, own_site(delay=0.01, **OPTIONS)).open()
    fill(play)
    page.evaluate(LABELS)
    page.get_by_label("Tokens a second").select_option("by step")
    play.ask(FOUR)
    expect(play.notice).to_contain_text("The model is summarising the 2 oldest turns.")
    expect(play.prompt).to_have_value(FOUR)
    expect(play.prompt).not_to_be_editable()
    expect(summaries(page).locator("summary")).to_contain_text("being written")
    expect(covered(page)).to_have_count(0)
    # Full speed, for the message after the summary, too.
    page.get_by_label("Tokens a second").select_option("full speed")
    expect(page.locator(".turn")).to_have_count(9)
    play.wait_done()
    expect(play.notice).to_be_hidden()
    expect(play.prompt).to_have_value("")

    asked, sent = requests(play)[-2:]
    read = [ONE, ANSWER, TWO, ANSWER]
    assert contents(asked)[:4] == read, "the turns themselves, which the cache has"
    assert contents(asked)[4].startswith("Summarise our conversation so far in at most 70 words")
    assert asked["params"]["max_tokens"] == 128, "an eighth of the context"
    assert contents(sent) == [ASKED, SUMMARY, THREE, ANSWER, FOUR]
    assert sent["params"]["max_tokens"] == 40

    expect(summaries(page)).to_contain_text("of the 2 oldest turns")
    expect(covered(page)).to_have_count(4)
    expect(covered(page).first.locator(".who")).to_contain_text("summarised")
    expect(covered(page).first).to_contain_text("🦊" * 70)
    expect(play.answer.locator(".dropped")).to_have_text("the oldest turns as their summary")
    prompt = [token["text"] for token in play.messages.events("accepted")[-1]["prompt"]]
    n = prompt.index("<|user|>", 1) - 2  # without the marks around it
    assert "".join(prompt[1 : n + 1]) == f"{ASKED}<|end|><|assistant|>{SUMMARY}"
    until(page, lambda: f"summary {n}" in page.evaluate("() => [...labels]"), "its label")


def test_the_files_of_a_message_that_waits_cannot_change(full: Playground) -> None:
    page = full.page
    attach(full, as_file("red", "lamp.txt"))
    expect(chips(page)).to_have_count(1)
    page.get_by_label("Tokens a second").select_option("by step")
    full.ask(FOUR)
    expect(full.stats).to_contain_text("Paused before token 1")
    for change in (
        lambda: attach(full, as_file("blue", "fox.txt")),
        page.get_by_role("button", name="Remove lamp.txt").click,
    ):
        change()
        expect(full.notice).to_contain_text("its files cannot change now")
        expect(chips(page)).to_have_count(1)
        full.notice.get_by_role("button", name="Dismiss").click()
    page.get_by_label("Tokens a second").select_option("full speed")
    expect(page.locator(".turn")).to_have_count(9)
    full.wait_done()
    assert contents(requests(full)[-1])[-1] == f"lamp.txt:\n```\nred\n```\n\n{FOUR}"
    expect(page.locator(".attached-file summary")).to_contain_text("lamp.txt")
    expect(page.locator(".said").last).to_have_text(FOUR)


def test_a_summary_that_was_paused_too_long_says_so(
    page: Page, own_site: Callable[..., Site]
) -> None:
    engine = FakeEngine(FakeOptions(delay=0.0, **OPTIONS))
    play = fill(Playground(page, own_site(load=lambda _progress: engine)).open())
    page.get_by_label("Tokens a second").select_option("by step")
    play.ask(FOUR)
    expect(play.stats).to_contain_text("Paused before token 1")
    engine.active[0].end_paused()
    expect(play.notice).to_contain_text("this one had been paused longest", ignore_case=True)
    expect(play.notice).to_contain_text("Your message is kept.")


def test_it_can_be_edited_and_removed_and_outlives_a_reload(full: Playground) -> None:
    page = full.page
    say(full, FOUR, 5)
    fold = summaries(page).locator("details")
    expect(fold).not_to_have_attribute("open", "")
    page.reload()
    full.wait_ready()
    expect(covered(page)).to_have_count(4)
    fold.locator("summary").click()
    expect(fold.locator(".answer")).to_have_text(SUMMARY)

    fold.get_by_role("button", name="Edit", exact=True).click()
    field = fold.get_by_role("textbox", name="Summary")
    expect(field).to_have_value(SUMMARY)
    field.fill(" ")
    expect(fold.get_by_role("button", name="Save")).to_be_disabled()
    field.fill("thrown away")
    field.press("Escape")
    expect(fold.locator(".answer")).to_be_visible()
    fold.get_by_role("button", name="Edit", exact=True).click()
    field.fill(EDITED)
    field.press("Enter")
    expect(fold).to_contain_text("edited")
    expect(fold.locator(".said")).to_have_text(EDITED)
    page.reload()
    full.wait_ready()
    say(full, "5", 6)
    assert contents(requests(full)[-1])[:3] == [ASKED, EDITED, THREE]

    fold.locator("summary").click()
    fold.get_by_role("button", name="Undo edit").click()
    expect(fold.locator(".answer")).to_have_text(SUMMARY)
    fold.get_by_role("button", name="Remove").click()
    expect(summaries(page)).to_have_count(0)
    expect(covered(page)).to_have_count(0)
    expect(page.locator(".turn")).to_have_count(10)
    page.reload()
    full.wait_ready()
    expect(summaries(page)).to_have_count(0)


def test_one_that_is_being_edited_outlives_what_another_tab_writes(
    full: Playground, context: BrowserContext
) -> None:
    full.ask(FOUR)
    expect(full.page.locator(".turn")).to_have_count(9)
    full.wait_done()
    full.drawer.wait_stored(1)
    other = Playground(context.new_page(), full.site).open()
    other.drawer.open("One")
    summary = summaries(other.page)
    summary.locator("summary").click()
    summary.get_by_role("button", name="Edit").click()
    summary.get_by_role("textbox", name="Summary").fill(EDITED)
    full.ask("Go on")
    expect(full.page.locator(".turn")).to_have_count(11)
    full.wait_done()
    full.drawer.entries()
    third = Playground(context.new_page(), full.site).open()  # by then the other has heard of it
    third.drawer.open("One")
    summary.get_by_role("button", name="Save").click()
    until(full.page, lambda: len(full.drawer.entries()) == 2, "a copy with the edited summary")
    assert sum(EDITED in entry["text"] for entry in full.drawer.entries()) == 1


def test_it_is_kept_saved_replayed_and_imported(full: Playground, tmp_path: Path) -> None:
    page = full.page
    say(full, FOUR, 5)
    fold = summaries(page).locator("details")
    fold.locator("summary").click()
    fold.get_by_role("button", name="Edit", exact=True).click()
    fold.get_by_role("textbox", name="Summary").fill(EDITED)
    fold.get_by_role("button", name="Save").click()
    path = full.playback.save(tmp_path / "summary.json")
    turns = playback.read(path)["turns"]
    assert [turn.get("summary") for turn in turns] == [
        *[None] * 6,
        {"covers": 2, "edited": {"version": 0, "text": EDITED}},
        *[None] * 2,
    ]

    full.playback.open(path)
    expect(covered(page)).to_have_count(4)
    expect(summaries(page)).to_contain_text("edited")
    expect(summaries(page).get_by_role("button")).to_have_count(0)
    full.playback.seek(3 * len(full.messages.events("token")) // 5)
    full.playback.seek(0)
    expect(summaries(page)).to_have_count(0)
    full.playback.leave.click()

    (entry,) = full.drawer.wait_stored(1)
    assert EDITED in entry["text"], "search finds it"
    full.start_new()
    full.drawer.show().act("Delete", "One").click()
    full.drawer.import_files(path)
    full.drawer.open("One")
    expect(covered(page)).to_have_count(4)
    say(full, "5", 6)
    assert contents(requests(full)[-1])[:3] == [ASKED, EDITED, THREE]


@pytest.mark.parametrize(
    ("summary", "said"),
    [
        ({"covers": 9}, "turns[1].summary.covers is 9, but must be a whole number from 1 to 1."),
        (
            {"covers": 1, "edited": {"version": 1, "text": "x"}},
            "turns[1].summary.edited.version is 1, but must be a whole number from 0 to 0.",
        ),
    ],
)
def test_a_file_whose_summary_stands_for_what_is_not_there_is_refused(
    page: Page, play: Callable[..., Playground], tmp_path: Path, summary: Any, said: str
) -> None:
    here = play()
    here.write("One", 3)
    content = playback.read(here.playback.save(tmp_path / "one.json"))
    content["turns"][1]["summary"] = summary
    here.playback.give(playback.as_file(content))
    expect(here.playback.error).to_contain_text(said)


def test_the_message_is_kept_if_the_summary_is_stopped(
    page: Page, site: Callable[..., Site]
) -> None:
    play = fill(Playground(page, site(delay=0.03, context=1024)).open(), max_tokens=3)
    play.prompt.fill(FOUR)
    send = page.get_by_role("button", name="Send")
    for button in (send, play.notice.get_by_role("button", name="Try again")):
        button.click()
        expect(play.notice).to_contain_text("summarising")
        play.stop.click()
        expect(play.notice).to_contain_text("It was stopped. Your message is kept.")
        expect(play.prompt).to_have_value(FOUR)
        expect(play.prompt).to_be_editable()
        expect(summaries(page)).to_have_count(1)
        expect(summaries(page)).to_contain_text("not finished, so it is not used")
        expect(covered(page)).to_have_count(0)

    play.notice.get_by_role("button", name="Drop the oldest turns").click()
    expect(page.locator(".turn")).to_have_count(8)
    expect(summaries(page)).to_have_count(0)
    play.wait_done()
    assert contents(requests(play)[-1])[-1] == FOUR


def test_the_message_is_kept_if_the_engine_is_lost(
    page: Page, own_site: Callable[..., Site]
) -> None:
    site = own_site(delay=0.01, **OPTIONS)
    play = fill(Playground(page, site).open())
    play.ask(FOUR)
    expect(play.notice).to_contain_text("summarising")
    site.engine.close()
    expect(play.prompt).to_be_editable()
    expect(play.prompt).to_have_value(FOUR)
    expect(summaries(page)).to_contain_text("not finished, so it is not used")


def test_the_notice_offers_it_and_it_passes_the_checks_of_accessibility(
    page: Page, own_site: Callable[..., Site]
) -> None:
    play = fill(open_page(page, own_site(delay=0.0, **OPTIONS), color_scheme="dark"))
    page.get_by_label("When context is full").select_option("disabled")
    page.set_viewport_size({"width": 360, "height": 740})
    play.ask(FOUR)
    expect(play.notice).to_contain_text("The prompt is too long")
    play.notice.get_by_role("button", name="Summarise the oldest turns").click()
    expect(page.locator(".turn")).to_have_count(9)
    play.wait_done()
    fold = summaries(page).locator("details")
    fold.locator("summary").click()
    assert violations(page) == []
    fold.get_by_role("button", name="Edit", exact=True).click()
    assert violations(page) == []
    assert play.overflow() == 0


def test_the_model_reads_the_turns_from_the_cache_and_then_its_own_summary(
    page: Page, bundled: Site
) -> None:
    """The bundled model, whose context holds three messages of 280 tokens."""
    play = Playground(page, bundled).open()
    long = "Tell me a story about a fox who finds a lantern in the wood. " * 18
    play.page.locator("#capture").dispatch_event("click")
    play.set(max_tokens=3, temperature=0, seed=1)
    page.get_by_label("When context is full").select_option("summarize")
    for n in (1, 2, 3, 5):  # with the last one the summary is an answer, too
        say(play, f"{n} {long}", n)
    asked, sent = requests(play)[-2:]
    hello = play.messages.last("hello")
    assert asked["params"]["max_tokens"] == hello["limits"]["context"] // 8
    written = engine_tokens(
        bundled, ids_of(bundled, asked), SamplingParams(**{**asked["params"], "stop": ()})
    )
    summary = "".join(token.text for token in written).strip()
    assert summary
    assert contents(sent)[:2] == [ASKED, summary]
    *_, before, after = play.messages.events("accepted")
    assert [token["id"] for token in after["prompt"]] == ids_of(bundled, sent)
    n_prompt = len(before["prompt"])
    read = [event for event in play.messages.events("prefill") if event["total"] == n_prompt][-1]
    assert read["total"] - read["reused"] < 100, "only the request for the summary was computed"


def ids_of(site: Site, request: dict[str, Any]) -> list[int]:
    messages = [Message(**message) for message in request["messages"]]
    return prompt_ids(site.engine.tokenizer, messages=messages)
