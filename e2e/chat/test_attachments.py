"""Text files attached to a prompt: how they are sent, counted, kept and refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from app.prompt.prompts import prompt_ids
from app.protocol.messages import Message
from e2e.look.test_looks import open_page, violations
from e2e.playground import Playground
from e2e.replay.playback import as_file
from e2e.site import Site

NOTES = "Lamps are <b>red</b>.\nFoxes are `not`."
BLOCK = f"notes.md:\n```\n{NOTES}\n```\n\n"


def attach(play: Playground, *files: dict[str, Any]) -> None:
    play.page.locator("#attach-files").set_input_files(list(files))  # type: ignore[arg-type]


def chips(page: Page) -> Locator:
    return page.get_by_role("list", name="Attached files").get_by_role("listitem")


def last_request(play: Playground) -> dict[str, Any]:
    return [message for message in play.messages.sent if message["type"] == "generate"][-1]


def test_a_file_is_put_before_the_prompt_and_counted(
    page: Page, play: Callable[..., Playground]
) -> None:
    here = play(context=2048)
    attach(here, as_file(NOTES + "\n", "notes.md"))

    def n_tokens(content: str) -> int:
        messages = [Message("user", content)]
        return len(prompt_ids(here.site.engine.tokenizer, messages=messages))

    expect(chips(page)).to_contain_text(f"notes.md{n_tokens(BLOCK) - n_tokens('')} tokens")
    here.prompt.fill("What is red?")
    total = n_tokens(BLOCK + "What is red?")
    expect(page.get_by_test_id("count")).to_have_text(f"{total} tokens")
    here.set(max_tokens=5)
    here.ask("What is red?")
    here.wait_tokens(5)
    here.wait_done()
    assert last_request(here)["messages"] == [{"role": "user", "content": BLOCK + "What is red?"}]
    expect(chips(page)).to_have_count(0)
    expect(page.locator(".said")).to_have_text("What is red?")
    page.locator(".attached-file summary").click()
    expect(page.locator(".attached-file pre")).to_have_text(BLOCK.strip())
    assert page.locator(".log b", has_text="red").count() == 0, "its text is text"
    here.drawer.wait_stored(1)
    here.start_new()
    here.drawer.open("What is red?")
    expect(page.locator(".attached-file summary")).to_contain_text("notes.md")
    expect(page.locator(".said")).to_have_text("What is red?")


def test_files_survive_a_reload_and_a_refused_prompt_and_can_be_removed(
    page: Page, play: Callable[..., Playground]
) -> None:
    here = play(context=64)
    attach(here, as_file(NOTES, "one.txt"), as_file("x" * 100, "two.txt"))
    expect(chips(page)).to_have_count(2)
    expect(chips(page).nth(1)).to_have_attribute("data-full", "")
    here.prompt.fill("And?")
    page.reload()
    here.wait_ready()
    expect(chips(page)).to_have_count(2)
    expect(chips(page).first).to_contain_text("tokens")
    here.prompt.press("Enter")
    expect(here.notice).to_contain_text("The prompt is too long")
    expect(here.prompt).to_have_value("And?")
    expect(chips(page)).to_have_count(2)
    page.get_by_role("button", name="Remove two.txt").click()
    page.get_by_role("button", name="Remove one.txt").click()
    expect(chips(page)).to_have_count(0)


@pytest.mark.parametrize(
    ("file", "said"),
    [
        (as_file(b"\x89PNG\r\n\x1a\n\x00\x00", "photo.png"), "“photo.png” is not a text file"),
        (as_file(b"caf\xe9", "latin.txt"), "“latin.txt” is not a text file"),
        (as_file(b"a\x00b", "nul.txt"), "“nul.txt” is not a text file"),
        (as_file(" \n", "blank.txt"), "“blank.txt” is empty"),
        (as_file("x" * 3_000_000, "long.txt"), "“long.txt” has 2,930 KB, but a request may have"),
        (as_file("x" * 65_000, "full.txt"), "With “full.txt” the files have"),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else "",
)
def test_what_cannot_be_attached_is_refused_with_a_reason(
    play: Callable[..., Playground], file: dict[str, Any], said: str
) -> None:
    here = play()
    if file["name"] == "full.txt":
        attach(here, as_file("y" * 2_000, "first.txt"))
        expect(chips(here.page)).to_have_count(1)
    before = chips(here.page).count()
    attach(here, file)
    expect(here.notice).to_contain_text(said)
    expect(chips(here.page)).to_have_count(before)


def test_text_in_utf_16_is_read(play: Callable[..., Playground]) -> None:
    here = play()
    attach(here, as_file("Grüße\r\n✨".encode("utf-16"), "wide.txt"))
    expect(chips(here.page)).to_have_count(1)
    here.write("?", 2)
    assert last_request(here)["messages"][-1]["content"] == "wide.txt:\n```\nGrüße\n✨\n```\n\n?"


@pytest.mark.quick
def test_the_fence_is_longer_than_any_in_the_file(call: Callable[..., Any]) -> None:
    block = call("chat/attachments", "blockOf", "a.md", "```\nx\n````\n")
    assert block == "a.md:\n`````\n```\nx\n````\n`````\n\n"
    assert call("chat/attachments", "blockOf", "two\nlines", "x") == "two lines:\n```\nx\n```\n\n"


def test_a_dropped_text_is_attached(page: Page, play: Callable[..., Playground]) -> None:
    here = play()
    transfer = page.evaluate_handle(
        """() => {
            const transfer = new DataTransfer();
            transfer.items.add(new File(['{"a": 1}'], "data.json"));
            return transfer;
        }"""
    )
    page.dispatch_event("body", "drop", {"dataTransfer": transfer})
    expect(chips(page)).to_contain_text("data.json")
    expect(here.playback.bar).to_be_hidden()


@pytest.mark.parametrize(
    ("theme", "width"), [pytest.param("light", 1440, marks=pytest.mark.slow), ("dark", 360)]
)
def test_axe_finds_nothing_in_chips(
    page: Page, site: Callable[..., Site], theme: str, width: int
) -> None:
    page.set_viewport_size({"width": width, "height": 740})
    play = open_page(page, site(context=2048), color_scheme=theme)
    attach(play, as_file(NOTES, "notes.md"), as_file("x", f"{'long-' * 30}name.txt"))
    expect(chips(page)).to_have_count(2)
    assert violations(page) == []
    assert play.overflow() <= 0
    play.ask("Well?")
    play.wait_tokens(3)
    page.locator(".attached-file summary").first.click()
    assert violations(page) == []
    assert play.overflow() <= 0
