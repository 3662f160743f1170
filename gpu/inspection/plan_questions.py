"""Answers about the plan of a step: its dispatches, their GPU times, the device's peaks, and a
digest of its weights."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager

import numpy as np

from gpu.errors import InvalidRequest
from gpu.inspection.requests import MAX_REPEAT, Answer, Array, Profile, StepPlan
from gpu.runner import Runner
from gpu.step import Row, Sample, Step

AnswerSteps = Generator[None, None, Answer]
ReserveSlot = Callable[[int], AbstractContextManager[int]]
"""Reserves a slot with blocks for a number of tokens, whatever they hold."""


def plan_answer(runner: Runner, question: StepPlan) -> AnswerSteps:
    """Return the plan, in one piece. Raises InvalidRequest for a size that no step can have."""
    yield from ()
    return Answer(runner.list_plan(question.n_rows, question.context) or {}, ())


def profile_answer(runner: Runner, question: Profile, reserve: ReserveSlot) -> AnswerSteps:
    """Time the dispatches, one piece per run of the step: other runs wait for two steps at a time
    (the first of each piece is not counted). The contents of the cache change no time, so any
    tokens will do.

    Raises InvalidRequest for a size that no step can have.
    """
    if not 1 <= question.repeat <= MAX_REPEAT:
        raise InvalidRequest(f"repeat is {question.repeat}, expected 1 to {MAX_REPEAT}", "repeat")
    plan = runner.list_plan(question.n_rows, question.context) or {"dispatches": []}
    info = {"dispatches": plan["dispatches"]}
    runs = []
    for _ in range(question.repeat):
        with reserve(question.context + question.n_rows) as slot:
            times = runner.profile(_step(slot, question), 1)
        if times is None:
            return Answer(info, ())
        runs.append(times)
        yield
    return Answer(info, (Array.of("ms", np.median(runs, axis=0)),))


def peaks_answer(runner: Runner) -> AnswerSteps:
    """Return the device's peaks, in one piece."""
    yield from ()
    return Answer(dict(runner.peaks() or {}), ())


def digest_answer(runner: Runner) -> AnswerSteps:
    """Digest the weights, one tensor a piece. Raises InvalidRequest where they change by design."""
    whole = hashlib.sha256()
    n_tensors = n_bytes = 0
    while (found := runner.weight_digest(n_tensors)) is not None:
        digest, size = found
        whole.update(digest)
        n_tensors += 1
        n_bytes += size
        yield
    if not n_tensors:
        return Answer({}, ())
    info = {"sha256": whole.hexdigest(), "n_tensors": n_tensors, "n_bytes": n_bytes}
    return Answer(info, ())


def _step(slot: int, question: Profile) -> Step:
    """Return the step, with its last row sampled and no filters."""
    first, n = question.context, question.n_rows
    sample = Sample(n - 1, slot, 0, 0, 1.0, 0, 1.0, 0.0, 1.0)
    return Step(tuple(Row(slot, first + i, 0) for i in range(n)), (sample,))
