"""Result of tuning an adapter, as a table."""

from __future__ import annotations

from dataclasses import dataclass

from gpu.info import AdapterInfo
from gpu.tuning.policy_choices import PolicyChoice, policy_choices
from gpu.webgpu.tiling import Tuning


@dataclass(frozen=True, slots=True)
class AutotuneRow:
    """Speed of one kind of products with the default tiles and with the best others.

    products      name
    gflops        10⁹ operations per second with the default; a multiply-add counts as two
    default       its tiles
    best          tiles of the fastest other candidate; "": none could be measured
    speedup       of its products, relative to the default's
    step_speedup  of whole steps; None: not measured, because products alone decided
    chosen        whether it replaces the default
    note          why there is no figure, or ""
    """

    products: str
    gflops: float
    default: str
    best: str
    speedup: float | None
    step_speedup: float | None
    chosen: bool
    note: str = ""


@dataclass(frozen=True, slots=True)
class AutotuneResult:
    """Autotuning table of one adapter.

    rows    kinds of products
    faults  lines about candidates with wrong results
    n_late  candidates for which the time was too short
    chosen  the tuning
    stored  whether it was stored; None: nothing was to be stored
    """

    device: AdapterInfo
    rows: tuple[AutotuneRow, ...]
    faults: tuple[str, ...]
    n_late: int
    chosen: Tuning
    stored: bool | None

    def choices(self) -> tuple[PolicyChoice, ...]:
        """Return how the engine uses the adapter with this result, and why."""
        return policy_choices(self.device, None if self.stored is None else self.chosen)
