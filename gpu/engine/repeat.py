"""Second run of rows whose output was not a number, on a path that checks more.

A fault of a moment (a driver, memory) then costs a text nothing. One that lasts ends it, and the
error names the op in which it shows first.
"""

from __future__ import annotations

import logging
import math
from dataclasses import replace

import numpy as np

from gpu.engine.sequence import Repeated, Sequence
from gpu.engine.step_builder import Scheduled
from gpu.runner import Runner
from gpu.step import FROM_GPU, StepResult

log = logging.getLogger(__name__)


def not_finite(scheduled: Scheduled, result: StepResult) -> list[Sequence]:
    """Return the sequences for which a step gave what is not a number."""
    return [
        sequence
        for sequence, samples in scheduled.samples()
        if not (sequence.finished or sequence.discards_next)
        and not all(math.isfinite(result.samples[i].logprob) for i in samples)
    ]


def repeat(runner: Runner, scheduled: Scheduled, sequence: Sequence) -> Repeated | None:
    """Run the rows of a sequence in a step again, while none is in flight; None if its place in the
    cache or its settings have changed since."""
    before = scheduled.step
    slot = next(before.samples[own[0]].slot for s, own in scheduled.samples() if s is sequence)
    places = [i for i, row in enumerate(before.rows) if row.slot == slot]
    rows = tuple(
        replace(row, token=sequence.ids[-1]) if row.token == FROM_GPU else row
        for row in (before.rows[i] for i in places)
    )
    samples = tuple(
        replace(sample, row=places.index(sample.row), verifies=True)
        for sample in before.samples
        if sample.slot == slot
    )
    if not sequence.is_as_before(rows, samples[0]):
        return None
    index = rows[-1].position + sequence.n_shifted  # in the text
    if (active := sequence.interventions.move_to(index)) is not None:
        runner.set_interventions(slot, active)
    runner.set_text(slot, np.array(sequence.ids, np.uint32), sequence.n_counted)
    result, place = runner.run_checked(replace(before, rows=rows, samples=samples), before)
    if place is not None:
        place = replace(place, position=place.position + sequence.n_shifted)
    if all(math.isfinite(sampled.logprob) for sampled in result.samples):
        outcome = "it is a number, and the text goes on"
    else:
        outcome = f"it is still none; first wrong: {place or 'not known'}"
    log.warning(
        "run %d: the output after position %d was not a number; run again with checked kernels, %s",
        sequence.number,
        index,
        outcome,
    )
    return Repeated(result, [sample.row for sample in samples], place)
