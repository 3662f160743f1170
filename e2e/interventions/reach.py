"""Page object of the instrument *Reach in*."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from playwright.sync_api import Locator, expect

from e2e.waiting import until

if TYPE_CHECKING:
    from e2e.playground import Playground


class ReachPanel:
    """The instrument, with the run under intervention and its messages."""

    def __init__(self, play: Playground) -> None:
        self.play = play
        self.page = page = play.page
        self.messages = play.messages
        self.look = play.look
        self.panel = self.look.panel
        self.says = self.panel.locator(".rc-status")
        self.factor = self.panel.get_by_role("textbox", name="Factor", exact=True)
        self.twin = self.panel.locator(".rc-comparison")
        self.note = page.get_by_test_id("reach-note")

    def open(self) -> ReachPanel:
        self.look.open("reach")
        return self

    def cell(self, place: str) -> Locator:
        return self.panel.locator(f'[data-place="{place}"]')

    def button(self, name: str) -> Locator:
        return self.panel.get_by_role("button", name=name, exact=True)

    def write(self, n: int, **settings: Any) -> ReachPanel:
        """An answer of `n` tokens, written to its end."""
        self.play.set(max_tokens=n, **{"seed": 5, **settings})
        self.play.ask()
        self.settle(n)
        return self

    def settle(self, n: int) -> None:
        self.play.wait_tokens(n)
        self.play.wait_done()

    def again(self, version: int, n: int) -> None:
        """Write it again, to its end, as version `version`."""
        self.button("Run again").click()
        expect(self.page.locator("#version")).to_have_text(f"{version}/{version}")
        self.settle(n)

    def choose_token(self, prompt: str, token: int) -> None:
        """Patch the focused token with a token of another prompt."""
        self.panel.get_by_role("radio", name="Patch").check(force=True)
        self.panel.get_by_role("textbox", name="Another prompt").fill(prompt)
        pieces = self.panel.get_by_role("radiogroup", name="Token of the other prompt")
        pieces.get_by_role("radio").nth(token).check(force=True)
        self.button("Patch").click()

    # ---- what went over the line -------------------------------------------------------------

    def asked(self) -> list[dict[str, Any]]:
        """The interventions that were sent to the run, in order."""
        return [m["reach"] for m in self.messages.sent if m["type"] == "update" and "reach" in m]

    def wait_asked(self, reach: dict[str, Any]) -> None:
        until(self.page, lambda: self.asked()[-1:] == [reach], f"the update {reach}")

    def acknowledged(self) -> list[dict[str, Any]]:
        return [event for event in self.messages.events("updated") if "reach" in event]

    def requests(self) -> list[dict[str, Any]]:
        return [m for m in self.messages.sent if m["type"] == "generate"]

    def wait_requests(self, n: int) -> dict[str, Any]:
        until(self.page, lambda: len(self.requests()) == n, f"{n} requests")
        return self.requests()[-1]

    def ids(self, request: int = -1) -> list[int]:
        """The tokens of a request."""
        id = self.requests()[request]["id"]
        told = [m["event"] for m in self.messages.received if m.get("id") == id and "event" in m]
        return [event["id"] for event in told if event["type"] == "token"]

    def prompt_length(self) -> int:
        return len(self.messages.events("accepted")[-1]["prompt"])
