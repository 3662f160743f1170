"""Page object of the *Look closer* panel, and a log of the page's WebSocket messages."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from playwright.sync_api import Locator, Page, WebSocket, expect


class MessageLog:
    """Log of all JSON messages of the page's WebSockets. Create it before the page is opened."""

    def __init__(self, page: Page) -> None:
        self.sent: list[dict[str, Any]] = []
        self.received: list[dict[str, Any]] = []

        def on_socket(ws: WebSocket) -> None:
            ws.on("framesent", lambda frame: self._add(self.sent, frame))
            ws.on("framereceived", lambda frame: self._add(self.received, frame))

        page.on("websocket", on_socket)

    @staticmethod
    def _add(log: list[dict[str, Any]], frame: str | bytes) -> None:
        if isinstance(frame, str):
            log.append(json.loads(frame))

    def last(self, type: str) -> dict[str, Any]:
        return next(m for m in reversed(self.received) if m["type"] == type)

    def events(self, type: str) -> list[dict[str, Any]]:
        found = [m["event"] for m in self.received if m["type"] == "event"]
        return [event for event in found if event["type"] == type]


class LookPanel:
    """Page object of the *Look closer* panel."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.panel = page.get_by_test_id("look")
        self.source = page.get_by_test_id("look-source")
        self.message = page.locator("#look-message")

    def tab(self, name: str) -> Locator:
        return self.page.get_by_role("tab", name=name)

    def show(self, name: str) -> None:
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
        with self.page.expect_download() as download:
            self.panel.get_by_role("button", name=kind).click()
        with open(download.value.path(), "rb") as file:
            return file.read()

    def csv(self) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO(self.save("CSV").decode(), newline="")))
