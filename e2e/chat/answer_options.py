"""The dialog “Tools and answer format” and the cards of calls, in a test."""

from __future__ import annotations

from playwright.sync_api import Locator, Page

from e2e.playground import Playground


class AnswerOptions:
    """Drives the dialog; `cards` are the calls in the transcript."""

    def __init__(self, play: Playground) -> None:
        self._page: Page = play.page
        self.dialog = play.page.locator("#answer-options")
        self.chips = play.page.locator("#answer-chips .chip")
        self.cards = play.page.locator(".tool-call")
        self.requests = lambda: [m for m in play.messages.sent if m["type"] == "generate"]

    def open(self) -> AnswerOptions:
        self._page.get_by_role("button", name="Tools and answer format").press("Enter")
        self.dialog.wait_for()
        return self

    def close(self) -> None:
        self._page.keyboard.press("Escape")
        self.dialog.wait_for(state="hidden")

    def check(self, *names: str) -> AnswerOptions:
        for name in names:
            self.box(name).check()
        return self

    def box(self, name: str) -> Locator:
        return self.dialog.get_by_role("checkbox", name=name)

    def format(self, kind: str, text: str) -> None:
        """Choose what answers must follow, and close the dialog."""
        self.open()
        self.dialog.get_by_label(kind, exact=True).check(force=True)
        self.dialog.get_by_label("Format of the answer").fill(text)
        self.close()
