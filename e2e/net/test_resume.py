"""A page that is connected again asks for exactly what it missed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Page, WebSocketRoute, expect

from e2e.net.test_connection import LOST_LINE, N, prepare
from e2e.playground import Playground
from e2e.site import Site


def test_it_asks_only_for_what_it_has_not(
    page: Page, site: Callable[..., Site], allowed_console: list[str]
) -> None:
    allowed_console.append(LOST_LINE)
    lines: list[WebSocketRoute] = []
    sent: list[dict[str, Any]] = []

    def on_socket(line: WebSocketRoute) -> None:
        server = line.connect_to_server()

        def pass_on(message: str | bytes) -> None:
            sent.append(json.loads(message))
            server.send(message)

        line.on_message(pass_on)
        lines.append(line)

    page.route_web_socket("**/ws", on_socket)
    play = Playground(page, site(delay=0.03)).open()
    prepare(play)
    play.wait_tokens(10)
    lines[-1].close(code=3001, reason="cut by the test")
    play.wait_tokens(N)
    play.wait_done()
    (again,) = [message for message in sent if message["type"] == "resume"]
    assert again["after"] > 10  # accepted, a piece of the prompt, and ten tokens at least


def test_a_change_made_without_a_connection_is_sent_once_there_is_one(
    page: Page, site: Callable[..., Site], allowed_console: list[str]
) -> None:
    allowed_console.append(LOST_LINE)
    play = Playground(page, site(delay=0.03))
    play.route_sockets()
    play.open()
    prepare(play, 1000)
    play.wait_tokens(10)
    play.offline = True
    play.cut()
    expect(page.locator("body")).to_have_attribute("data-engine", "lost")
    play.slide("temperature", 0.5)
    play.offline = False
    expect(page.locator(".mark-change")).to_have_text("temperature 1 → 0.5")
    play.stop.click()
    play.wait_done()
