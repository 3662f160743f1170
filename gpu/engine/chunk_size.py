"""Size of a prompt's chunks: as large as the runs that write allow.

While nobody writes, a chunk takes at most `PREFILL_MS`, so that a cancel acts soon. Beside runs
that write, a step with a chunk takes at most `PREFILL_STRETCH` times as long as one without, so
that a long prompt slows the others down by that factor and no more.
"""

from __future__ import annotations

from gpu.engine.row_costs import RowCosts
from gpu.load_options import PREFILL_STRETCH
from gpu.step import Step

PREFILL_MS = 200.0
DECODE = "decode"
FIRST_CHUNK = 16
"""Rows of the first chunk, before the device's speed is known."""
FORGET = 0.998
"""See `RowCosts`; the device may have been busy with something else."""


class ChunkSizer:
    """Learns the times of steps; suggests how many rows of a prompt the next one takes."""

    def __init__(self, stretch: float = PREFILL_STRETCH) -> None:
        self._stretch = stretch
        self._costs = RowCosts(FORGET)
        self._decode_costs = RowCosts(FORGET)
        self._known_shapes: set[tuple[int, bool, bool, bool, bool]] = set()

    def rows(self, n_writers: int, most: int) -> int:
        """Return the rows of the next chunk, beside one for each of `n_writers`."""
        limit = PREFILL_MS
        if n_writers and (alone := self.decode_cost(n_writers)) is not None:
            limit = min(limit, self._stretch * alone)
        return self._costs.rows_within(n_writers.bit_length(), limit, most, FIRST_CHUNK)

    def decode_cost(self, n: int) -> float | None:
        """Return the expected milliseconds of a step that decodes `n` rows; None if none was
        timed."""
        return self._decode_costs.expected(DECODE, n)

    def learn(self, step: Step, n_chunk: int, ms: float) -> None:
        """Record that a step with `n_chunk` rows of a prompt took `ms`. The first step of a shape
        does not count, because some drivers compile the shaders in it."""
        kind = (step.capture, step.interventions, step.loras)
        shape = (len(step.rows).bit_length(), bool(step.samples), *kind)
        if shape not in self._known_shapes:
            self._known_shapes.add(shape)
        elif n_chunk:
            n_writers = len(step.rows) - n_chunk
            self._costs.learn(n_writers.bit_length(), n_chunk, ms)
        else:
            self._decode_costs.learn(DECODE, len(step.rows), ms)
