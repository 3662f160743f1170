"""The dialog in which the model moves between the server and this browser, as a test uses it."""

from __future__ import annotations

from playwright.sync_api import Locator, expect

from e2e.playground import Playground

MOVE_MS = 90_000


class PlaceDialog:
    def __init__(self, play: Playground) -> None:
        self.page = play.page
        self._play = play
        self.dialog = play.page.get_by_role("dialog", name="Where the model runs")
        self.said = self.dialog.locator("#place-say")
        self.error = self.dialog.locator("#place-error")
        self.run_here = self.dialog.get_by_role("button", name="Run in this browser")
        self.run_there = self.dialog.get_by_role("button", name="Run on the server")

    def open(self) -> Locator:
        self.page.get_by_test_id("about-open").click()
        self.page.get_by_role("button", name="Where it runs").click()
        expect(self.dialog.get_by_role("option").first).to_be_attached()
        return self.dialog

    def to_browser(self) -> None:
        self.open()
        self.run_here.click()
        expect(self.said).to_contain_text("It runs in this browser now", timeout=MOVE_MS)
        self.page.keyboard.press("Escape")
        self._play.wait_ready()

    def to_server(self) -> None:
        self.open()
        self.run_there.click()
        expect(self.said).to_have_text("It runs on the server now.")
        self.page.keyboard.press("Escape")
        self._play.wait_ready()
