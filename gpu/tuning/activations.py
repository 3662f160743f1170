"""Measures whether int8 activations make matmuls with q8 and q4 weights faster on a device.

Measured with q8 weights and the chosen tiles, including the dispatch of
`gpu.ops.quantize_activations`. One choice applies to steps of few rows and of many: the bits of a
token must not depend on the step it was computed in.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from gpu.tuning.matmul_timer import SHAPES, MatmulTrial, Shape
from gpu.tuning.results import MARGIN, AutotuneRow
from gpu.webgpu.tiling import Tuning

LEAST_GAIN = 1.1
"""Least speedup of decode that is worth int8's small loss of quality."""
ROUNDS = 5


class Timer(Protocol):
    """The part of `gpu.tuning.matmul_timer.MatmulTimer` used here, with q8 weights."""

    def begin(self, trial: MatmulTrial) -> str: ...
    def seconds(self, trial: MatmulTrial) -> float: ...


@dataclass(frozen=True, slots=True)
class ActivationTimings:
    """Seconds of a matmul by shape, with float32 and int8 rows, and the fault of a wrong result.

    Prefill is missing if decode already decided.
    """

    f32: dict[Shape, float] = field(default_factory=dict)
    q8: dict[Shape, float] = field(default_factory=dict)
    fault: str = ""

    @property
    def gains(self) -> dict[Shape, float]:
        """Speedup of int8 over float32 by shape."""
        return {shape: self.f32[shape] / self.q8[shape] for shape in self.q8}

    @property
    def q8_pays(self) -> bool:
        """True if int8 is faster in decode and no slower in prefill."""
        gains = self.gains
        if self.fault or gains.keys() != set(SHAPES):
            return False
        return gains["decode"] >= LEAST_GAIN and gains["prefill"] * MARGIN >= 1

    def rows(self, multiply_adds: Mapping[Shape, int]) -> tuple[AutotuneRow, ...]:
        """Return table rows; `multiply_adds` are those of one matmul by shape."""
        return tuple(
            AutotuneRow(
                f"q8 × {name}",
                multiply_adds["decode"] / seconds["decode"] / 1e9,
                2 * multiply_adds["prefill"] / seconds["prefill"] / 1e9
                if "prefill" in seconds
                else None,
                chosen,
            )
            for name, seconds, chosen in (
                ("f32", self.f32, not self.q8_pays),
                ("q8", self.q8, self.q8_pays),
            )
            if "decode" in seconds
        )


def measure_activations(
    timer: Timer,
    tuning: Tuning,
    deadline: float = math.inf,
    clock: Callable[[], float] = time.perf_counter,
) -> ActivationTimings:
    """Time each matmul at least once, and again until `deadline` by `clock`. Raises DeviceError if
    the float32 matmul does not run."""
    timings = ActivationTimings()
    for shape in SHAPES:
        floats = MatmulTrial.of(shape, replace(tuning, q8_activations=False))
        as_q8 = MatmulTrial.of(shape, replace(tuning, q8_activations=True))
        fault = timer.begin(floats) or timer.begin(as_q8)
        if fault:
            return replace(timings, fault=fault)
        rounds = [(timer.seconds(floats), timer.seconds(as_q8))]
        while len(rounds) < ROUNDS and clock() < deadline:
            rounds.append((timer.seconds(floats), timer.seconds(as_q8)))
        timings.f32[shape], timings.q8[shape] = map(min, zip(*rounds, strict=True))
        if timings.gains["decode"] < LEAST_GAIN:
            break
    return timings
