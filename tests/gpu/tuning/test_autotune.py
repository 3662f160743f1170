"""Choice of tiles: by measured speed, within a budget, once."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu.checks.rig import with_info
from gpu.engine.engine import Engine
from gpu.files.cache_folder import cache_folder
from gpu.load_options import LoadOptions
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.tuning import autotune as tuning_module
from gpu.tuning import store
from gpu.tuning.autotune import autotune, key_of, load_tuning, measure, stored_tuning
from gpu.tuning.matmul_timer import (
    BASE_N,
    COALESCED_SIZES,
    MatmulSizes,
    MatmulTimer,
    MatmulTrial,
    fault,
)
from gpu.tuning.results import AutotuneResult, MatmulSpeed, choose
from gpu.tuning.timestamp_cost import timestamp_us
from gpu.webgpu.device import Device
from gpu.webgpu.tiling import GPU, SOFTWARE, SOFTWARE_LOADS, Tuning, candidates
from tests.gpu.models import random_llama

DEFAULTS = [GPU, SOFTWARE, SOFTWARE_LOADS]


@dataclass
class FakeTimer:
    """A device whose matmuls take 1 s unless `seconds_of` has another time, on its own clock;
    compiling takes `compiling` seconds. `wrong`: tiles with wrong results."""

    seconds_of: Mapping[Any, float] = field(default_factory=dict)
    wrong: Mapping[Any, str] = field(default_factory=dict)
    compiling: float = 0.0
    now: float = 0.0
    begun: list[MatmulTrial] = field(default_factory=list)
    n_timed: int = 0

    def begin(self, trial: MatmulTrial) -> str:
        self.begun.append(trial)
        self.now += self.compiling
        return self.wrong.get(part(trial), "")

    def seconds(self, trial: MatmulTrial) -> float:
        assert trial in self.begun
        self.n_timed += 1
        self.now += 1e-3
        return self.seconds_of.get(part(trial), 1.0)

    def clock(self) -> float:
        return self.now


def part(trial: MatmulTrial) -> tuple[Any, ...]:
    """A matmul's tile: key of the fake's speeds."""
    tile = trial.tile
    return (trial.shape, tile.loads, tile.split_k, tile.m, tile.n)


def measured(default: Tuning, timer: FakeTimer, budget: float = 1e6) -> Tuning:
    return measure(default, timer, budget, timer.clock).chosen


# ---- candidates -----------------------------------------------------------------------------


@pytest.mark.parametrize("default", DEFAULTS)
def test_the_default_comes_first_and_the_unlikely_last(default: Tuning) -> None:
    found = candidates(default)
    assert found[0] == default
    assert len(set(found)) == len(found)
    changes = [tuning.changes(default) for tuning in found]
    assert changes == sorted(changes)
    assert changes[:2] == [0, 1]


def test_shuffling_is_a_candidate_only_where_subgroups_can() -> None:
    assert {tuning.subgroup_shuffle for tuning in candidates(SOFTWARE)} == {True, False}
    assert {tuning.subgroup_shuffle for tuning in candidates(SOFTWARE_LOADS)} == {False}
    assert set(candidates(SOFTWARE_LOADS)) < set(candidates(SOFTWARE))


@pytest.mark.parametrize("default", DEFAULTS)
def test_no_candidate_exceeds_what_every_device_has(default: Tuning) -> None:
    for tuning in candidates(default):
        for n_rows in (1, 64):
            tile = tuning.tile(n_rows, 2048, 32)
            assert tile.lanes <= 256
            assert tile.workgroup_bytes <= 32 << 10
            assert tile.m * tile.n <= 64, "more sums than registers; takes minutes to compile"


# ---- the choice -----------------------------------------------------------------------------


def test_a_candidate_that_is_hardly_faster_does_not_replace_the_default() -> None:
    other = replace(GPU, split_k=8)
    assert choose(GPU, {GPU: MatmulSpeed(1.0, 1.0), other: MatmulSpeed(0.98, 0.98)}) == GPU
    assert choose(GPU, {GPU: MatmulSpeed(1.0, 1.0), other: MatmulSpeed(0.96, 1.0)}) == other


def test_few_and_many_rows_are_chosen_independently() -> None:
    timer = FakeTimer(
        {("decode", "own", 1, 1, 8): 0.5, ("prefill", "own", 1, 8, 4): 0.7}, compiling=0.001
    )
    assert measured(SOFTWARE_LOADS, timer) == replace(SOFTWARE_LOADS, few_n=8, many_n=4)


def test_split_k_is_chosen_by_decode() -> None:
    faster = {("decode", "coalesced", 32, 1, 1): 0.8}
    assert measured(GPU, FakeTimer(faster)).split_k == 8
    assert measured(GPU, FakeTimer(faster | {("prefill", "shared", 32, 8, 4): 1.1})).split_k == 8
    slow = {("prefill", "shared", 32, 8, 4): 1.5}
    assert measured(GPU, FakeTimer(faster | slow)) == GPU, "prefill loses more"


def test_split_k_of_equal_decode_speed_is_chosen_by_prefill() -> None:
    timer = FakeTimer({("prefill", "shared", 16, 8, 4): 0.5})
    assert measured(GPU, timer) == replace(GPU, split_k=4)


def test_smaller_shared_tiles_are_chosen_where_they_are_faster() -> None:
    timer = FakeTimer({("prefill", "shared", 64, 4, 4): 0.5})
    assert measured(GPU, timer) == replace(GPU, shared_m=4)


def test_shuffling_is_dropped_where_loading_is_faster() -> None:
    timer = FakeTimer({("decode", "own", 1, 1, 8): 0.5, ("prefill", "own", 1, 8, 8): 0.9})
    assert measured(SOFTWARE, timer) == SOFTWARE_LOADS


def test_a_wrong_result_is_left_out_and_named() -> None:
    bad = ("decode", "coalesced", 32, 1, 1)
    timer = FakeTimer({bad: 0.1}, wrong={bad: "7 results are wrong"})
    found = measure(GPU, timer, 1e6, timer.clock)
    assert found.chosen == GPU
    assert all(tuning.split_k == 8 for tuning in found.faults)
    assert set(found.faults.values()) == {"7 results are wrong"}
    assert not set(found.faults) & set(found.speeds)
    assert len(found.faults) + len(found.speeds) == found.n_candidates


# ---- the budget -----------------------------------------------------------------------------


def test_the_time_limit_is_kept_even_with_a_slow_compiler() -> None:
    timer = FakeTimer(compiling=0.4)
    found = measure(GPU, timer, 3.0, timer.clock)
    assert timer.now <= 3.0
    assert 1 < len(found.speeds) < found.n_candidates
    assert all(tuning.changes(GPU) <= 1 for tuning in found.speeds), "the likely ones came first"


def test_the_default_is_measured_whatever_it_takes() -> None:
    timer = FakeTimer(compiling=10.0)
    found = measure(SOFTWARE, timer, 3.0, timer.clock)
    assert list(found.speeds) == [SOFTWARE]
    assert timer.now < 21


def test_each_candidate_is_compiled_once_and_slow_ones_are_timed_once() -> None:
    slow = ("decode", "shuffle", 1, 1, 4)
    timer = FakeTimer({slow: 2.0})
    measure(SOFTWARE, timer, 1e6, timer.clock)
    assert len(set(timer.begun)) == len(timer.begun)
    assert timer.n_timed == len(timer.begun) + tuning_module.ROUNDS * (len(timer.begun) - 1)


# ---- the cache ------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder, which does not exist yet."""
    monkeypatch.setenv("TOKENGLASS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


KEY = store.MeasurementKey("a card", "driver 1", "Vulkan", "0.32.0", "abc")
ALLOWED = candidates(GPU)


def test_a_stored_tuning_is_read_back(folder: Path) -> None:
    assert store.read(KEY, ALLOWED) is None
    best = replace(GPU, split_k=8, q8_activations=True)
    assert store.write(KEY, best)
    assert store.write(replace(KEY, adapter="another card"), GPU)
    assert store.read(KEY, ALLOWED) == best
    assert len(list(folder.iterdir())) == 2, "nothing but a file for each adapter"


@pytest.mark.parametrize("changed", ["adapter", "driver", "backend", "wgpu", "kernels"])
def test_another_device_driver_or_kernel_has_no_stored_tuning(folder: Path, changed: str) -> None:
    store.write(KEY, GPU)
    assert store.read(replace(KEY, **{changed: "other"}), ALLOWED) is None


def contents(tuning: str, adapter: str = "a card", more: str = "") -> str:
    key = json.dumps(asdict(replace(KEY, adapter=adapter)))
    return f'{{"key":{key},"tuning":{tuning}{more}}}'


RIGHT = (
    '{"subgroup_shuffle":false,"max_m":16,"few_n":4,"many_n":4,"split_k":16,"workgroup":64,'
    '"shared_m":8}'
)
DAMAGED = {
    "empty": "",
    "cut short": contents(RIGHT)[:-9],
    "not UTF-8": b"\xff\xfe",
    "not an object": "[]",
    "another type": contents(RIGHT.replace('_k":16', '_k":"16"')),
    "a number for a truth": contents(RIGHT.replace("false", "0")),
    "a setting is missing": contents(RIGHT.replace('"many_n":4,', "")),
    "a key too many": contents(RIGHT, more=',"else":1'),
    "an absurd tuning": contents(RIGHT.replace('_k":16', '_k":4096')),
    "a negative one": contents(RIGHT.replace('_k":16', '_k":-16')),
    "a huge number": contents(RIGHT.replace('_k":16', '_k":1' + 400 * "0")),
    "of another adapter": contents(RIGHT, adapter="another card"),
    "deeply nested": "[" * 10_000,
    "too long": contents(RIGHT) + " " * store.MAX_BYTES,
}


def test_valid_contents_are_read(folder: Path) -> None:
    """Valid files are read: the next test's files are refused for their faults alone."""
    folder.mkdir()
    (folder / KEY.file_name).write_text(contents(RIGHT), "utf-8")
    assert store.read(KEY, ALLOWED) == GPU


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_contents_are_ignored_and_logged(
    folder: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    data = DAMAGED[damage]
    folder.mkdir()
    path = folder / KEY.file_name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    assert store.read(KEY, ALLOWED) is None
    assert str(path) in caplog.text
    assert store.write(KEY, GPU)
    assert store.read(KEY, ALLOWED) == GPU


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_a_path_that_is_no_regular_file_is_ignored(folder: Path, make: Any) -> None:
    folder.mkdir()
    make(folder / KEY.file_name)
    assert store.read(KEY, ALLOWED) is None


def test_a_folder_that_cannot_be_made_is_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TOKENGLASS_CACHE", "/dev/null/nowhere")
    assert not store.writable()
    assert store.read(KEY, ALLOWED) is None
    assert not store.write(KEY, GPU)
    assert "cannot be stored" in caplog.text


def test_the_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("TOKENGLASS_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == Path("/home/someone/.cache/tokenglass")
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert cache_folder() == Path("/elsewhere/tokenglass")
    monkeypatch.setenv("TOKENGLASS_CACHE", "/here")
    assert cache_folder() == Path("/here")


# ---- on the device --------------------------------------------------------------------------


@pytest.mark.ci
@pytest.mark.parity
def test_autotuning_a_real_device_finds_a_valid_candidate(
    device: Device, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        probed = autotune(device, 1.0)
    assert probed.faults == ()
    assert replace(probed.chosen, q8_activations=False) in candidates(device.tuning)
    assert [row.name for row in probed.rows if row.chosen] == [str(probed.chosen)]
    assert all(row.decode_gweights > 0 and row.prefill_gflops for row in probed.rows)
    floats, as_q8 = probed.activations
    assert (as_q8.chosen, floats.chosen) == (
        probed.chosen.q8_activations,
        not probed.chosen.q8_activations,
    )
    assert not probed.chosen.q8_activations or as_q8.decode_gweights > floats.decode_gweights
    assert len(probed.rows) + probed.n_skipped == len(candidates(device.tuning))
    assert device.info.name in caplog.text
    used = device.policy.autotunes and not device.checked
    assert probed.stored == (used if device.policy.autotunes else None)
    assert stored_tuning(device.info) == (probed.chosen if used else None)


@pytest.mark.parity
def test_every_candidate_is_compared_with_the_defaults_result(device: Device) -> None:
    timer = MatmulTimer(device, device.tuning)
    assert timer.begin(MatmulTrial.of("prefill", device.tuning)) == ""
    expected = timer._matmuls["prefill"].expected
    assert expected is not None
    assert 0.5 < expected.std() < 2
    assert expected.shape[0] == MatmulSizes.of(device.tuning).prefill_rows
    timer._matmuls["prefill"].expected = expected + np.float32(1e-3)
    assert "instead of" in timer.begin(MatmulTrial.of("prefill", device.tuning))
    timer.close()


@pytest.mark.parity
def test_q8_activations_are_compared_with_f32(device: Device) -> None:
    timer, as_q8 = (
        MatmulTimer(device, device.tuning, "q8"),
        replace(device.tuning, q8_activations=True),
    )
    assert timer.begin(MatmulTrial.of("decode", device.tuning)) == ""
    assert timer.begin(MatmulTrial.of("decode", as_q8)) == ""
    timer._matmuls["decode"].expected += np.float32(0.1)
    assert "instead of" in timer.begin(MatmulTrial.of("decode", as_q8))
    timer.close()


@pytest.mark.parity
def test_the_cost_of_a_timestamp_is_measured_where_one_can_be_taken(device: Device) -> None:
    found = timestamp_us(device)
    if device.has_pass_timestamps:
        assert found is None or 0 <= found < 1e4
    else:
        assert found is None


def test_weights_that_are_measured_for_gpus_exceed_their_caches() -> None:
    sizes = MatmulSizes.of(GPU)
    assert sizes == COALESCED_SIZES
    assert 2 * BASE_N * sizes.most_copies * sizes.k == 256 << 20
    assert MatmulTrial.of("prefill", GPU).tile.m == GPU.shared_m


def test_a_result_that_was_not_written_is_wrong() -> None:
    right = np.zeros((2, 3), np.float32)
    assert fault(right, right) == ""
    wrong = right.copy()
    wrong[1, 2] = np.nan
    assert fault(wrong, right) == (
        "1 of 6 results are wrong, the first in row 1, column 2: nan instead of 0"
    )


class TestTuned:
    """Measured at the first start, stored for the next."""

    @pytest.fixture(autouse=True)
    def probes(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Names of the devices measured; the second candidate is always the best."""
        names: list[str] = []

        def fake(device: Device) -> AutotuneResult:
            names.append(device.info.name)
            best = candidates(device.tuning)[1]
            stored = store.write(key_of(device.info), best)
            return AutotuneResult(device.info, (), (), 0, best, stored)

        monkeypatch.setattr(tuning_module, "autotune", fake)
        return names

    def test_a_device_is_measured_once(self, checked_device: Device, probes: list[str]) -> None:
        device = with_info(replace(checked_device, checked=False), software=True)
        said: list[str] = []
        first = load_tuning(device, lambda fraction, message: said.append(message))
        assert first.tuning == candidates(device.tuning)[1]
        assert said == [f"measuring kernels on {device.info.name}"]
        assert load_tuning(device) == first
        updated = replace(device, info=replace(device.info, driver="another"))
        assert load_tuning(updated).tuning == first.tuning
        assert len(probes) == 2

    def test_a_gpu_keeps_its_default_tiles(
        self, checked_device: Device, probes: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also with a measurement stored by an earlier version."""
        gpu = with_info(replace(checked_device, checked=False), software=False)
        store.write(key_of(gpu.info), candidates(gpu.tuning)[1])
        monkeypatch.setattr(tuning_module, "timestamp_us", lambda device: 0.1)
        tuned = load_tuning(gpu)
        assert tuned.tuning == gpu.tuning
        assert (tuned.policy.timestamp_us, tuned.policy.timed_every) == (0.1, 1)
        assert stored_tuning(gpu.info) is None
        assert probes == []

    def test_nothing_is_measured_where_results_cannot_be_stored(
        self, checked_device: Device, probes: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TOKENGLASS_CACHE", "/dev/null/nowhere")
        device = replace(checked_device, checked=False)
        assert load_tuning(device) == device
        assert probes == []

    def test_a_checked_device_is_not_measured(
        self, checked_device: Device, probes: list[str]
    ) -> None:
        assert load_tuning(checked_device) == checked_device
        assert probes == []

    def test_stored_shuffling_is_dropped_if_the_device_lost_it(
        self, checked_device: Device, probes: list[str]
    ) -> None:
        device = replace(checked_device, checked=False, tuning=SOFTWARE_LOADS)
        device = with_info(device, software=True)
        store.write(key_of(device.info), SOFTWARE)
        assert not load_tuning(device).tuning.subgroup_shuffle
        assert len(probes) == 1


@pytest.mark.parametrize("probe", [False, True])
def test_an_engine_asks_for_the_tuning_only_when_told_to(
    monkeypatch: pytest.MonkeyPatch, probe: bool
) -> None:
    said: list[str] = []

    def fake(device: Device, progress: Any) -> Device:
        progress(0.0, "measuring")
        return replace(device, tuning=GPU)

    monkeypatch.setattr("gpu.runners.wgpu_runner.load_tuning", fake)
    engine = Engine.load(
        random_llama.folder("odd172_bias"),
        LoadOptions(autotune=probe),
        progress=lambda fraction, message: said.append(message),
    )
    runner = engine._thread.runner
    assert isinstance(runner, WgpuRunner)
    assert (runner.gpu.tuning == GPU) == (probe or not runner.gpu.info.software)
    assert ("measuring" in said) == probe
    engine.close()
