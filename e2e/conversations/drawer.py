"""The drawer of conversations as a test uses it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playwright.sync_api import Locator, Page, expect

from e2e.waiting import until

STORED = """async () => {
  const { readEntries } = await import("/static/js/conversations/database.js");
  return readEntries();
}"""
SETTLED = """async () => {
  const { keepNow } = await import("/static/js/conversations/keeper.js");
  await keepNow();
}"""

STORAGE_OFF = """
IDBFactory.prototype.open = () => { throw new DOMException("denied", "SecurityError") };
"""
"""Script of a page whose browser does not let it store conversations."""


class Drawer:
    """`rows`: one per conversation in the list; a row is opened by pressing it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.dialog = page.get_by_role("dialog", name="Conversations")
        self.search = page.get_by_role("searchbox", name="Search conversations")
        self.rows = self.dialog.locator(".kept-open")
        self.titles = self.dialog.locator(".kept-title")
        self.save_all = self.dialog.get_by_role("button", name="Save all")
        self.error = page.locator("#kept-error")
        self.said = page.locator("#kept-said")

    def show(self) -> Drawer:
        self.page.get_by_role("button", name="Conversations", exact=True).click()
        expect(self.dialog).to_be_visible()
        return self

    def open(self, title: str) -> None:
        """Open the conversation of this name."""
        if not self.dialog.is_visible():
            self.show()
        self.rows.filter(has_text=title).click()
        expect(self.dialog).to_be_hidden()
        self.page.mouse.move(0, 0)  # off the tokens that appear under it

    def act(self, name: str, title: str) -> Locator:
        """Return the button `name` (Rename, Save, Delete) of a conversation, which is shown."""
        self.dialog.locator(".kept").filter(has_text=title).hover()
        return self.dialog.get_by_role("button", name=f"{name} “{title}”")

    def import_files(self, *files: Path | dict[str, Any]) -> None:
        self.page.locator("#kept-files").set_input_files(list(files))  # type: ignore[arg-type]

    def entries(self) -> list[dict[str, Any]]:
        """Return the stored entries, after everything that waits was stored."""
        self.page.evaluate(SETTLED)
        found: list[dict[str, Any]] = self.page.evaluate(STORED)
        return found

    def wait_stored(self, n: int) -> list[dict[str, Any]]:
        """Wait until `n` conversations are stored and return their entries."""
        until(self.page, lambda: len(self.entries()) == n, f"{n} stored conversations")
        return self.entries()
