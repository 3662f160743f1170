"""Tasks of a page's main thread, from a trace recorded by Chromium."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import Browser, Page

CATEGORIES = [
    "devtools.timeline",
    "disabled-by-default-devtools.timeline",
    "v8",
    "blink.user_timing",
]
SETTLE_MS = 500
WITHIN = ("FunctionCall", "Layout", "UpdateLayoutTree", "PrePaint", "Paint", "Commit", "MajorGC")


@dataclass(frozen=True)
class Task:
    """One task of the main thread; no frame is drawn during it.

    cpu_ms   CPU time of the thread
    wall_ms  elapsed time; more than `cpu_ms` on a busy machine
    parts    milliseconds by kind of work
    """

    cpu_ms: float
    wall_ms: float
    parts: dict[str, float]

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {ms:.0f}" for name, ms in self.parts.items())
        return f"{self.cpu_ms:.1f} ms of CPU in {self.wall_ms:.1f} ms ({parts})"


@dataclass
class Recording:
    """Tasks recorded by `recorded`; empty until it ends."""

    tasks: list[Task] = field(default_factory=list)

    @property
    def longest(self) -> Task:
        return max(self.tasks, key=lambda task: task.cpu_ms)


@contextmanager
def recorded(browser: Browser, page: Page) -> Iterator[Recording]:
    """Record the tasks of the page's main thread within the `with` block.

    Starting a trace blocks the page for a moment; tasks before the block do not count.
    """
    recording = Recording()
    browser.start_tracing(page=page, categories=CATEGORIES)
    page.wait_for_timeout(SETTLE_MS)
    page.evaluate("() => performance.mark('begun')")
    try:
        yield recording
    finally:
        events = json.loads(browser.stop_tracing())["traceEvents"]
    begun = next(e["ts"] for e in events if e["name"] == "begun")
    recording.tasks += _tasks([e for e in _main_thread(events) if e["ts"] >= begun])


def _main_thread(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the complete events of the busiest renderer thread, which is the page's."""
    named = {
        (e["pid"], e["tid"])
        for e in events
        if e["name"] == "thread_name" and e["args"]["name"] == "CrRendererMain"
    }
    whose = [(e["pid"], e["tid"]) for e in events if e["ph"] == "X"]
    busiest = max(named, key=Counter(whose).__getitem__)
    return [e for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) == busiest]


def _tasks(events: list[dict[str, Any]]) -> list[Task]:
    """Return the RunTask events in order, each with the time per kind of work in `WITHIN`."""
    tasks = sorted((e for e in events if e["name"] == "RunTask"), key=lambda e: e["ts"])
    parts = sorted((e for e in events if e["name"] in WITHIN), key=lambda e: e["ts"])
    found, at = [], 0
    for task in tasks:
        within: Counter[str] = Counter()
        while at < len(parts) and parts[at]["ts"] < task["ts"] + task["dur"]:
            if parts[at]["ts"] >= task["ts"]:
                within[parts[at]["name"]] += parts[at].get("dur", 0) / 1000
            at += 1
        found.append(Task(task.get("tdur", 0) / 1000, task["dur"] / 1000, dict(within)))
    return found
