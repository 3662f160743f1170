"""Timeouts and waits of browser tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Page

TIMEOUT_SECONDS = 30.0
"""Timeout of every wait: four browsers share the cores of a test machine."""
TIMEOUT_MS = 1000 * TIMEOUT_SECONDS

TWO_FRAMES = """() => new Promise((done) =>
  requestAnimationFrame(() => requestAnimationFrame(done)))"""
"""Waits until earlier changes are drawn."""


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
