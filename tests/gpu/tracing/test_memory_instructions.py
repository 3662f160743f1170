"""Cache lines and bank conflicts of known access patterns."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gpu.tracing.instrument import Site, Space
from gpu.tracing.tracer import Trace
from tests.gpu.tracing.memory_instructions import SiteInstructions, footprint, instructions


def trace_of(
    index: Callable[[np.ndarray], np.ndarray], n_bytes: int, space: Space, n_lanes: int = 32
) -> Trace:
    """One access of every lane, at the index that `index` gives for it."""
    lane = np.arange(n_lanes)
    site = Site("a", space, "read", n_bytes, "a[i]")
    zeros = np.zeros(n_lanes, int)
    return Trace((site,), n_lanes, lane, zeros, zeros, index(lane))


def only(trace: Trace, wave: int = 32) -> SiteInstructions:
    (found,) = instructions(trace, wave)
    return found


@pytest.mark.parametrize(
    ("stride", "n_bytes", "lines"),
    [
        (1, 4, 1),  # neighbours read neighbouring words: one line
        (1, 16, 4),
        (2, 4, 2),
        (8, 4, 8),
        (32, 4, 32),  # a line each
        (0, 4, 1),  # all read one word
    ],
)
def test_lines_of_a_stride(stride: int, n_bytes: int, lines: int) -> None:
    found = only(trace_of(lambda lane: stride * lane, n_bytes, "storage"))
    assert (found.n_instructions, found.n_accesses) == (1, 32)
    assert found.n_lines == lines
    assert found.line_use == (32 if stride else 1) * n_bytes / (128 * lines)


@pytest.mark.parametrize(
    ("n_bytes", "stride", "conflict"),
    [
        (4, 1, 1),
        (4, 2, 2),
        (4, 32, 32),
        (4, 33, 1),
        (4, 0, 1),  # one word for all
        (8, 1, 1),
        (16, 1, 1),
        (16, 2, 2),
        (16, 8, 8),
    ],
)
def test_bank_conflicts_of_a_stride(n_bytes: int, stride: int, conflict: int) -> None:
    found = only(trace_of(lambda lane: stride * lane, n_bytes, "workgroup"))
    assert found.n_ideal_cycles == n_bytes // 4
    assert found.conflict == conflict


def test_waves_are_instructions_of_their_own() -> None:
    trace = trace_of(lambda lane: lane, 4, "storage", n_lanes=128)
    assert only(trace, 32).n_instructions == 4
    assert only(trace, 64).n_instructions == 2
    assert only(trace, 64).n_lines == 4
    assert only(trace_of(lambda lane: lane, 4, "workgroup", 64), 64).n_cycles == 2


def test_the_nth_accesses_of_the_lanes_are_one_instruction() -> None:
    lane = np.repeat(np.arange(4), 3)
    turn = np.tile(np.arange(3), 4)
    site = Site("a", "storage", "read", 4, "a[i]")
    trace = Trace((site,), 4, lane, lane * 0, lane * 0, 1000 * turn + lane)
    found = only(trace)
    assert (found.n_instructions, found.n_lines) == (3, 3)


def test_a_footprint_counts_everything_once() -> None:
    lane = np.arange(64) // 2
    site = Site("a", "storage", "read", 4, "a[i]")
    trace = Trace((site,), 64, np.arange(64), lane * 0, lane * 0, 2 * lane)
    found = footprint(trace, "a")
    assert (found.n_bytes, found.n_lines) == (128, 2)
    assert found.line_use == 0.5
