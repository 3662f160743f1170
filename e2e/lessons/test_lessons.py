"""Lessons on the bundled model: the right answer of each is what the engine measures."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from e2e.bundled import bundled_site
from e2e.chat.answer_options import AnswerOptions
from e2e.look.test_looks import open_page, violations
from e2e.playground import Playground
from e2e.site import Site
from e2e.tour.figures import Run
from e2e.waiting import until
from gpu.inspection.requests import ForwardPass, LogitLens, StepPlan, Waterfall
from gpu.sampling_params import LIVE, SamplingParams

PINNED = "async () => (await import('/static/js/view.js')).view.pinned"
WORD = "internationalisation"
LOOK_AT_THE_TOKEN_BEFORE = {"attention", "kv-cache", "decoder"}
"""Lessons whose first step focuses the token that chose the followed one."""


@pytest.fixture(scope="module")
def here() -> Iterator[Site]:
    with bundled_site() as site:
        yield site


class Lesson:
    """The card of a lesson that was opened by its address."""

    def __init__(self, page: Page, site: Site, name: str) -> None:
        self.page = page
        self.play = Playground(page, site)
        page.goto(f"{site.url}#lesson={name}")
        self.card = page.get_by_test_id("tour")
        self.answer = self.card.get_by_label("Your answer")
        self.verdict = page.locator("#tour-verdict")

    def wait(self, step: int) -> int:
        """Wait until a step, from 1, has said what it has to say; return how many there are."""
        count = self.page.locator("#tour-count")
        expect(count).to_contain_text(f"{step} / ", timeout=30_000)
        body = self.page.locator("#tour-body")
        expect(body).to_have_attribute("aria-busy", "false", timeout=30_000)
        expect(self.play.tour.text).not_to_contain_text("could not be measured")
        return int(count.inner_text().split("/")[1])

    def walk(self) -> None:
        """Go through all steps, to the question."""
        n = self.wait(1)
        assert 3 <= n <= 6
        for step in range(1, n + 1):
            self.wait(step)
            expect(self.answer).to_be_visible(visible=step == n)
            self.play.tour.check_place()
            if step < n:
                self.card.get_by_role("button", name="Next").click()

    def check(self, text: str) -> None:
        self.answer.fill(text)
        self.card.get_by_role("button", name="Check").click()


# ---- what the engine measures, without the page -----------------------------------------------


def of_tokens(run: Run) -> float:
    return len(run.site.engine.tokenizer.encode(WORD))


def of_vectors(run: Run) -> float:
    answer = run.ask(ForwardPass(run.ids[: run.row + 1], run.row, 0))
    return float(answer["embedding"].max())


def of_attention(run: Run) -> float:
    return 100 * float(run.attention(run.row)[:, :, 0].max())


def of_layers(run: Run) -> float:
    lens = run.ask(LogitLens(run.ids[: run.row + 1], run.row, run.token["id"]))
    return int(lens["rank"][1]) + 1


def of_next_token(run: Run) -> float:
    params = {name: run.accepted["params"][name] for name in LIVE} | {
        "temperature": 1.0,
        "top_p": 0.5,
    }
    sampling = SamplingParams(**params, seed=run.accepted["params"]["seed"])
    answer = run.ask(Waterfall(run.ids[: run.row + 1], run.row, sampling, run.index, top=20))
    return answer.info["stages"][-1]["n_kept"]


def of_first_token(run: Run) -> float:
    timings = run.messages.events("done")[-1]["timings"]
    return 1000 * timings["prompt_n"] / timings["prompt_ms"]


def of_kv_cache(run: Run) -> float:
    limits = run.hello["limits"]
    return 1000 * limits["kv_block_bytes"] / limits["block_tokens"] / 1e6


def of_speed(run: Run) -> float:
    return 20 * run.ask(StepPlan(1, context=run.row)).info["n_bytes"] / 1e9


def of_memory(run: Run) -> float:
    return 8 * run.hello["memory"]["weights"] / run.hello["model"]["parameters"]


def of_decoder(run: Run) -> float:
    return sum(np.count_nonzero(run.attention(at)[0, 0] >= 0) for at in range(run.row + 1))


ANSWERS: dict[str, Callable[[Run], float]] = {
    "tokens": of_tokens,
    "vectors": of_vectors,
    "attention": of_attention,
    "layers": of_layers,
    "next-token": of_next_token,
    "first-token": of_first_token,
    "kv-cache": of_kv_cache,
    "speed": of_speed,
    "memory": of_memory,
    "decoder": of_decoder,
}


def followed(lesson: Lesson, site: Site, name: str) -> Run:
    """Return the run and its followed token at the first step, before a later one writes more."""
    lesson.wait(1)
    index = lesson.page.evaluate(PINNED) + (name in LOOK_AT_THE_TOKEN_BEFORE)
    run = Run(site, lesson.play.messages, lesson.page, "", index)
    label = run.label(run.token["id"])
    assert lesson.page.locator("#tour-word").inner_text() == f"“{label}”"
    assert run.accepted["prompt"]
    return run


@pytest.mark.parametrize("name", ANSWERS)
def test_it_is_walked_and_its_answer_is_what_the_engine_measured(
    page: Page, here: Site, name: str
) -> None:
    lesson = Lesson(page, here, name)
    run = followed(lesson, here, name)
    lesson.walk()
    lesson.check("-1")
    expect(lesson.verdict).to_contain_text("Not -1. ")
    lesson.check(f"{ANSWERS[name](run):.4g}")
    expect(lesson.verdict).to_contain_text("Right: ")


def test_the_tokens_of_the_lesson_are_counted_where_it_says(page: Page, here: Site) -> None:
    """In a chat, the text of the prompt is that of the whole conversation."""
    lesson = Lesson(page, here, "tokens")
    lesson.walk()
    look = lesson.play.look
    look.panel.get_by_role("textbox", name="Word").fill(WORD)
    n = len(here.engine.tokenizer.encode(WORD))
    counted = look.panel.get_by_text(re.compile(rf"^{n} tokens after \d+ merges?\.$"))
    expect(counted).to_be_visible()
    lesson.check(str(n))
    expect(lesson.verdict).to_contain_text("Right: ")


def test_the_frame_of_a_prompt_is_that_of_its_run_with_its_tools(page: Page, here: Site) -> None:
    play = Playground(page, here).open()
    options = AnswerOptions(play)
    options.open().check("Clock")
    options.close()
    lesson = Lesson(page, here, "tokens")
    lesson.wait(1)
    lesson.card.get_by_role("button", name="Next").click()
    lesson.wait(2)
    n = len(play.messages.events("accepted")[-1]["prompt"])
    expect(lesson.play.tour.text).to_contain_text(f"Of these {n:,}, ")


def test_the_menu_says_which_were_finished_and_offers_the_next(page: Page, here: Site) -> None:
    lesson = Lesson(page, here, "vectors")
    for step in range(1, lesson.wait(1)):
        lesson.wait(step)
        page.keyboard.press("ArrowRight")
    lesson.check("many")
    expect(lesson.verdict).to_have_text("Type a number, such as 12 or 3.5.")
    lesson.check("1000")
    lesson.card.get_by_role("button", name="Show the answer").click()
    expect(lesson.verdict).to_contain_text("Measured: ")
    expect(lesson.answer).to_be_focused()
    assert violations(page) == []
    completion = page.locator("[name=mode][value=completion]")
    expect(completion).to_be_checked()
    lesson.card.get_by_role("button", name="Done").click()
    expect(completion).not_to_be_checked()
    menu = page.get_by_role("dialog", name="Lessons")
    expect(menu.locator("li.done a")).to_have_text("How does text become numbers?")
    expect(menu.get_by_role("link", name="What is a token?")).to_be_focused()
    assert violations(page) == []
    page.keyboard.press("Enter")
    expect(lesson.card).to_contain_text("What is a token?")
    until(page, lambda: page.evaluate("location.hash") == "#lesson=tokens", "its own address")
    page.keyboard.press("Escape")
    expect(lesson.card).to_be_hidden()
    until(page, lambda: "lesson" not in page.evaluate("location.hash"), "the address of the page")


def test_a_text_on_the_page_is_kept_when_a_lesson_begins(
    page: Page, site: Callable[..., Site]
) -> None:
    play = open_page(page, site(delay=0.05))
    play.set(max_tokens=600)
    play.ask("Mine")
    play.wait_tokens(3)
    page.locator("#help-open").click()
    page.get_by_role("dialog", name="Reading the page").get_by_text("Lessons").click()
    page.get_by_role("link", name="What limits the speed?").click()
    expect(play.tour.text).to_contain_text("The lesson starts when the answer is complete.")
    play.stop.click()
    expect(page.locator("#tour-lesson")).to_have_text("What limits the speed?")
    expect(page.locator("#tour-count")).to_contain_text("1 / ")
    page.keyboard.press("Escape")
    page.keyboard.press("c")
    expect(page.get_by_role("dialog", name="Conversations")).to_contain_text("Mine")


def test_an_address_of_no_lesson_is_said(page: Page, site: Callable[..., Site]) -> None:
    page.goto(f"{site().url}#lesson=nonsense")
    expect(page.get_by_test_id("notice")).to_contain_text("It names a lesson that this page does")


@pytest.mark.parametrize(
    ("typed", "number"),
    [
        ("12", 12),
        ("1,024", 1024),
        ("1,024.5 tokens", 1024.5),
        ("12,5", 12.5),
        (" −3 ", None),
        ("-3", -3),
        ("38.4 %", 38.4),
        ("≈ 7", 7),
        ("", None),
        ("12.5.1", None),
        ("twelve", None),
        ("12,34,5", None),
    ],
)
def test_numbers_are_read_as_people_write_them(
    call: Callable[..., Any], typed: str, number: float | None
) -> None:
    assert call("tour/exercise", "readNumber", typed) == number
