"""Size of prefill chunks: the token budget of a step (`max_num_batched_tokens` in vLLM), set by
measured times.

While no sequence decodes, a chunk takes at most `PREFILL_MS`, so that a cancel acts soon. Beside
decoding sequences, a step with chunks takes at most `MAX_PREFILL_SLOWDOWN` times as long as one
without, so that a long prompt slows the others down by that factor and no more. If that leaves
each of many prompts less time than a decoding sequence has, each gets as much: clients that come at
once do not wait for the one that was there first.

Prompts that came before any decoding sequence had its first token are read as if none decoded, if
all of them take `TOGETHER_MS` at most: a sequence that happened to be first among them would
otherwise write at the price of the others' first tokens.
"""

from __future__ import annotations

from gpu.engine.row_costs import RowCosts, rounded
from gpu.load_options import MAX_PREFILL_SLOWDOWN
from gpu.step import Step

PREFILL_MS = 200.0
TOGETHER_MS = 1000.0
"""Longest time that sequences are slowed by all prompts that came together with them."""
FIRST_CHUNK = 16
"""Rows of the first chunk, before the device's speed is known."""
FORGET = 0.998
"""See `RowCosts`; the device may have been busy with something else."""
DECODE = "decode"


class ChunkSizer:
    """Learns the times of steps; suggests how many rows of prompts the next one takes.
    `max_slowdown`: see `max_prefill_slowdown` of `gpu.load_options`."""

    def __init__(self, max_slowdown: float = MAX_PREFILL_SLOWDOWN) -> None:
        self._max_slowdown = max_slowdown
        # By the number of decoding sequences, rounded: costs of all rows of a step, of a chunk's.
        self._step_costs, self._chunk_costs = RowCosts(FORGET), RowCosts(FORGET)
        self._decode_costs = RowCosts(FORGET)
        self._known_shapes: set[tuple[int, int, bool, bool, bool]] = set()

    def rows(self, n_decoding: int, n_prompts: int, most: int) -> int:
        """Return how many rows the next chunks of `n_prompts` prompts have together, at most
        `most`, beside one row for each of `n_decoding` sequences."""
        alone = self.decode_cost(n_decoding) if n_decoding else None
        if alone is None:
            limit = PREFILL_MS
        else:
            fair = 1 + n_prompts / n_decoding
            if n_prompts > 1 and fair > self._max_slowdown:
                return self._fair_rows(n_decoding, min(PREFILL_MS, fair * alone), most)
            limit = min(PREFILL_MS, self._max_slowdown * alone)
        return self._chunk_costs.rows_within(n_decoding.bit_length(), limit, most, FIRST_CHUNK)

    def rows_together(self, n_left: int, most: int) -> int | None:
        """Return how many rows the next chunks have together, at most `most`, of prompts that came
        together and have `n_left` rows left; None if they take longer than `TOGETHER_MS`, or if
        that is not known."""
        n = self._chunk_costs.rows_within(0, PREFILL_MS, most, FIRST_CHUNK)
        ms = self._chunk_costs.expected(0, n)
        return n if ms is not None and ms * -(-n_left // n) <= TOGETHER_MS else None

    def _fair_rows(self, n_decoding: int, limit: float, most: int) -> int:
        """Return how many rows prompts have in a step of `limit` milliseconds. They fill the step
        up to the size of its plan at least, whose matmuls compute all its rows anyway."""
        n = self._step_costs.rows_within(
            n_decoding.bit_length(), limit, n_decoding + most, n_decoding + FIRST_CHUNK
        )
        return min(most, max(n, rounded(n_decoding + 1)) - n_decoding)

    def decode_cost(self, n: int) -> float | None:
        """Return the expected milliseconds of a step that decodes `n` rows; None if none was
        timed."""
        return self._decode_costs.expected(DECODE, n)

    def learn(self, step: Step, n_chunk: int, ms: float) -> None:
        """Record that a step with `n_chunk` rows of a prompt took `ms`. The first step of a shape
        does not count, because it records a plan and some drivers compile the shaders in it."""
        n_rows, n_samples = len(step.rows), len(step.samples)
        kind = (step.capture, step.interventions, step.loras)
        shape = (rounded(n_rows), n_samples and rounded(n_samples), *kind)
        if shape not in self._known_shapes:
            self._known_shapes.add(shape)
            return
        decoding = (n_rows - n_chunk).bit_length()
        self._step_costs.learn(decoding, n_rows, ms)
        if n_chunk:
            self._chunk_costs.learn(decoding, n_chunk, ms)
        else:
            self._decode_costs.learn(DECODE, n_rows, ms)
