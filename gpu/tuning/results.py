"""What a probe of an adapter found: speeds, the choice among them, and a table for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpu.runner import DeviceInfo
from gpu.webgpu.tiling import Tuning

MARGIN = 1.03
"""What is faster by less is taken for equal."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds of a product of one row, and of one of many."""

    decode: float
    prefill: float


def choose(default: Tuning, speeds: Mapping[Tuning, Speed]) -> Tuning:
    """The tuning that decodes fastest, unless it loses more in prefill than it wins; among those
    that are equal within `MARGIN`, the fastest in prefill; among those that are equal there too,
    the one that differs least from `default`, which must be among them."""
    usual = speeds[default]

    def cost(speed: Speed) -> float:
        return speed.decode / usual.decode * max(1.0, speed.prefill / usual.prefill)

    least = min(cost(speed) for speed in speeds.values())
    near = {t: s for t, s in speeds.items() if cost(s) <= least * MARGIN}
    fastest = min(speed.prefill for speed in near.values())
    equal = [t for t, s in near.items() if s.prefill <= fastest * MARGIN]
    return min(equal, key=lambda t: (t.changes(default), cost(speeds[t])))


@dataclass(frozen=True, slots=True)
class Measured:
    """`speeds` of the candidates that ran right, the default first; `faults`: what was wrong with
    others; `chosen`: the best; `n_candidates`: how many there are."""

    speeds: Mapping[Tuning, Speed]
    faults: Mapping[Tuning, str]
    chosen: Tuning
    n_candidates: int


@dataclass(frozen=True, slots=True)
class ProbedRow:
    """A candidate: 10⁹ weights a second in decode, 10⁹ operations a second in prefill (a
    multiply-add counts as two), None where decode had decided."""

    name: str
    decode_gweights: float
    prefill_gflops: float | None
    chosen: bool


@dataclass(frozen=True, slots=True)
class Probed:
    """The table of one adapter. `faults`: lines about candidates with wrong results; `n_left`: how
    many candidates the time was too short for; `chosen`: the best; `kept`: is it remembered?
    `products`: the product with q8 weights, with rows of float32 and of bytes."""

    device: DeviceInfo
    rows: tuple[ProbedRow, ...]
    faults: tuple[str, ...]
    n_left: int
    chosen: Tuning
    kept: bool
    products: tuple[ProbedRow, ...] = ()

    @classmethod
    def of(
        cls, device: DeviceInfo, measured: Measured, decode: int, prefill: int, *, kept: bool
    ) -> Probed:
        """`decode`, `prefill`: multiply-adds of the products."""
        rows = (
            ProbedRow(
                str(tuning),
                decode / speed.decode / 1e9,
                2 * prefill / speed.prefill / 1e9,
                tuning == measured.chosen,
            )
            for tuning, speed in measured.speeds.items()
        )
        faults = (f"{tuning}: {fault}" for tuning, fault in measured.faults.items())
        n_left = measured.n_candidates - len(measured.speeds) - len(measured.faults)
        return cls(device, tuple(rows), tuple(faults), n_left, measured.chosen, kept)
