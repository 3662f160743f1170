"""Log of the page's WebSocket messages."""

from __future__ import annotations

import json
from typing import Any

from playwright.sync_api import Page, WebSocket


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
