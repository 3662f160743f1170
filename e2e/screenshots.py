"""The README's pictures: the bundled model on a real server, as far as its seed goes each time.

python -m e2e.screenshots docs

In the pictures of a page that writes, the change of temperature is scheduled with the request
(`changes`), and what comes after a certain token is held back: which words stand there does not
depend on timing. The instruments have a server and a run of their own, which nothing held up.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import (
    Browser,
    Page,
    ViewportSize,
    WebSocketRoute,
    expect,
    sync_playwright,
)

from e2e.palette_png import smaller
from e2e.playground import Playground
from tests.serving import serving

ASK = "Tell me a story about a fox who finds a lantern"
SEED = 11
N_TOKENS = 200
HELD_AFTER = 127
"""Tokens on the page in the pictures of a page that writes."""
CHANGE_AT, TEMPERATURE = 88, 1.2
FIRST_FOCUS = 20
"""The instruments look at the first improbable token from this one on, counted from 0."""

DESKTOP: ViewportSize = {"width": 1440, "height": 900}
PHONE: ViewportSize = {"width": 360, "height": 740}
MOST_BYTES = 2_000_000
ANSWER_MS = 60_000
WARM_MS = 15_000
"""An engine that has nothing to do compiles what it will need; then a run's times are typical."""


class HeldLine:
    """The page's WebSocket: schedules the change, and keeps back what follows a token."""

    def __init__(self, page: Page) -> None:
        self._page_side: WebSocketRoute | None = None
        self._holding = False
        page.route_web_socket("**/ws", self._on_socket)

    def _on_socket(self, route: WebSocketRoute) -> None:
        self._page_side = route
        server = route.connect_to_server()
        route.on_message(lambda raw: self._to_server(server, raw))
        server.on_message(self._to_page)

    def _to_server(self, server: WebSocketRoute, raw: str | bytes) -> None:
        message: dict[str, Any] = json.loads(raw)
        if message["type"] == "update":
            return  # the slider was moved for the eye; the request has it already
        if message["type"] == "generate":
            message["changes"] = [{"index": CHANGE_AT, "params": {"temperature": TEMPERATURE}}]
        server.send(json.dumps(message))

    def _to_page(self, raw: str | bytes) -> None:
        assert self._page_side is not None
        if self._holding:
            return
        self._page_side.send(raw)
        event = json.loads(raw).get("event", {}) if isinstance(raw, str) else {}
        self._holding = event.get("type") == "token" and event["index"] == HELD_AFTER - 1


class Album:
    """Takes pictures, and keeps them small."""

    def __init__(self, browser: Browser, folder: Path) -> None:
        self._blank = browser.new_page()
        self._folder = folder
        self.n_bytes = 0

    def take(self, page: Page, name: str) -> None:
        page.evaluate("() => document.fonts.ready")
        page.wait_for_timeout(400)  # whatever follows a change of size or theme
        data = smaller(page.screenshot(animations="disabled", caret="hide"), self._blank)
        (self._folder / f"{name}.png").write_bytes(data)
        self.n_bytes += len(data)
        print(f"{name}.png  {len(data) / 1000:.0f} KB")


def ask(page: Page, url: str) -> Playground:
    """A page on which the text is written, at least so far."""
    play = Playground(page, url).open()
    page.wait_for_timeout(WARM_MS)
    play.set(seed=SEED, max_tokens=N_TOKENS, temperature=0.8, top_k=0, top_p=0.95)
    play.ask(ASK)
    play.wait_tokens(HELD_AFTER)
    page.locator("#prompt").blur()
    return play


def while_writing(page: Page, url: str, album: Album) -> None:
    """The playground at a token of a text that is being written, on all paper there is."""
    HeldLine(page)
    ask(page, url).slide("temperature", TEMPERATURE)
    page.locator("#s-temperature").blur()
    album.take(page, "playground")
    page.emulate_media(color_scheme="dark")
    album.take(page, "playground-dark")
    page.emulate_media(color_scheme="light")
    page.set_viewport_size(PHONE)
    page.wait_for_timeout(200)
    page.evaluate("() => dispatchEvent(new Event('resize'))")  # now that the ribbon has its size
    album.take(page, "playground-360")


def reach_in(page: Page) -> None:
    """Change a little inside, and wait for what that would do to the token."""
    look = page.get_by_test_id("look")
    look.get_by_role("gridcell", name="layer 2, head 3").click()
    look.get_by_role("gridcell", name="layer 5, MLP").focus()
    for _ in range(5):
        page.keyboard.press("-")
    look.get_by_role("button", name="at sea").click()
    expect(page.get_by_test_id("look-source")).to_contain_text("Asked twice", timeout=ANSWER_MS)
    expect(look.locator(".rc-tokens li").first).to_be_visible()


def each_instrument(page: Page, url: str, album: Album) -> None:
    """Every tab of “Look closer”, at a token that might have been another."""
    ask(page, url).wait_done()
    improbable = page.locator('.answer .tok[data-q="3"]')
    numbers = improbable.evaluate_all("(nodes) => nodes.map((node) => Number(node.dataset.i))")
    focus = next(number for number in numbers if number >= FIRST_FOCUS)
    page.locator(f'.answer .tok[data-i="{focus}"]').click()
    page.mouse.move(5, 5)
    look = page.get_by_test_id("look")
    for tab in page.get_by_role("tab").all():
        tab.click()
        expect(look).to_be_visible()
        name = page.evaluate("() => location.hash.replace('#look=', '')")
        if name == "reach":
            reach_in(page)
        expect(look).not_to_have_attribute("aria-busy", "true", timeout=ANSWER_MS)
        said = page.locator("#look-say")
        if said.is_visible():
            print(f"{name} shows nothing: {said.inner_text()}", file=sys.stderr)
        page.locator("#look").focus()
        album.take(page, f"look-{name}")
        if name == "reach":
            look.get_by_role("button", name="Reset").click()


@contextmanager
def chromium() -> Iterator[Browser]:
    """The system's Chromium where there is one (or TOKENGLASS_CHROMIUM), else Playwright's."""
    path = os.environ.get("TOKENGLASS_CHROMIUM") or shutil.which("chromium")
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    args = ["--disable-dev-shm-usage", *(["--no-sandbox"] if root else [])]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=args)
        yield browser
        browser.close()


def main(folder: Path) -> None:
    with chromium() as browser:
        album = Album(browser, folder)
        for pictures in (while_writing, each_instrument):
            page = browser.new_page(viewport=DESKTOP, color_scheme="light")
            with serving() as url:
                pictures(page, url, album)
            page.close()
    print(f"together {album.n_bytes / 1e6:.2f} MB")
    if album.n_bytes > MOST_BYTES:
        raise SystemExit(f"that is more than {MOST_BYTES / 1e6:g} MB")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs"))
