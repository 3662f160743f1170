"""Branches of an answer, as a test makes them and as the engine would."""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import Locator, Page, expect

from e2e.net.message_log import MessageLog
from e2e.playground import Playground
from e2e.site import Site
from gpu import Request
from gpu.events import Token
from gpu.sampling_params import SamplingParams

ENDING = "Once there was a fox ✨ and a lamp. The end."
LOST_LINE = "WebSocket connection to"


def wrote(
    page: Page, here: Site, n: int = 40, **settings: Any
) -> tuple[Playground, MessageLog, list[dict[str, Any]]]:
    """A page on which `n` tokens were written; what came over its line, and those tokens."""
    play = Playground(page, here).open()
    messages = play.messages
    play.set(**{"max_tokens": n, "seed": 11, **settings})
    play.ask()
    play.wait_tokens(n)
    play.wait_done()
    return play, messages, messages.events("token")


def row(page: Page, word: str) -> Locator:
    button = page.get_by_role("button", name=re.compile(f"^{re.escape(word)}: write"))
    return page.locator(".cands li").filter(has=button)


def look_at(play: Playground, index: int) -> None:
    """By the keys: a part of a character cannot be pointed at, and text that goes on moves."""
    play.core.focus()
    play.page.keyboard.press("Home")
    for key, n in (("PageDown", index // 20), ("ArrowRight", index % 20)):
        for _ in range(n):
            play.page.keyboard.press(key)
    expect(play.page.locator("#tok-no")).to_have_text(str(index + 1))


def other_than_drawn(token: dict[str, Any]) -> dict[str, Any]:
    """A candidate that was not drawn and whose name is its own."""
    return next(
        c for c in token["candidates"][:6] if c["id"] != token["id"] and c["text"].startswith(" ")
    )


def force(play: Playground, index: int, candidate: dict[str, Any]) -> None:
    """Write a candidate in the place of a token, by a click, and wait for the branch."""
    n = versions(play)
    look_at(play, index)
    row(play.page, candidate["text"].strip()).click()
    expect(play.page.locator("#version")).to_have_text(f"{n + 1}/{n + 1}")


def versions(play: Playground) -> int:
    text = str(play.page.locator("#version").text_content())
    return int(text.split("/")[1]) if text else 1


def engine_tokens(here: Site, message: dict[str, Any]) -> list[Token]:
    """Return what the engine writes for a message of the page without interruption."""
    params = SamplingParams(**{**message["params"], "stop": tuple(message["params"]["stop"])})
    return here.undelayed(Request(message["ids"], params))


def sent(messages: MessageLog, type: str = "generate") -> list[dict[str, Any]]:
    return [message for message in messages.sent if message["type"] == type]


def waterfall_of(messages: MessageLog, index: int) -> dict[str, Any] | None:
    """The first question about how a token was drawn; a preview of others comes after it."""
    asked = [message["question"] for message in sent(messages, "inspect")]
    return next((q for q in asked if q.get("index") == index), None)
