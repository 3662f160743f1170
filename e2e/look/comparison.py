"""Page object of the instrument that compares settings."""

from __future__ import annotations

from playwright.sync_api import Locator, Page, expect

from e2e.waiting import TWO_FRAMES

RUNS_MS = 60_000
"""Time for the runs of all columns, which the pictures take with the real engine."""


class Comparison:
    """Page object of *Compare*. Columns are numbered from 0."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.prompt = page.get_by_role("textbox", name="Prompt for all columns")
        self.go = page.get_by_role("button", name="Compare", exact=True)
        self.stop_all = page.get_by_role("button", name="Stop all")
        self.add = page.get_by_role("button", name="Add column")
        self.columns = page.locator(".cmp-column")
        self.strip = page.get_by_role("slider", name="Token in the comparison")
        self.reason = page.locator(".cmp-reason")

    def open(self, prompt: str = "") -> Comparison:
        self.page.evaluate("() => { location.hash = 'look=compare' }")
        expect(self.columns.nth(1)).to_be_visible()
        if prompt:
            self.prompt.fill(prompt)
        return self

    def pick(self, number: int) -> None:
        """Select a column: the page's controls act on it."""
        self.columns.nth(number).locator(".cmp-pick").click()
        expect(self.columns.nth(number).locator(".cmp-pick")).to_have_attribute(
            "aria-pressed", "true"
        )

    def words(self, number: int) -> Locator:
        """Return what is different in a column."""
        return self.columns.nth(number).locator(".cmp-pick > span")

    def own_prompt(self, number: int) -> Locator:
        """Return the field for a prompt of a column's own; the first has none."""
        return self.columns.nth(number).get_by_role("textbox")

    def tokens(self, number: int) -> Locator:
        return self.columns.nth(number).locator(".tok")

    def act(self, name: str, number: int) -> Locator:
        """Return a button of a column: Stop, Take, Remove."""
        return self.columns.nth(number).get_by_role("button", name=name)

    def texts(self) -> list[str]:
        """Return the text of every column without its change marks."""
        return [
            str(text)
            for text in self.page.evaluate(
                """() => [...document.querySelectorAll(".cmp-column .answer")].map((node) => {
                  const copy = node.cloneNode(true);
                  for (const mark of copy.querySelectorAll(".mark-change")) mark.remove();
                  return copy.textContent;
                })"""
            )
        ]

    def wait_done(self) -> None:
        self.page.evaluate(TWO_FRAMES)  # a request shows after a frame
        expect(self.stop_all).to_have_count(0, timeout=RUNS_MS)

    def run(self) -> None:
        self.go.click()
        self.wait_done()
