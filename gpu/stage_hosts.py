"""Processes that run the stages of a model, on this machine or others, as an engine uses them.

Whoever starts an engine may also start such a process for each stage (`gpu.stage_server`) and tell
the engine where they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StageAddress:
    """Where the process of a stage listens. `key`: secret without which it answers nobody.
    `machine`: name of its machine, for messages."""

    host: str
    port: int
    key: bytes = field(repr=False)
    machine: str


class ServesStage(Protocol):
    """Process of a stage, as who starts it uses it. It listens from the beginning."""

    address: StageAddress

    def serve(self) -> None:
        """Run the stage until its engine ends."""
        ...


class StageHosts(Protocol):
    """Processes of the stages of one engine."""

    def start(self, n_stages: int) -> Sequence[StageAddress]:
        """Start a process for each stage, all at once. Raises DeviceError."""
        ...

    def lost(self, message: str) -> None:
        """Note that a process is gone although it was not asked to end: no step of the engine will
        succeed any more. Called on a thread of the engine."""
        ...

    def end(self) -> None:
        """End the processes. Those that were asked to end and did so are gone already."""
        ...
