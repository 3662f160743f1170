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
from gpu.kv.blocks import BLOCK_TOKENS
from gpu.runner import Runner
from gpu.step import FROM_GPU, Row, Sample, StepResult

log = logging.getLogger(__name__)


def not_finite(scheduled: Scheduled, result: StepResult) -> list[Sequence]:
    """Return the sequences for which a step gave what is not a number."""
    return [
        sequence
        for sequence, samples in scheduled.samples()
        if not (sequence.finished or sequence.decoding.n_discarded)
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
    if not _is_as_before(sequence, rows, samples[0]):
        return None
    index = rows[-1].position + sequence.n_shifted  # in the text
    if (active := sequence.interventions.move_to(index)) is not None:
        runner.set_interventions(slot, active)
    runner.set_text(slot, np.array(sequence.ids, np.uint32), sequence.text.n_counted)
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
    if sequence not in scheduled.capturing:
        result = replace(result, captured=None)
    return Repeated(result, [sample.row for sample in samples], place)


def _is_as_before(sequence: Sequence, rows: tuple[Row, ...], sample: Sample) -> bool:
    """Return whether rows that were run for `sample`, the next to be read, would be the same now:
    by their places in the cache and by the settings."""
    first, last = rows[0].position, rows[-1].position - (len(rows) - 1 - sample.row)
    text = sequence.text
    own = Sample.of(text.params, row=sample.row, slot=sequence.slot, index=text.n_written)
    return (
        last + sequence.n_shifted == len(sequence.ids) - 1
        and replace(sample, n_drafts=0, verifies=False, n_allowed=0) == own
        and all(
            window is None or table.n_freed * BLOCK_TOKENS <= max(0, first + 1 - window)
            for window, table in zip(sequence.windows, sequence.tables, strict=True)
        )
    )
