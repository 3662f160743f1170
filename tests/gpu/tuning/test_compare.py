"""Choice of tiles on devices whose speed changes while they are measured."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import pytest

from gpu.errors import DeviceError
from gpu.tuning.autotune import Chooser, Chosen
from gpu.tuning.random_model import GPU_PROCEDURE, SOFTWARE_PROCEDURE
from gpu.tuning.tile_choices import TileChoice, tile_choices
from gpu.webgpu.tiling import GPU, SOFTWARE, Tuning

ONE_ROW = tile_choices(GPU, max_rows=512)[0]
FEW_ROWS = tile_choices(GPU, max_rows=512)[1]
OTHER = ONE_ROW.candidates(GPU)[2]
COMPILING_S = 0.2


@dataclass
class FakeGpu:
    """A GPU with a clock of its own, whose speed follows from how long it was busy.

    ramp_s  seconds of load in which its clocks rise from a fifth of their speed; compiling, in
            which it waits, lets them fall
    moves   factor on the time of a timing, by its number
    """

    ramp_s: float = 0.0
    moves: Callable[[int], float] = lambda number: 1.0
    compiling_s: float = COMPILING_S
    now: float = 0.0
    busy_s: float = 0.0
    n_timed: int = 0

    def clock(self) -> float:
        return self.now

    def compile(self) -> None:
        self.now += self.compiling_s
        self.busy_s = 0.0

    def run(self, seconds: float) -> float:
        """Run what takes so long at full speed; return how long it took."""
        risen = min(1.0, self.busy_s / self.ramp_s) if self.ramp_s else 1.0
        took = seconds / (0.2 + 0.8 * risen) * self.moves(self.n_timed)
        self.now += took
        self.busy_s += took
        self.n_timed += 1
        return took


@dataclass
class FakeTimer:
    """Work of 5 ms on a device, less where `speedups` (by tuning, or tuning and rows) say so.
    `wrong`: tunings with wrong results."""

    gpu: FakeGpu
    speedups: Mapping[Tuning | tuple[Tuning, int], float] = field(default_factory=dict)
    wrong: Mapping[Tuning, str] = field(default_factory=dict)
    begun: list[tuple[Tuning, int]] = field(default_factory=list)

    def begin(self, tuning: Tuning, n_rows: int) -> str:
        self.begun.append((tuning, n_rows))
        self.gpu.compile()
        return self.wrong.get(tuning, "")

    def warm_up(self, tuning: Tuning, n_rows: int, seconds: float) -> None:
        until = self.gpu.now + seconds
        while self.gpu.now < until:
            self.seconds(tuning, n_rows)

    def seconds(self, tuning: Tuning, n_rows: int) -> float:
        assert (tuning, n_rows) in self.begun
        by_rows = self.speedups.get((tuning, n_rows), 1.0)
        return self.gpu.run(5e-3 / self.speedups.get(tuning, by_rows))


def choose(
    products: FakeTimer,
    steps: FakeTimer | None = None,
    choice: TileChoice = ONE_ROW,
    seconds: float = 60.0,
) -> Chosen:
    """Make a choice; `steps`: whole steps, as fast as the products if None."""
    gpu = products.gpu
    chooser = Chooser(products, lambda: steps or products, GPU_PROCEDURE.rounds, gpu.clock)
    return chooser.choose(choice, GPU, gpu.now + seconds)


def in_turn(timer: FakeTimer) -> dict[Tuning, float]:
    """Time each tuning once after it was compiled, as a tuner does that fits no GPU."""
    times = {}
    for tuning in (GPU, *ONE_ROW.candidates(GPU)):
        timer.begin(tuning, 1)
        times[tuning] = min(timer.seconds(tuning, 1) for _ in range(3))
    return times


# ---- the clocks -----------------------------------------------------------------------------


@pytest.mark.parametrize("ramp_s", [0.1, 0.3, 1.0, 5.0, 60.0])
def test_while_the_clocks_rise_the_default_is_chosen(ramp_s: float) -> None:
    chosen = choose(FakeTimer(FakeGpu(ramp_s)))
    assert chosen.tuning == GPU
    assert chosen.steps is None, "whole steps are timed only if products are faster"
    for by_rows in chosen.products.speedups.values():
        assert by_rows[1] == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("ramp_s", [0.1, 0.3, 1.0, 5.0])
def test_a_candidate_that_is_faster_is_chosen_while_the_clocks_rise(ramp_s: float) -> None:
    chosen = choose(FakeTimer(FakeGpu(ramp_s), {OTHER: 1.1}))
    assert chosen.tuning == OTHER
    assert chosen.products.speedups[OTHER][1] == pytest.approx(1.1, abs=0.01)
    assert chosen.steps
    assert chosen.steps.speedups[OTHER][1] == pytest.approx(1.1, abs=0.01)


def test_the_same_clocks_mislead_one_who_times_without_a_reference() -> None:
    """Else the tests above would show nothing."""
    gpu = FakeGpu(ramp_s=0.3)
    gpu.compile = lambda: None  # type: ignore[method-assign]
    times = in_turn(FakeTimer(gpu))
    assert min(times, key=lambda tuning: times[tuning]) != GPU
    assert times[GPU] > 1.25 * min(times.values())


def test_the_device_is_busy_between_the_last_compilation_and_the_first_timing() -> None:
    gpu = FakeGpu(ramp_s=0.3)
    timer = FakeTimer(gpu)
    found = choose(timer).products
    assert found.seconds[1] == pytest.approx(5e-3), "at full speed"
    assert not found.n_moved


# ---- noise ----------------------------------------------------------------------------------


@pytest.mark.parametrize("at", range(60, 90))
def test_one_slow_timing_changes_nothing(at: int) -> None:
    """60 timings are the load; the round after it has 13."""
    gpu = FakeGpu(moves=lambda number: 3.0 if number == at else 1.0)
    assert choose(FakeTimer(gpu)).tuning == GPU
    gpu = FakeGpu(moves=lambda number: 3.0 if number == at else 1.0)
    assert choose(FakeTimer(gpu, {OTHER: 1.1})).tuning == OTHER


def test_where_the_reference_moves_in_every_round_the_default_stays() -> None:
    """Every timing takes twice as long as the one before, or half as long."""
    moves = itertools.cycle([1.0, 1.0, 1.5, 1.5])
    gpu = FakeGpu(moves=lambda number: next(moves))
    chosen = choose(FakeTimer(gpu, dict.fromkeys(ONE_ROW.candidates(GPU), 1.5)))
    assert chosen.tuning == GPU
    assert (chosen.products.speedups, chosen.steps) == ({}, None)
    assert chosen.products.n_moved == len(ONE_ROW.candidates(GPU))


def test_rounds_in_which_the_reference_moves_are_dropped() -> None:
    """Another program takes half of the device in two rounds of three."""
    gpu = FakeGpu(moves=lambda number: 2.0 if number // 13 % 3 and number % 13 > 2 else 1.0)
    assert choose(FakeTimer(gpu)).tuning == GPU


# ---- the choice -----------------------------------------------------------------------------


@pytest.mark.parametrize(("gain", "wins"), [(1.04, False), (1.06, True)])
def test_products_must_gain_five_per_cent(gain: float, wins: bool) -> None:
    assert (choose(FakeTimer(FakeGpu(), {OTHER: gain})).tuning == OTHER) == wins


@pytest.mark.parametrize(("gain", "wins"), [(0.9, False), (1.01, False), (1.03, True)])
def test_whole_steps_must_gain_two_per_cent(gain: float, wins: bool) -> None:
    """On the first H100 tiles were faster in products and slower in whole steps."""
    gpu = FakeGpu()
    chosen = choose(FakeTimer(gpu, {OTHER: 1.2}), FakeTimer(gpu, {OTHER: gain}))
    assert (chosen.tuning == OTHER) == wins
    assert chosen.steps
    assert chosen.steps.speedups[OTHER][1] == pytest.approx(gain)


def test_steps_that_cannot_be_measured_confirm_nothing() -> None:
    moves = itertools.cycle([1.0, 1.0, 1.5, 1.5])
    gpu, restless = FakeGpu(), FakeGpu(moves=lambda number: next(moves))
    chosen = choose(FakeTimer(gpu, {OTHER: 1.2}), FakeTimer(restless, {OTHER: 1.2}))
    assert chosen.tuning == GPU
    assert chosen.steps
    assert chosen.steps.n_moved == 1


def test_the_fastest_of_several_is_chosen() -> None:
    first, second, *_ = ONE_ROW.candidates(GPU)
    assert choose(FakeTimer(FakeGpu(), {first: 1.1, second: 1.3})).tuning == second


@pytest.mark.parametrize(("other", "wins"), [(0.9, False), (0.98, True), (1.2, True)])
def test_other_numbers_of_rows_may_not_lose(other: float, wins: bool) -> None:
    first, second = FEW_ROWS.rows
    best = FEW_ROWS.candidates(GPU)[0]
    timer = FakeTimer(FakeGpu(), {(best, first): 1.2, (best, second): other})
    assert (choose(timer, choice=FEW_ROWS).tuning == best) == wins


def test_int8_must_gain_ten_per_cent_in_decode_and_lose_nothing_in_prefill() -> None:
    choice = tile_choices(GPU, max_rows=512)[-1]
    q8 = replace(GPU, q8_activations=True)
    for decode, prefill, wins in ((1.2, 1.1, True), (1.08, 2.0, False), (1.2, 0.9, False)):
        timer = FakeTimer(FakeGpu(), {(q8, 1): decode, (q8, 512): prefill})
        assert (choose(timer, choice=choice).tuning == q8) == wins


def test_a_wrong_result_is_left_out_and_named() -> None:
    found = choose(FakeTimer(FakeGpu(), {OTHER: 2.0}, {OTHER: "7 results are wrong"}))
    assert found.tuning == GPU
    assert found.products.faults == {OTHER: "7 results are wrong"}
    with pytest.raises(DeviceError, match="7 results are wrong"):
        choose(FakeTimer(FakeGpu(), wrong={GPU: "7 results are wrong"}))


# ---- the time -------------------------------------------------------------------------------


def test_the_time_limit_is_kept_even_with_a_slow_compiler() -> None:
    gpu = FakeGpu(compiling_s=1.0)
    timer = FakeTimer(gpu, dict.fromkeys(ONE_ROW.candidates(GPU), 1.2))
    chosen = choose(timer, seconds=5.0)
    assert gpu.now <= 6.0
    assert 1 < len({tuning for tuning, _ in timer.begun}) < 1 + len(ONE_ROW.candidates(GPU))
    assert chosen.products.n_late
    assert chosen.tuning == GPU, "there was no time for whole steps"


def test_the_default_is_measured_whatever_it_takes() -> None:
    timer = FakeTimer(FakeGpu(compiling_s=10.0))
    chosen = choose(timer, seconds=3.0)
    assert timer.begun == [(GPU, 1)]
    assert (chosen.tuning, chosen.products.n_late) == (GPU, len(ONE_ROW.candidates(GPU)))
    assert chosen.products.seconds[1] == pytest.approx(5e-3)


def test_each_candidate_is_compiled_once() -> None:
    timer = FakeTimer(FakeGpu())
    choose(timer, choice=FEW_ROWS)
    assert len(set(timer.begun)) == len(timer.begun)


def test_a_software_device_needs_no_steady_reference_and_no_whole_steps() -> None:
    noise = random.Random(0)
    gpu = FakeGpu(moves=lambda number: noise.uniform(1, 1.2), compiling_s=0.01)
    choice = tile_choices(SOFTWARE, max_rows=128)[1]
    (best,) = choice.candidates(SOFTWARE)
    for speedups, chosen in (({best: 1.5}, best), ({}, SOFTWARE)):
        timer = FakeTimer(gpu, speedups)
        chooser = Chooser(timer, None, SOFTWARE_PROCEDURE.rounds, gpu.clock)
        assert chooser.choose(choice, SOFTWARE, gpu.now + 1.0).tuning == chosen
