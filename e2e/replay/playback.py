"""A replay as a test uses it: saving it, opening it, moving in it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect

# What the page shows of the conversation and its newest token, as text.
STATE = """() => ({
    turns: [...document.querySelectorAll(".turn")].map((turn) =>
      [...turn.children].findLast((part) => !part.matches(".tool-calls")).textContent),
    stats: document.querySelector("#stats").textContent,
    token: document.querySelector("#tok-no").textContent,
    candidates: [...document.querySelectorAll("#cands li")].map((row) => row.textContent),
    draw: document.querySelector("#draw").textContent,
    layers: document.querySelector("#lrows").textContent,
    run: [...document.querySelectorAll(".run dd")].slice(0, 6).map((dd) => dd.textContent),
    kv: document.querySelector("#r-kv").textContent,
    core: document.querySelector("#plot").getAttribute("aria-valuetext"),
    temperature: document.querySelector("#n-temperature").value,
    capture: document.querySelector("#capture").checked,
})"""


class Playback:
    def __init__(self, page: Page) -> None:
        self.page = page
        self.bar = page.get_by_test_id("playback")
        self.slider = page.get_by_role("slider", name="Token of the replay")
        self.play = self.bar.get_by_role("button", name="Play", exact=True)
        self.number = page.locator("#playback-count")
        self.said = page.locator("#playback-status")
        self.again = self.bar.get_by_role("button", name="Run again here")
        self.leave = self.bar.get_by_role("button", name="Leave replay")
        self.error = page.locator("#replay-error")

    def save(self, path: Path, name: str = "Save as plain JSON") -> Path:
        """Save the conversation by the dialog; gives the path."""
        self.page.get_by_role("button", name="Replay: save or open").click()
        with self.page.expect_download() as download:
            self.page.get_by_role("button", name=name).click()
        download.value.save_as(path)
        self.page.keyboard.press("Escape")
        return path

    def give(self, file: Path | dict[str, Any]) -> None:
        """Choose a file in the picker."""
        self.page.locator("#replay-file").set_input_files(file)

    def open(self, file: Path | dict[str, Any]) -> Playback:
        self.give(file)
        expect(self.bar).to_be_visible()
        expect(self.slider).to_be_focused()
        return self

    def open_json(self, content: object) -> Playback:
        return self.open(as_file(content))

    def seek(self, n: int) -> None:
        self.slider.fill(str(n))
        self.expect_at(n)

    def expect_at(self, n: int) -> None:
        expect(self.slider).to_have_value(str(n))

    def state(self) -> dict[str, Any]:
        """Return what the page shows, after it was drawn."""
        self.page.evaluate(
            "() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))"
        )
        shown: dict[str, Any] = self.page.evaluate(STATE)
        return shown


def as_file(content: object, name: str = "made.json") -> dict[str, Any]:
    """Something for the picker: JSON of an object, text, or bytes as they are."""
    if isinstance(content, str):
        content = content.encode()
    elif not isinstance(content, bytes):
        content = json.dumps(content).encode()
    return {"name": name, "mimeType": "application/octet-stream", "buffer": content}


def read(path: Path) -> dict[str, Any]:
    """The object in a replay file, packed or not."""
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    content: dict[str, Any] = json.loads(data)
    return content


def segments(replay: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        segment
        for turn in replay["turns"]
        for answer in turn.get("answers", [])
        for segment in answer["segments"]
    ]


def events(segment: dict[str, Any], type: str) -> list[dict[str, Any]]:
    return [each["event"] for each in segment["events"] if each["event"]["type"] == type]
