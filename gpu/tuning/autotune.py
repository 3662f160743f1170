"""Measures which matmul tiles are fastest on an adapter, and stores them.

For each kind of products (`gpu.tuning.tile_choices`) candidates are compared with the default
(`gpu.tuning.compare`) on layers of a real size with random weights (`gpu.tuning.random_model`).
A candidate must make the products at least 5 % faster. On a GPU it must then also make whole steps
at least 2 % faster: on the first H100 tiles that had won product by product made steps slower.
`gpu.tuning.store` keeps the result by adapter, driver and kernels.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.metadata import version
from itertools import groupby

from gpu.info import AdapterInfo
from gpu.ops.matmul_input import q8_lib
from gpu.tuning import store
from gpu.tuning.compare import Comparison, Rounds, Timer, compare
from gpu.tuning.random_model import Procedure, ProductTimer, RandomModel, StepTimer
from gpu.tuning.results import AutotuneResult, AutotuneRow
from gpu.tuning.store import MeasurementKey
from gpu.tuning.tile_choices import TileChoice, may_choose, tile_choices
from gpu.tuning.timestamp_cost import timestamp_us
from gpu.webgpu.device import Device
from gpu.webgpu.device_policy import DevicePolicy
from gpu.webgpu.kernels import compose
from gpu.webgpu.tiling import Q8_TILE_LIBS, TILE_LIBS, Tuning

VERSION = 2
"""Of the procedure: results of others are not used."""
LEAST_STEP_GAIN = 1.02
"""Least speedup of whole steps that confirms a choice. Products are most of a step."""
PRODUCT_SHARE = 0.6
"""Share of the time of a choice for its products, where whole steps come after them."""

Progress = Callable[[float, str], None]
Clock = Callable[[], float]

log = logging.getLogger(__name__)


def no_progress(fraction: float, message: str) -> None:
    """Show nothing."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A choice that was made.

    tuning    with it; the default's fields unless both comparisons say that another is faster
    products  comparison of all candidates by their products
    steps     of the best by whole steps; None: products alone decided
    """

    tuning: Tuning
    products: Comparison
    steps: Comparison | None


@dataclass(frozen=True, slots=True)
class Chooser:
    """Makes choices with weights of one format.

    products  timer of products
    steps     makes a timer of whole steps, which confirm a choice; None: products decide
    """

    products: Timer
    steps: Callable[[], Timer] | None
    rounds: Rounds
    clock: Clock = time.perf_counter

    def choose(self, choice: TileChoice, tuning: Tuning, deadline: float) -> Chosen:
        """Compare the candidates of a choice with `tuning`."""
        share = 1.0 if self.steps is None else PRODUCT_SHARE
        by = self.clock() + share * (deadline - self.clock())
        candidates = choice.candidates(tuning)
        products = self._compare(self.products, choice, tuning, candidates, by)
        best = products.best(choice.least_gain)
        if best is None or self.steps is None:
            return Chosen(best or tuning, products, None)
        steps = self._compare(self.steps(), choice, tuning, [best], deadline)
        return Chosen(steps.best(LEAST_STEP_GAIN) or tuning, products, steps)

    def _compare(
        self,
        timer: Timer,
        choice: TileChoice,
        tuning: Tuning,
        candidates: list[Tuning],
        deadline: float,
    ) -> Comparison:
        return compare(timer, tuning, candidates, choice.rows, self.rounds, deadline, self.clock)


def autotune(
    device: Device, procedure: Procedure | None = None, progress: Progress = no_progress
) -> AutotuneResult:
    """Tune a device, and store the result for `load_tuning`; on a GPU only if other tiles than the
    default were confirmed. `procedure`: None: that of the kind of device.

    Takes about `procedure.budget_s`: a candidate that has begun is finished. Raises DeviceError if
    the default does not run, or there is no memory for the weights.
    """
    procedure = procedure or Procedure.of(device.info)
    end = time.perf_counter() + procedure.budget_s
    tuning, rows, faults, n_late = device.tuning, list[AutotuneRow](), list[str](), 0
    choices = tile_choices(tuning, device.policy.max_rows)
    for dtype, of_dtype in groupby(choices, key=lambda choice: choice.dtype):
        progress(len(rows) / len(choices), f"preparing weights in {dtype} for {device.info.name}")
        with closing(RandomModel(device, procedure, dtype)) as model:
            steps = cache(partial(StepTimer, model)) if procedure.confirms else None
            chooser = Chooser(ProductTimer(model), steps, procedure.rounds)
            for choice in of_dtype:
                done = len(rows) / len(choices)
                progress(done, f"measuring kernels on {device.info.name}: {choice.products}")
                now = time.perf_counter()
                deadline = now + (end - now) / (len(choices) - len(rows))
                chosen = chooser.choose(choice, tuning, deadline)
                rows.append(_row(choice, tuning, chosen, model.multiply_adds(choice.rows[0])))
                wrong = chosen.products.faults.items()
                faults += (f"{choice.describe(other)}: {fault}" for other, fault in wrong)
                n_late += chosen.products.n_late
                tuning = chosen.tuning
    for fault in faults:
        log.warning("%s: left out: %s", device.info.name, fault)
    log.info("%s: chose %s", device.info.name, tuning)
    stored = _store(device, tuning)
    return AutotuneResult(device.info, tuple(rows), tuple(faults), n_late, tuning, stored)


def _row(choice: TileChoice, default: Tuning, chosen: Chosen, multiply_adds: int) -> AutotuneRow:
    """Return the table row of a choice. `multiply_adds`: those with the first number of rows."""
    products, steps, first = chosen.products, chosen.steps, choice.rows[0]
    best = products.best() or next(iter(products.speedups), None)
    in_steps = steps.speedups.get(best) if steps and best else None
    step_speedup = in_steps[first] if in_steps else None
    note = ""
    if best is None:
        note = "not measurable" if products.n_moved else "not measured"
    elif steps and step_speedup is None:
        note = "steps not measurable" if steps.n_moved else "steps not measured"
    return AutotuneRow(
        choice.products,
        2 * multiply_adds / products.seconds[first] / 1e9,
        choice.describe(default),
        "" if best is None else choice.describe(best),
        None if best is None else products.speedups[best][first],
        step_speedup,
        chosen.tuning != default,
        note,
    )


def _store(device: Device, tuning: Tuning) -> bool | None:
    """Store a tuning; on a GPU delete what is stored if it is the default. Return what
    `AutotuneResult.stored` says."""
    key = key_of(device.info)
    if tuning == device.tuning and not device.policy.autotunes_at_start:
        store.forget(key)
        return None
    return not device.checked and store.write(key, tuning)


def autotune_adapter(adapter: str | None, progress: Progress = no_progress) -> AutotuneResult:
    """Open an adapter (as for `Device.open`), autotune it, and close it."""
    device = Device.open(adapter, checked=False)
    try:
        return autotune(device, progress=progress)
    finally:
        device.close()


def load_tuning(device: Device, progress: Progress = no_progress) -> Device:
    """Return `device` with its stored tuning. If there is none, a software device is measured now,
    and a GPU keeps its default. A GPU also gets the cost of a timestamp, measured at each start.

    Returns it unchanged if it is checked (for debugging), or if a tuning could not be stored: the
    same seed should give the same text at the next start.
    """
    if device.checked:
        return device
    at_start = device.policy.autotunes_at_start
    if not at_start:
        device = replace(device, policy=device.policy.with_timestamp_cost(timestamp_us(device)))
    found = stored_tuning(device.info)
    if found is None or (found.subgroup_shuffle and not device.tuning.subgroup_shuffle):
        if not at_start or not store.writable():
            return device
        found = autotune(device, progress=progress).chosen
    return replace(device, tuning=found)


def stored_tuning(info: AdapterInfo) -> Tuning | None:
    """Return the tuning that was measured to be the fastest on an adapter and stored, or None."""
    default = DevicePolicy.of(info).tuning
    return store.read(key_of(info), partial(may_choose, default))


def key_of(info: AdapterInfo) -> MeasurementKey:
    """Return the key of a measurement on this adapter."""
    policy = DevicePolicy.of(info)
    return MeasurementKey(
        info.name,
        info.driver,
        info.backend,
        version("wgpu"),
        _digest(policy.tuning, **policy.lib),
    )


@cache
def _digest(default: Tuning, **of_device: str) -> str:
    """Return a digest of the procedure's version, of the candidates and of the sources of all
    measured kernels."""
    digest = hashlib.sha256(repr((VERSION, default, tile_choices(default, 1))).encode())
    of_floats = ({"weight": "weight_f16", **lib} for lib in TILE_LIBS.values())
    of_int8 = (q8_lib("q8") | lib for lib in Q8_TILE_LIBS.values())
    for lib in (*of_floats, *of_int8):
        digest.update(compose("matmul", {}, of_device | lib).encode())
    digest.update(compose("quantize_activations", {}, of_device).encode())
    return digest.hexdigest()
