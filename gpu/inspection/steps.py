"""Steps of the engine as an answer: who had rows in them, and who waited."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpu.inspection.requests import Answer, Array, StepPart


@dataclass(frozen=True, slots=True)
class RunRows:
    """Rows of one run in one step. `n`: how many; `n_accepted`: accepted drafts among them."""

    run: int
    kind: StepPart
    n: int
    n_accepted: int


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A step: its number from 1, the milliseconds that it took, and what runs had in it."""

    number: int
    ms: float
    parts: tuple[RunRows, ...]


def step_reading(steps: Sequence[StepRecord]) -> Answer:
    """Return the arrays of `gpu.inspection.requests.RecentSteps`."""
    parts = [(part.run, part.kind, part.n, part.n_accepted) for s in steps for part in s.parts]
    arrays = {
        "numbers": np.array([step.number for step in steps], np.uint32),
        "ms": np.array([step.ms for step in steps], np.float32),
        "n_parts": np.array([len(step.parts) for step in steps], np.uint32),
        "parts": np.array(parts, np.uint32).reshape(len(parts), 4),
    }
    return Answer({}, tuple(Array.of(name, values) for name, values in arrays.items()))
