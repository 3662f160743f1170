"""Measures which cut of the matrix product is best on an adapter, once, and remembers it.

Two products stand for a model (`gpu.tuning.product_timer`): one of a single row, as in decoding,
and one of many, as in prefill. Every candidate of `gpu.webgpu.tiling` is compiled, checked against
the default's results and timed, in turns with the others, within a budget; what is nearest the
default comes first, so that a slow compiler costs the unlikely candidates. Then it is measured
whether rows should be bytes where weights are q8 or q4 (`gpu.tuning.products`). The choices are
kept by adapter, driver and kernels (`gpu.tuning.saved`).

Tiles change no result, but `strands` and `trade` change the order of sums: after the cache was
cleared or the driver changed, another choice may change the last bits of logits. `bytes` changes
more: what it costs is measured by `tokenglass perplexity`.
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

from gpu.ops.operands import lib_of_bytes
from gpu.runner import DeviceInfo
from gpu.tuning import saved
from gpu.tuning.probed import Measured, Probed, Speed, choose
from gpu.tuning.product_timer import N_ROWS, ProductTimer, Trial
from gpu.tuning.products import measure_products
from gpu.tuning.saved import Key
from gpu.webgpu.device import Device, stand_ins
from gpu.webgpu.kernels import compose
from gpu.webgpu.tiling import GPU, SOFTWARE, Tuning, candidates

BUDGET_S = 3.0
CUT_SHARE = 0.6
"""Of the budget, for how products are cut; the rest is for what they are given."""
COMPILE_SHARE = 0.9
"""Of the time for cuts; the rest is for timing again what is near the best."""
NEAR = 1.25
"""What is slower by more than this factor at first is not timed again."""
ROUNDS = 8

log = logging.getLogger(__name__)


class Timer(Protocol):
    """What the probe needs of `gpu.tuning.product_timer.ProductTimer`."""

    def begin(self, trial: Trial) -> str: ...
    def seconds(self, trial: Trial) -> float: ...


def measure(
    default: Tuning, timer: Timer, deadline: float, clock: Callable[[], float] = time.perf_counter
) -> Measured:
    """Time the candidates beside `default` until `deadline` by `clock`.

    The default is always timed; no other is begun that would pass the deadline if it took as long
    as the slowest of its shape so far. Raises DeviceError when the default does not run.
    """
    tunings = candidates(default)
    times: dict[Trial, float] = {}
    faults: dict[Trial, str] = {}
    compiled_by = clock() + COMPILE_SHARE * (deadline - clock())
    slowest = dict.fromkeys(N_ROWS, 0.0)
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
        trials = [Trial.of(shape, tuning) for shape in N_ROWS]
        if found := [faults[trial] for trial in trials if trial in faults]:
            wrong[tuning] = found[0]
        elif all(trial in times for trial in trials):
            speeds[tuning] = Speed(*(times[trial] for trial in trials))
    return Measured(speeds, wrong, choose(default, speeds), len(tunings))


def probe(device: Device, budget_s: float = BUDGET_S) -> Probed:
    """Measure for about `budget_s` seconds how products are cut, the device's own tuning counting
    as the default, and whether their rows are bytes; keep the choices for `tuned`. What was begun
    is ended: a slow compiler or device may pass the budget by the last of its trials."""
    began = time.perf_counter()
    timer = ProductTimer(device, device.tuning)
    try:
        measured = measure(device.tuning, timer, began + CUT_SHARE * budget_s)
    finally:
        timer.close()
    found = Probed.of(
        device.info,
        measured,
        timer.multiply_adds("decode"),
        timer.multiply_adds("prefill"),
        kept=False,
    )
    probed = _with_products(device, found, began + budget_s)
    kept = not device.checked and saved.write(key_of(device.info), probed.chosen)
    probed = replace(probed, kept=kept)
    for fault in probed.faults:
        log.warning("%s: left out: %s", device.info.name, fault)
    log.info("%s: chose %s of %d candidates", device.info.name, probed.chosen, len(probed.rows))
    return probed


def _with_products(device: Device, probed: Probed, deadline: float) -> Probed:
    """With what products of q8 weights are given, chosen as well."""
    timer = ProductTimer(device, probed.chosen, "q8")
    try:
        products = measure_products(timer, probed.chosen, deadline)
    finally:
        timer.close()
    faults = (f"q8 × bytes: {products.fault}",) if products.fault else ()
    return replace(
        probed,
        faults=(*probed.faults, *faults),
        chosen=replace(probed.chosen, bytes=products.bytes_pay),
        products=products.rows({shape: timer.multiply_adds(shape) for shape in N_ROWS}),
    )


def probe_adapter(adapter: str | None) -> Probed:
    """`probe` on an adapter that is opened for it, as `Device.open` takes it."""
    device = Device.open(adapter, checked=False)
    try:
        return probe(device)
    finally:
        device.close()


def tuned(
    device: Device, progress: Callable[[float, str], None] = lambda fraction, message: None
) -> Device:
    """`device` with the tuning kept for it, measured now if there is none.

    Not measured are a checked device, which is for finding errors, and one whose tuning could not
    be kept: the same seed should give the same text at the next start.
    """
    if device.checked:
        return device
    kept = kept_tuning(device.info)
    if kept is None or (kept.trade and not device.tuning.trade):
        if not saved.writable():
            return device
        progress(0.0, f"measuring kernels on {device.info.name}")
        kept = probe(device).chosen
    return replace(device, tuning=kept)


def kept_tuning(info: DeviceInfo) -> Tuning | None:
    """What was measured on an adapter before; None for nothing."""
    return saved.read(key_of(info), candidates(_most_capable(info.software)))


def key_of(info: DeviceInfo) -> Key:
    """What a measurement on this adapter holds for."""
    return Key(
        info.name,
        info.driver,
        info.backend,
        version("wgpu"),
        _digest(info.software, **stand_ins(info)),
    )


@cache
def _digest(software: bool, **of_device: str) -> str:
    """Of the sources of the products and of all candidates."""
    digest = hashlib.sha256(repr(candidates(_most_capable(software))).encode())
    of_floats = ({"weight": "weight_f16", "x_tile": f"x_tile_{how}"} for how in ("lanes", "loads"))
    for lib in (*of_floats, lib_of_bytes("q8")):
        digest.update(compose("matmul", {}, of_device | lib).encode())
    for before in ("to_bytes", "norm_parts"):
        digest.update(compose(before, {}, of_device).encode())
    return digest.hexdigest()


def _most_capable(software: bool) -> Tuning:
    """The default whose candidates are all those of the kind."""
    return SOFTWARE if software else GPU


def _trials(tunings: Iterable[Tuning]) -> Iterator[Trial]:
    """Every product that these tunings need, once, in their order."""
    seen: set[Trial] = set()
    for tuning in tunings:
        for shape in N_ROWS:
            trial = Trial.of(shape, tuning)
            if trial not in seen:
                seen.add(trial)
                yield trial


def _refine(
    times: dict[Trial, float],
    default: Tuning,
    timer: Timer,
    deadline: float,
    clock: Callable[[], float],
) -> None:
    """Lower `times` to the least of several rounds, in turns, of what is near the best of its
    shape, and of the default."""
    for _ in range(ROUNDS):
        best = {s: min(t for trial, t in times.items() if trial.shape == s) for s in N_ROWS}
        for trial, before in list(times.items()):
            if before > NEAR * best[trial.shape] and trial.tuning != default:
                continue
            if clock() >= deadline:
                return
            times[trial] = min(before, timer.seconds(trial))
