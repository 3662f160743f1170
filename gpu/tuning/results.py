"""Results of autotuning an adapter: speeds, the choice among them, and a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpu.info import AdapterInfo
from gpu.tuning.policy_choices import PolicyChoice, policy_choices
from gpu.webgpu.tiling import Tuning

MARGIN = 1.03
"""Speeds within this factor count as equal."""


@dataclass(frozen=True, slots=True)
class MatmulSpeed:
    """Seconds of a matmul of one row, and of one of many."""

    decode: float
    prefill: float


def choose(default: Tuning, speeds: Mapping[Tuning, MatmulSpeed]) -> Tuning:
    """Return the tuning that decodes fastest, unless it loses more in prefill than it wins.

    Among equals (within `MARGIN`) the fastest in prefill; among equals there, too, the one that
    differs least from `default`. `speeds` must contain `default`.
    """
    usual = speeds[default]

    def cost(speed: MatmulSpeed) -> float:
        return speed.decode / usual.decode * max(1.0, speed.prefill / usual.prefill)

    least = min(cost(speed) for speed in speeds.values())
    near = {t: s for t, s in speeds.items() if cost(s) <= least * MARGIN}
    fastest = min(speed.prefill for speed in near.values())
    equal = [t for t, s in near.items() if s.prefill <= fastest * MARGIN]
    return min(equal, key=lambda t: (t.changes(default), cost(speeds[t])))


@dataclass(frozen=True, slots=True)
class CandidateSpeeds:
    """Measurement of the candidates.

    speeds        candidates with right results, the default first
    faults        what was wrong with the results of others
    chosen        the best
    n_candidates  all candidates, measured or not
    """

    speeds: Mapping[Tuning, MatmulSpeed]
    faults: Mapping[Tuning, str]
    chosen: Tuning
    n_candidates: int


@dataclass(frozen=True, slots=True)
class AutotuneRow:
    """Table row of a candidate: 10⁹ weights per second in decode, 10⁹ operations per second in
    prefill (a multiply-add counts as two; None if decode already decided)."""

    name: str
    decode_gweights: float
    prefill_gflops: float | None
    chosen: bool


@dataclass(frozen=True, slots=True)
class AutotuneResult:
    """Autotuning table of one adapter.

    rows         candidates that ran right
    faults       lines about candidates with wrong results
    n_skipped    candidates for which the time was too short
    chosen       the best tuning
    stored       whether it was stored; None: the device's policy takes no measured tuning
    activations  the matmul with q8 weights, with float32 and with int8 rows
    """

    device: AdapterInfo
    rows: tuple[AutotuneRow, ...]
    faults: tuple[str, ...]
    n_skipped: int
    chosen: Tuning
    stored: bool | None
    activations: tuple[AutotuneRow, ...] = ()

    def choices(self) -> tuple[PolicyChoice, ...]:
        """Return how the engine uses the adapter with this result, and why."""
        return policy_choices(self.device, self.chosen)

    @classmethod
    def of(
        cls,
        device: AdapterInfo,
        measured: CandidateSpeeds,
        decode: int,
        prefill: int,
        *,
        stored: bool | None,
    ) -> AutotuneResult:
        """Make the table; `decode` and `prefill` are the multiply-adds of the matmuls."""
        rows = (
            AutotuneRow(
                str(tuning),
                decode / speed.decode / 1e9,
                2 * prefill / speed.prefill / 1e9,
                tuning == measured.chosen,
            )
            for tuning, speed in measured.speeds.items()
        )
        faults = (f"{tuning}: {fault}" for tuning, fault in measured.faults.items())
        n_skipped = measured.n_candidates - len(measured.speeds) - len(measured.faults)
        return cls(device, tuple(rows), tuple(faults), n_skipped, measured.chosen, stored)
