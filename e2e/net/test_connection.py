"""Lost lines, reloads, restarts, queues: nothing is lost and nothing comes twice."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from app.engine.backoff import RestartPolicy
from app.prompt.prompts import prompt_ids
from app.protocol.messages import Message
from e2e.chat.branching import engine_tokens
from e2e.conversations.drawer import STORAGE_OFF
from e2e.playground import Playground
from e2e.site import Site
from e2e.waiting import TIMEOUT_MS, until

LOST_LINE = "WebSocket connection to"
N = 80


def expected(site: Site, n: int) -> str:
    """Return the fake engine's text for the helper's prompt with the settings of `prepare`."""
    return "".join(
        token.text
        for token in site.reference("Tell me a story", seed=5, max_tokens=n, temperature=1.0)
    )


def prepare(play: Playground, n: int = N) -> None:
    play.set(temperature="1", top_k="0", top_p="1", min_p="0", repetition_penalty="1")
    play.set(seed=5, max_tokens=n)
    play.ask("Tell me a story")


@pytest.mark.quick
def test_a_cut_line_resumes_without_losing_or_repeating(
    page: Page, site: Callable[..., Site], allowed_console: list[str]
) -> None:
    allowed_console.append(LOST_LINE)
    here = site(delay=0.03)
    play = Playground(page, here)
    play.route_sockets()
    play.open()
    prepare(play)
    for n in (10, 25):
        play.wait_tokens(n)
        play.cut()
        expect(play.notice).to_contain_text("The server cannot be reached")
    play.wait_tokens(N)
    play.wait_done()
    expect(play.notice).to_be_hidden()
    assert play.numbers() == list(range(N))
    assert play.text() == expected(here, N)


@pytest.mark.quick
def test_a_reload_while_writing_goes_on(page: Page, site: Callable[..., Site]) -> None:
    here = site(delay=0.03)
    play = Playground(page, here).open()
    prepare(play)
    play.wait_tokens(15)
    play.prompt.fill("half a thought")
    page.reload()
    play.wait_tokens(N)
    play.wait_done()
    assert play.numbers() == list(range(N))
    assert play.text() == expected(here, N)
    expect(page.locator(".said")).to_have_text("Tell me a story")
    expect(play.prompt).to_have_value("half a thought")
    expect(page.locator("#tok-no")).to_have_text(str(N))


def test_a_reload_after_continue_brings_every_part_back(
    page: Page, site: Callable[..., Site]
) -> None:
    here = site()
    play = Playground(page, here).open()
    prepare(play, 10)
    play.wait_tokens(10)
    play.wait_done()
    play.continue_button.click()
    play.wait_tokens(20)
    play.wait_done()
    page.reload()
    play.wait_tokens(20)
    assert play.numbers() == list(range(20))
    assert play.text() == expected(here, 20)


def test_a_generation_the_server_forgot_keeps_its_text(
    page: Page, own_site: Callable[..., Site], allowed_console: list[str]
) -> None:
    allowed_console.append(LOST_LINE)
    page.add_init_script(STORAGE_OFF)
    here = own_site()
    play = Playground(page, here)
    play.route_sockets()
    play.open()
    prepare(play, 10)
    play.wait_tokens(10)
    play.wait_done()
    text = play.text()
    assert text == expected(here, 10)
    page.context.clear_cookies()  # another browser session: its generations are not ours
    page.reload()
    play.wait_ready()
    expect(play.stats).to_contain_text("only the text of this answer is left")
    assert play.text() == text
    play.cut()
    expect(page.get_by_test_id("connection")).not_to_have_text("Connected")
    play.wait_ready()
    assert play.text() == text, "once, however often it is drawn"
    play.continue_button.click()
    play.wait_tokens(10)
    play.wait_done()
    # Its ids are gone, so its text is read anew, by a run that draws from the seed's first on.
    said = [Message("user", "Tell me a story"), Message("assistant", text)]
    ids = prompt_ids(here.engine.tokenizer, messages=said, continue_final=True)
    params = {"temperature": 1.0, "seed": 5, "max_tokens": 10, "stop": []}
    rest = engine_tokens(here, {"ids": ids, "params": params})
    assert play.text() == text + "".join(token.text for token in rest)


def test_a_killed_engine_restarts_and_the_text_goes_on(
    page: Page, own_site: Callable[..., Site], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    here = own_site(process=True, delay=0.03, loads_after=gate)
    play = Playground(page, here).open(ready=False)
    expect(play.notice).to_contain_text("The model is loading")
    gate.touch()
    play.wait_ready()
    prepare(play)
    play.wait_tokens(10)
    pid = here.engine.pid  # type: ignore[attr-defined]
    assert pid is not None
    gate.unlink()
    os.kill(pid, signal.SIGKILL)
    expect(play.notice).to_contain_text("The engine is restarting")
    expect(play.notice).to_contain_text("Your text is kept")
    expect(page.get_by_role("button", name="Send")).to_be_disabled()
    n = len(play.numbers())
    assert 10 <= n < N
    assert play.text() == expected(here, n)
    gate.touch()
    play.wait_ready()
    expect(play.notice).to_contain_text("Generation was interrupted")
    play.continue_button.click()
    play.wait_tokens(N)
    expect(play.notice).to_be_hidden()
    play.wait_done()
    assert play.numbers() == list(range(N)), "what was left of its count"
    assert play.text() == expected(here, N)


def test_a_text_that_ends_with_its_server_was_interrupted(
    page: Page, own_site: Callable[..., Site]
) -> None:
    """As when the server is ended by Ctrl+C: nobody pressed Stop."""
    here = own_site(delay=0.03)
    play = Playground(page, here).open()
    prepare(play)
    play.wait_tokens(10)
    here.engine.close()
    expect(play.notice).to_contain_text("The engine was stopped. The text so far is kept")
    expect(play.stats).to_contain_text("tokens · interrupted")


def test_an_engine_that_keeps_stopping_is_tried_again_and_the_page_counts(
    page: Page, own_site: Callable[..., Site]
) -> None:
    here = own_site(process=True, delay=0.03, restart_policy=RestartPolicy(at_once=0, first=6))
    play = Playground(page, here).open()
    prepare(play)
    play.wait_tokens(5)
    os.kill(here.engine.pid, signal.SIGKILL)  # type: ignore[attr-defined]
    for seconds in (5, 2):
        expect(play.notice).to_contain_text(f"(signal SIGKILL); trying again in {seconds} s.")
    expect(play.notice).to_contain_text("Press Continue once it is ready.")
    play.wait_ready()
    play.continue_button.click()
    play.wait_tokens(10)
    play.stop.click()
    play.wait_done()


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="no process can be stopped")
def test_a_frozen_engine_is_told_on_the_page(page: Page, own_site: Callable[..., Site]) -> None:
    here = own_site(process=True, delay=0.03, load_seconds=1.0)
    play = Playground(page, here).open()
    prepare(play)
    play.wait_tokens(5)
    os.kill(here.engine.pid, signal.SIGSTOP)  # type: ignore[attr-defined]
    expect(play.notice).to_contain_text("it was frozen: no sign of life for 10 s", timeout=30_000)
    play.wait_ready()
    expect(play.notice).to_contain_text("Generation was interrupted")


def test_a_model_that_cannot_be_loaded_says_why(page: Page, own_site: Callable[..., Site]) -> None:
    here = own_site(fail="model.safetensors has 3 bytes, but its header says 4")
    play = Playground(page, here).open(ready=False)
    expect(play.notice).to_contain_text("The engine has failed", timeout=TIMEOUT_MS)
    expect(play.notice).to_contain_text("model.safetensors has 3 bytes")
    expect(page.get_by_test_id("connection")).to_have_text("Failed")


@pytest.mark.slow
def test_two_pages_write_at_once_and_the_third_waits_in_the_queue(
    page: Page, browser: Browser, own_site: Callable[..., Site]
) -> None:
    here = own_site(delay=0.03, n_slots=2)
    first = Playground(page, here).open()
    contexts = [browser.new_context() for _ in range(2)]
    second, third = (Playground(context.new_page(), here).open() for context in contexts)
    for play in (first, second, third):
        play.set(max_tokens=400)
        play.ask()
        if play is not third:
            play.wait_tokens(3)
    expect(third.stats).to_have_text("Queued, position 1")
    assert third.numbers() == []
    counts = [len(play.numbers()) for play in (first, second)]
    until(
        third.page,
        lambda: all(
            len(play.numbers()) > n for play, n in zip((first, second), counts, strict=True)
        ),
        "both to go on",
    )
    first.stop.click()
    third.wait_tokens(3)
    for play in (second, third):
        play.stop.click()
        play.wait_done()
    for context in contexts:
        context.close()


@pytest.mark.slow
def test_a_full_queue_is_told_and_the_prompt_given_back(
    page: Page, browser: Browser, own_site: Callable[..., Site]
) -> None:
    here = own_site(delay=0.05, n_slots=1, queue=0)
    context = browser.new_context()
    other = Playground(context.new_page(), here).open()
    other.set(max_tokens=400)
    other.ask()
    other.wait_tokens(2)
    play = Playground(page, here).open()
    play.ask("my careful prompt")
    expect(play.notice).to_contain_text("The queue is full")
    expect(play.prompt).to_have_value("my careful prompt")
    other.stop.click()
    other.wait_done()
    context.close()
    play.prompt.press("Enter")
    play.wait_tokens(2)
    expect(play.notice).to_be_hidden()


@pytest.mark.quick
def test_a_prompt_longer_than_the_context_is_refused_in_words(
    page: Page, own_site: Callable[..., Site]
) -> None:
    play = Playground(page, own_site(context=64)).open()
    long = "story " * 100
    play.prompt.fill(long)
    expect(page.locator("#gauge")).to_have_attribute("data-level", "full")
    play.prompt.press("Enter")
    expect(play.notice).to_contain_text("The prompt is too long")
    expect(play.prompt).to_have_value(long.strip())


def test_a_full_context_says_so(page: Page, own_site: Callable[..., Site]) -> None:
    play = Playground(page, own_site(context=64)).open()
    play.set(max_tokens=500)
    play.ask("A")
    expect(play.notice).to_contain_text("The context is full", timeout=TIMEOUT_MS)
    expect(play.continue_button).to_be_disabled()
    play.notice.get_by_role("button", name="New chat").click()
    expect(page.locator("body")).to_have_attribute("data-phase", "empty")
