"""Measures the best matmul tiling of an adapter once, and stores it.

Two matmuls represent a model (`gpu.tuning.matmul_timer`): one row, as in decoding, and many rows,
as in prefill. Every candidate of `gpu.webgpu.tiling` is compiled, checked against the default's
result and timed, interleaved with the others, within a budget. Candidates nearest the default come
first, so that a slow compiler only drops unlikely ones. Then int8 activations are measured for q8
and q4 weights (`gpu.tuning.activations`). `gpu.tuning.store` keeps the result by adapter, driver
and kernels.

Tiles do not change results, but `split_k` and `subgroup_shuffle` change the order of sums: another
choice, after the cache was cleared or the driver changed, may change the last bits of logits.
`q8_activations` changes more; `tokenglass perplexity` measures how much.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from typing import Protocol

from gpu.info import AdapterInfo
from gpu.ops.matmul_input import q8_lib
from gpu.tuning import store
from gpu.tuning.activations import measure_activations
from gpu.tuning.matmul_timer import SHAPES, MatmulTimer, MatmulTrial
from gpu.tuning.results import AutotuneResult, CandidateSpeeds, MatmulSpeed, choose
from gpu.tuning.store import MeasurementKey
from gpu.tuning.timestamp_cost import timestamp_us
from gpu.webgpu.device import Device
from gpu.webgpu.device_policy import DevicePolicy
from gpu.webgpu.kernels import compose
from gpu.webgpu.tiling import Q8_TILE_LIBS, TILE_LIBS, Tuning, candidates

BUDGET_S = 3.0
CUT_SHARE = 0.6
"""Share of the budget for tiles; the rest is for activations."""
COMPILE_SHARE = 0.9
"""Share of the time for tiles in which candidates are compiled; the rest repeats the best ones."""
NEAR = 1.25
"""Candidates slower than the best by more than this factor are timed only once."""
ROUNDS = 8

log = logging.getLogger(__name__)


class Timer(Protocol):
    """The part of `gpu.tuning.matmul_timer.MatmulTimer` used here."""

    def begin(self, trial: MatmulTrial) -> str: ...
    def seconds(self, trial: MatmulTrial) -> float: ...


def measure(
    default: Tuning, timer: Timer, deadline: float, clock: Callable[[], float] = time.perf_counter
) -> CandidateSpeeds:
    """Time the candidates beside `default` until `deadline` by `clock`.

    The default is always timed. Another candidate only starts if it would meet the deadline when it
    takes as long as the slowest of its shape so far. Raises DeviceError if the default does not
    run.
    """
    tunings = candidates(default)
    times: dict[MatmulTrial, float] = {}
    faults: dict[MatmulTrial, str] = {}
    compiled_by = clock() + COMPILE_SHARE * (deadline - clock())
    slowest = dict.fromkeys(SHAPES, 0.0)
    for trial in _trials(tunings):
        began = clock()
        if trial.tuning != default and began + slowest[trial.shape] > compiled_by:
            continue
        if fault := timer.begin(trial):
            faults[trial] = fault
        else:
            times[trial] = timer.seconds(trial)
        slowest[trial.shape] = max(slowest[trial.shape], clock() - began)
    _refine(times, default, timer, deadline, clock)
    speeds, wrong = {}, {}
    for tuning in tunings:
        trials = [MatmulTrial.of(shape, tuning) for shape in SHAPES]
        if found := [faults[trial] for trial in trials if trial in faults]:
            wrong[tuning] = found[0]
        elif all(trial in times for trial in trials):
            speeds[tuning] = MatmulSpeed(*(times[trial] for trial in trials))
    return CandidateSpeeds(speeds, wrong, choose(default, speeds), len(tunings))


def autotune(device: Device, budget_s: float = BUDGET_S) -> AutotuneResult:
    """Measure tiles and int8 activations for about `budget_s` seconds, and store the result for
    `load_tuning` if the device's policy `autotunes`.

    The device's own tuning is the default. A trial that has started is finished, so a slow compiler
    or device may exceed the budget by one trial.
    """
    began = time.perf_counter()
    timer = MatmulTimer(device, device.tuning)
    try:
        measured = measure(device.tuning, timer, began + CUT_SHARE * budget_s)
    finally:
        timer.close()
    result = AutotuneResult.of(
        device.info,
        measured,
        timer.multiply_adds("decode"),
        timer.multiply_adds("prefill"),
        stored=False,
    )
    result = _with_activations(device, result, began + budget_s)
    stored = None
    if device.policy.autotunes:
        stored = not device.checked and store.write(key_of(device.info), result.chosen)
    result = replace(result, stored=stored)
    for fault in result.faults:
        log.warning("%s: left out: %s", device.info.name, fault)
    log.info("%s: chose %s of %d candidates", device.info.name, result.chosen, len(result.rows))
    return result


def _with_activations(device: Device, result: AutotuneResult, deadline: float) -> AutotuneResult:
    """Return `result` with the activations of matmuls with q8 weights chosen, too."""
    timer = MatmulTimer(device, result.chosen, "q8")
    try:
        activations = measure_activations(timer, result.chosen, deadline)
    finally:
        timer.close()
    faults = (f"q8 × q8: {activations.fault}",) if activations.fault else ()
    return replace(
        result,
        faults=(*result.faults, *faults),
        chosen=replace(result.chosen, q8_activations=activations.q8_pays),
        activations=activations.rows({shape: timer.multiply_adds(shape) for shape in SHAPES}),
    )


def autotune_adapter(adapter: str | None) -> AutotuneResult:
    """Open an adapter (as for `Device.open`), autotune it, and close it."""
    device = Device.open(adapter, checked=False)
    try:
        return autotune(device)
    finally:
        device.close()


def load_tuning(
    device: Device, progress: Callable[[float, str], None] = lambda fraction, message: None
) -> Device:
    """Return `device` with its stored tuning, measured now if there is none, or if its policy
    takes no measured one, with the cost of a timestamp, which is measured at each start.

    Returns it unchanged if it is checked (for debugging), or if a tuning could not be stored: the
    same seed should give the same text at the next start.
    """
    if device.checked:
        return device
    if not device.policy.autotunes:
        return replace(device, policy=device.policy.with_timestamp_cost(timestamp_us(device)))
    found = stored_tuning(device.info)
    if found is None or (found.subgroup_shuffle and not device.tuning.subgroup_shuffle):
        if not store.writable():
            return device
        progress(0.0, f"measuring kernels on {device.info.name}")
        found = autotune(device).chosen
    return replace(device, tuning=found)


def stored_tuning(info: AdapterInfo) -> Tuning | None:
    """Return the tuning that was measured to be the fastest on an adapter and stored; None: none
    was, or the adapter's policy takes no measured one."""
    policy = DevicePolicy.of(info)
    return store.read(key_of(info), candidates(policy.tuning)) if policy.autotunes else None


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
    """Return a digest of the candidates and of the sources of all measured kernels."""
    digest = hashlib.sha256(repr(candidates(default)).encode())
    of_floats = ({"weight": "weight_f16", **lib} for lib in TILE_LIBS.values())
    of_int8 = (q8_lib("q8") | lib for lib in Q8_TILE_LIBS.values())
    for lib in (*of_floats, *of_int8):
        digest.update(compose("matmul", {}, of_device | lib).encode())
    for before in ("quantize_activations", "rms_norm_split"):
        digest.update(compose(before, {}, of_device).encode())
    return digest.hexdigest()


def _trials(tunings: Iterable[Tuning]) -> Iterator[MatmulTrial]:
    """Yield every trial that these tunings need, once, in their order."""
    seen: set[MatmulTrial] = set()
    for tuning in tunings:
        for shape in SHAPES:
            trial = MatmulTrial.of(shape, tuning)
            if trial not in seen:
                seen.add(trial)
                yield trial


def _refine(
    times: dict[MatmulTrial, float],
    default: Tuning,
    timer: Timer,
    deadline: float,
    clock: Callable[[], float],
) -> None:
    """Lower `times` to the least of several interleaved rounds, for the default and for trials near
    the best of their shape."""
    for _ in range(ROUNDS):
        best = {s: min(t for trial, t in times.items() if trial.shape == s) for s in SHAPES}
        for trial, before in list(times.items()):
            if before > NEAR * best[trial.shape] and trial.tuning != default:
                continue
            if clock() >= deadline:
                return
            times[trial] = min(before, timer.seconds(trial))
