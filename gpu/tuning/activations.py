"""Whether products with q8 and q4 weights are faster on a device when their rows are bytes.

Measured on q8, cut as was chosen, with the dispatch that rounds the rows (`gpu.ops.byte_rows`):
bytes have to pay for it. One choice goes for all such products, of few rows and of many: the bits
of a token must not depend on how it came to be computed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from gpu.tuning.probed import MARGIN, ProbedRow
from gpu.tuning.product_timer import N_ROWS, Shape, Trial
from gpu.webgpu.tiling import Tuning

LEAST_GAIN = 1.1
"""How many times as fast decode must be with bytes: they cost a little of the model's quality."""
ROUNDS = 5


class Timer(Protocol):
    """What is needed of `gpu.tuning.product_timer.ProductTimer`, with q8 weights."""

    def begin(self, trial: Trial) -> str: ...
    def seconds(self, trial: Trial) -> float: ...


@dataclass(frozen=True, slots=True)
class Products:
    """Seconds of a product by its shape, with rows of float32 and of bytes, and what was wrong with
    one; without prefill where decode has decided."""

    floats: dict[Shape, float] = field(default_factory=dict)
    bytes: dict[Shape, float] = field(default_factory=dict)
    fault: str = ""

    @property
    def gains(self) -> dict[Shape, float]:
        """How many times as fast bytes are."""
        return {shape: self.floats[shape] / self.bytes[shape] for shape in self.bytes}

    @property
    def bytes_pay(self) -> bool:
        """Are bytes faster in decode and no slower in prefill?"""
        gains = self.gains
        if self.fault or gains.keys() != N_ROWS.keys():
            return False
        return gains["decode"] >= LEAST_GAIN and gains["prefill"] * MARGIN >= 1

    def rows(self, multiply_adds: Mapping[Shape, int]) -> tuple[ProbedRow, ...]:
        """For people; `multiply_adds` of one product of a shape."""
        return tuple(
            ProbedRow(
                f"q8 × {name}",
                multiply_adds["decode"] / seconds["decode"] / 1e9,
                2 * multiply_adds["prefill"] / seconds["prefill"] / 1e9
                if "prefill" in seconds
                else None,
                chosen,
            )
            for name, seconds, chosen in (
                ("float32", self.floats, not self.bytes_pay),
                ("bytes", self.bytes, self.bytes_pay),
            )
            if "decode" in seconds
        )


def measure_products(
    timer: Timer,
    tuning: Tuning,
    deadline: float = math.inf,
    clock: Callable[[], float] = time.perf_counter,
) -> Products:
    """Each product is timed once at least, and again until `deadline` by `clock`. Raises
    DeviceError when the product of float32 rows does not run."""
    found = Products()
    for shape in N_ROWS:
        floats = Trial.of(shape, replace(tuning, bytes=False))
        as_bytes = Trial.of(shape, replace(tuning, bytes=True))
        fault = timer.begin(floats) or timer.begin(as_bytes)
        if fault:
            return replace(found, fault=fault)
        rounds = [(timer.seconds(floats), timer.seconds(as_bytes))]
        while len(rounds) < ROUNDS and clock() < deadline:
            rounds.append((timer.seconds(floats), timer.seconds(as_bytes)))
        found.floats[shape], found.bytes[shape] = map(min, zip(*rounds, strict=True))
        if found.gains["decode"] < LEAST_GAIN:
            break
    return found
