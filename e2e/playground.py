"""Page object of the playground."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Locator, Page, WebSocketRoute, expect

TIMEOUT_SECONDS = 30.0
"""Timeout of every wait: four browsers share the cores of a test machine."""
TIMEOUT_MS = 1000 * TIMEOUT_SECONDS

TWO_FRAMES = """() => new Promise((done) =>
  requestAnimationFrame(() => requestAnimationFrame(done)))"""
"""Waits until earlier changes are drawn."""

# Text of an answer without its change marks.
TEXT_OF = """(node) => {
  const copy = node.cloneNode(true);
  for (const mark of copy.querySelectorAll(".mark-change")) mark.remove();
  return copy.textContent;
}"""


def until(
    page: Page, condition: Callable[[], Any], what: str, seconds: float = TIMEOUT_SECONDS
) -> Any:
    """Wait for a truthy value and return it.

    Playwright's own wait evaluates a string, which the page's Content-Security-Policy forbids, and
    a plain sleep would block Playwright's events.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := condition():
            return value
        page.wait_for_timeout(20)
    raise AssertionError(f"waited {seconds:g} s for {what}")


class Playground:
    """Page object of the playground at `url`."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.sockets: list[WebSocketRoute] = []
        self.offline = False
        self.tokens = page.locator(".answer").last.locator(".tok")
        self.stats = page.get_by_test_id("stats")
        self.notice = page.get_by_test_id("notice")
        self.prompt = page.locator("#prompt")
        self.stop = page.get_by_role("button", name="Stop", exact=True)
        self.regenerate = page.get_by_role("button", name="Regenerate")
        self.continue_button = page.get_by_role("button", name="Continue")
        self.core = page.get_by_role("slider", name="Token in the core sample")

    def open(self, *, ready: bool = True) -> Playground:
        self.page.goto(self.url)
        if ready:
            self.wait_ready()
        return self

    def wait_ready(self) -> None:
        self.page.evaluate(TWO_FRAMES)  # the page shows a lost engine only after a frame
        expect(self.page.locator("body")).to_have_attribute(
            "data-engine", "ready", timeout=TIMEOUT_MS
        )

    def route_sockets(self) -> None:
        """Let the test close connections; call before `open`. `offline` refuses new ones."""

        def on_socket(route: WebSocketRoute) -> None:
            if self.offline:
                route.close(code=3001, reason="kept away by the test")
                return
            route.connect_to_server()
            self.sockets.append(route)

        self.page.route_web_socket("**/ws", on_socket)

    def cut(self) -> None:
        """Close the newest connection."""
        self.sockets[-1].close(code=3001, reason="cut by the test")

    # ---- acting ------------------------------------------------------------------------------

    def set(self, **boxes: Any) -> None:
        """Type values into number boxes: seed, max_tokens, or the name of a slider."""
        for name, value in boxes.items():
            box = self.page.locator(f"#{name}, #n-{name}").first
            box.fill(str(value))
            box.press("Enter")

    def slide(self, name: str, value: float) -> None:
        self.page.locator(f"#s-{name}").fill(str(value))

    def ask(self, text: str = "Tell me a story") -> None:
        self.prompt.fill(text)
        self.prompt.press("Enter")

    def wait_tokens(self, n: int) -> None:
        self.tokens.nth(n - 1).wait_for(state="attached", timeout=TIMEOUT_MS)

    def wait_done(self) -> None:
        self.page.evaluate(TWO_FRAMES)  # a request marks the page as writing only after a frame
        expect(self.page.locator("body")).not_to_have_attribute(
            "data-writing", "", timeout=TIMEOUT_MS
        )

    # ---- reading -----------------------------------------------------------------------------

    @property
    def answer(self) -> Locator:
        return self.page.locator(".answer").last

    def text(self) -> str:
        return str(self.answer.evaluate(TEXT_OF))

    def numbers(self) -> list[int]:
        """Return the number of every token in the answer, in reading order."""
        return [
            int(n)
            for n in self.answer.evaluate(
                "(node) => [...node.querySelectorAll('.tok')].map((t) => t.dataset.i)"
            )
        ]

    def overflow(self) -> int:
        """Return by how many pixels the page is wider than the window."""
        return int(
            self.page.evaluate(
                "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
        )
