"""Contents of a report: the machine, and what each part found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from gpu.info import AdapterInfo
from gpu.tuning.policy_choices import PolicyChoice

PARTS = ("ops", "models", "stress", "sweep", "attention", "speed", "peers")
"""Parts of a report in the order they run, the most important first."""
FORMAT = 1
"""Version of the file."""

Status = Literal["ok", "wrong", "failed", "crashed", "left out", "pending"]
"""wrong: a result is outside its bound; failed: an error; crashed: the process ended or hung; left
out: it cannot be run here; pending: it was not run yet, another run of the command does it."""
BAD: tuple[Status, ...] = ("wrong", "failed", "crashed")
TIMES = 500
"""How often a step is run to see whether it always gives the same bits."""
TIME_IS_UP = "the time was up"
START = "start"
"""Name of the result of a part whose process ended before its first case."""


class Result(msgspec.Struct, frozen=True, omit_defaults=True):
    """Result of one case. `figures`: what was measured; `note`: what is wrong, or why the case was
    left out."""

    name: str
    status: Status
    seconds: float = 0.0
    figures: dict[str, float] = {}
    note: str = ""

    @property
    def is_bad(self) -> bool:
        return self.status in BAD

    @property
    def is_pending(self) -> bool:
        """True if another run of the command runs this case."""
        return self.status == "pending" or self.name == START


class Machine(msgspec.Struct, frozen=True):
    """Machine and one of its adapters, as `tokenglass doctor` describes them.

    engine      digest of the engine's sources
    versions    of the libraries, by package
    host_bytes  free memory of the host; card_bytes: of the GPU; None: unknown
    policy      how the engine uses the adapter, and why
    """

    tokenglass: str
    engine: str
    python: str
    platform: str
    versions: dict[str, str]
    host_bytes: int | None
    card_bytes: int | None
    adapter: AdapterInfo
    policy: list[PolicyChoice]

    def differs_from(self, other: Machine) -> str:
        """Return what differs so that results cannot be mixed; "" if they can."""
        for what, own, others in (
            ("adapter", self.adapter.name, other.adapter.name),
            ("backend", self.adapter.backend, other.adapter.backend),
            ("driver", self.adapter.driver, other.adapter.driver),
            ("tokenglass", self.tokenglass, other.tokenglass),
            *(
                (name, self.versions.get(name), other.versions.get(name))
                for name in ("wgpu", "wgpu-native", "numpy")
            ),
            ("engine sources", self.engine, other.engine),
        ):
            if own != others:
                return f"it is of {what} {others}, and this is {own}"
        return ""


class PartReport(msgspec.Struct, omit_defaults=True):
    """Results of one part, in the order they were found, and the seconds spent on it."""

    results: list[Result] = []
    seconds: float = 0.0

    @property
    def done(self) -> list[str]:
        """Names of the cases that are not to be run again."""
        return [result.name for result in self.results if not result.is_pending]

    @property
    def is_finished(self) -> bool:
        """True if every case was run or cannot be run here."""
        return bool(self.results) and not any(result.is_pending for result in self.results)

    def add(self, result: Result) -> None:
        """Add a result in place of an earlier one of the same case."""
        self.results = [old for old in self.results if old.name != result.name] + [result]


class Report(msgspec.Struct):
    """A report of one adapter. `began`: UTC; `seconds`: spent on it in all runs."""

    machine: Machine
    began: str
    seconds: float = 0.0
    parts: dict[str, PartReport] = {}
    format: int = FORMAT

    def part(self, name: str) -> PartReport:
        """Return a part; an empty one if it has not begun."""
        return self.parts.get(name) or PartReport()

    def left(self, names: Sequence[str] = PARTS) -> list[str]:
        """Return the parts that are not finished."""
        return [name for name in names if not self.part(name).is_finished]

    @property
    def failures(self) -> list[tuple[str, Result]]:
        """Everything that is wrong, failed or crashed, with the name of its part."""
        return [
            (name, result) for name in PARTS for result in self.part(name).results if result.is_bad
        ]
