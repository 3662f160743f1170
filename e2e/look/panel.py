"""Page object of the *Look closer* panel."""

from __future__ import annotations

import csv
import io
import time
from collections import deque

from playwright.sync_api import Locator, Page, expect

from e2e.waiting import until

# Chromium drops further downloads of a page without a word (blink's kBurstDownloadLimit).
DOWNLOADS_PER_SECOND = 10


class LookPanel:
    """Page object of the *Look closer* panel."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.panel = page.get_by_test_id("look")
        self.source = page.get_by_test_id("look-source")
        self.message = page.locator("#look-message")
        self.saved: deque[float] = deque(maxlen=DOWNLOADS_PER_SECOND)

    def tab(self, name: str) -> Locator:
        return self.page.get_by_role("tab", name=name)

    def show(self, name: str) -> None:
        page, panel = self.page, self.panel
        # A panel that was just closed is taken out of the address a frame later: over this one.
        until(page, lambda: panel.is_visible() or "look=" not in page.url, "the closed panel")
        self.page.evaluate("(name) => { location.hash = `look=${name}` }", name)

    def open(self, name: str) -> LookPanel:
        """Open an instrument and wait until it has loaded."""
        self.show(name)
        expect(self.panel).to_be_visible()
        expect(self.panel).not_to_have_attribute("aria-busy", "true")
        return self

    def table(self) -> list[dict[str, str]]:
        """Return the rows of the table: column name to text."""
        button = self.panel.get_by_role("button", name="Table", exact=True)
        if button.get_attribute("aria-pressed") == "false":
            button.click()
        table = self.panel.get_by_role("table")
        expect(table).to_be_visible()
        names, *rows = table.evaluate(
            "(table) => [...table.rows].map((row) => [...row.cells].map((c) => c.textContent))"
        )
        return [dict(zip(names, row, strict=True)) for row in rows]

    def save(self, kind: str) -> bytes:
        if len(self.saved) == DOWNLOADS_PER_SECOND:
            self.page.wait_for_timeout(max(0, 1100 - 1000 * (time.monotonic() - self.saved[0])))
        self.saved.append(time.monotonic())
        with self.page.expect_download() as download:
            self.panel.get_by_role("button", name=kind).click()
        with open(download.value.path(), "rb") as file:
            return file.read()

    def csv(self) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO(self.save("CSV").decode(), newline="")))
