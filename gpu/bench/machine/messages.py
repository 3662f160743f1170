"""Messages to and from the process that runs a part, one JSON object on each line."""

from __future__ import annotations

import msgspec

from gpu.bench.machine.results import Result

RESTART = 75
"""Exit status of a process that left the rest of its cases to a fresh one."""


class PartOrder(msgspec.Struct, frozen=True):
    """A part to run on an adapter, for `seconds`. `done`: cases to skip; `free`: free bytes of the
    device's memory."""

    part: str
    adapter: str
    seconds: float
    done: list[str] = []
    free: int | None = None


class DeviceReady(msgspec.Struct, frozen=True, tag="begun"):
    """The device is open; `cases`: all of the part, done ones included."""

    cases: list[str]


class CaseProgress(msgspec.Struct, frozen=True, tag="at"):
    """A case begins, or goes on: `doing` says with what."""

    case: str
    doing: str = ""


class Done(msgspec.Struct, frozen=True, tag="done"):
    """A case has ended."""

    result: Result


Message = DeviceReady | CaseProgress | Done
"""Union of everything a process says."""
