"""Choice of tiles: by measured speed, within a budget, once."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu.checkpoint.packing import row_words
from gpu.checkpoint.random_checkpoint import LLAMA_SHAPES
from gpu.checks.rig import with_info
from gpu.engine.engine import Engine
from gpu.files.cache_folder import cache_folder
from gpu.info import AdapterInfo
from gpu.load_options import LoadOptions
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.tuning import autotune as tuning_module
from gpu.tuning import store
from gpu.tuning.autotune import autotune, key_of, load_tuning, stored_tuning
from gpu.tuning.random_model import (
    GPU_PROCEDURE,
    SOFTWARE_PROCEDURE,
    Procedure,
    ProductTimer,
    RandomModel,
    StepTimer,
    fault,
    layer_matrices,
)
from gpu.tuning.results import AutotuneResult
from gpu.tuning.tile_choices import may_choose, tile_choices
from gpu.tuning.timestamp_cost import timestamp_us
from gpu.webgpu.device import Device
from gpu.webgpu.device_policy import DISCRETE_GPU, NARROW
from gpu.webgpu.tiling import GPU, SOFTWARE, SOFTWARE_LOADS, FewRows, Tuning
from tests.gpu import other_devices
from tests.gpu.models import random_llama
from tests.gpu.tuning.test_compare import FakeGpu, FakeTimer

DEFAULTS = [GPU, DISCRETE_GPU, NARROW, SOFTWARE, SOFTWARE_LOADS]
BEST = replace(GPU, one_row=FewRows(2, 2, 8, 64))
"""A tuning that a GPU may choose."""


# ---- what may be chosen ---------------------------------------------------------------------


@pytest.mark.parametrize("default", DEFAULTS)
def test_choices_exclude_each_other_and_the_default_is_none_of_their_candidates(
    default: Tuning,
) -> None:
    for choice in tile_choices(default, max_rows=128):
        candidates = choice.candidates(default)
        assert candidates
        assert default not in candidates
        assert len(set(candidates)) == len(candidates)
        assert all(may_choose(default, candidate) for candidate in candidates)
        assert all(changes.keys() == choice.of(default).keys() for changes in choice.alternatives)
    of_format = [choice.dtype for choice in tile_choices(default, max_rows=128)]
    assert of_format == sorted(of_format, key=of_format.index), "weights are loaded once"


def test_what_several_choices_lead_to_may_be_chosen_and_nothing_else() -> None:
    several = replace(BEST, shared_m=4, q8_activations=True)
    assert may_choose(GPU, several)
    assert may_choose(GPU, GPU)
    assert not may_choose(NARROW, several)
    for other in ({"split_k": 8}, {"few_rows": FewRows(3, 1, 1, 1)}, {"shared_m": 16}):
        assert not may_choose(GPU, replace(several, **other))
    assert may_choose(SOFTWARE, SOFTWARE_LOADS)
    assert not may_choose(SOFTWARE_LOADS, SOFTWARE), "subgroups cannot shuffle there"


@pytest.mark.parametrize("default", [GPU, DISCRETE_GPU, NARROW])
def test_no_choice_of_a_gpu_changes_the_order_of_sums(default: Tuning) -> None:
    for choice in tile_choices(default, max_rows=128):
        assert all(c.split_k == default.split_k for c in choice.candidates(default))


@pytest.mark.parametrize("default", [SOFTWARE, SOFTWARE_LOADS])
def test_no_tile_of_a_software_device_takes_minutes_to_compile(default: Tuning) -> None:
    for choice in tile_choices(default, max_rows=128):
        for tuning in choice.candidates(default):
            tile = tuning.tile(64, 2048, 32)
            assert tile.m * tile.n <= 64
            assert tuning.subgroup_shuffle or (tile.m * tile.n <= 64 and tile.m <= 8)


# ---- the models -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f16", "q8", "q4"])
def test_weights_that_are_measured_on_gpus_exceed_their_caches(dtype: str) -> None:
    card = AdapterInfo(
        "Card", "", "Vulkan", "discrete GPU", False, limits={"max-buffer-size": 1 << 32}
    )
    phone = replace(card, limits={"max-buffer-size": 256 << 20})
    for info in (card, phone):
        procedure = Procedure.of(info)
        of_layer = sum(4 * n * row_words(dtype, k) for n, k in layer_matrices(procedure.shape))
        assert 128 << 20 <= procedure.config(dtype).n_layers * of_layer < 260 << 20
    assert Procedure.of(phone).shape.hidden_size < Procedure.of(card).shape.hidden_size


# ---- the cache ------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder, which does not exist yet."""
    monkeypatch.setenv("TOKENGLASS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


KEY = store.MeasurementKey("a card", "driver 1", "Vulkan", "0.32.0", "abc")


def read(key: store.MeasurementKey) -> Tuning | None:
    return store.read(key, partial(may_choose, GPU))


def test_a_stored_tuning_is_read_back(folder: Path) -> None:
    assert read(KEY) is None
    best = replace(BEST, q8_activations=True)
    assert store.write(KEY, best)
    assert store.write(replace(KEY, adapter="another card"), GPU)
    assert read(KEY) == best
    assert len(list(folder.iterdir())) == 2, "nothing but a file for each adapter"
    for _ in range(2):
        store.forget(KEY)
        assert read(KEY) is None


@pytest.mark.parametrize("changed", ["adapter", "driver", "backend", "wgpu", "kernels"])
def test_another_device_driver_or_kernel_has_no_stored_tuning(folder: Path, changed: str) -> None:
    store.write(KEY, GPU)
    assert read(replace(KEY, **{changed: "other"})) is None


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
    assert read(KEY) == GPU


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_contents_are_ignored_and_logged(
    folder: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    data = DAMAGED[damage]
    folder.mkdir()
    path = folder / KEY.file_name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    assert read(KEY) is None
    assert str(path) in caplog.text
    assert store.write(KEY, GPU)
    assert read(KEY) == GPU


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_a_path_that_is_no_regular_file_is_ignored(folder: Path, make: Any) -> None:
    folder.mkdir()
    make(folder / KEY.file_name)
    assert read(KEY) is None


def test_a_folder_that_cannot_be_made_is_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TOKENGLASS_CACHE", "/dev/null/nowhere")
    assert not store.writable()
    assert read(KEY) is None
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
        probed = autotune(device, replace(Procedure.of(device.info), budget_s=2.0))
    assert probed.faults == ()
    assert may_choose(device.tuning, probed.chosen)
    choices = tile_choices(device.tuning, device.policy.max_rows)
    assert [row.products for row in probed.rows] == [choice.products for choice in choices]
    assert all(row.gflops > 0 for row in probed.rows)
    assert any(row.chosen for row in probed.rows) == (probed.chosen != device.tuning)
    assert all(row.chosen <= (row.speedup is not None) for row in probed.rows)
    assert device.info.name in caplog.text
    assert stored_tuning(device.info) == (probed.chosen if probed.stored else None)
    if device.policy.autotunes_at_start:
        assert probed.stored == (not device.checked)


@pytest.mark.slow
def test_a_gpu_is_tuned_by_products_and_whole_steps_and_the_next_start_uses_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A software device that poses as a GPU, whose tiles do not suit it. Its model is small, and
    its reference may move."""
    other_devices.pose(monkeypatch, "discrete")
    rounds = replace(GPU_PROCEDURE.rounds, max_drift=None, least=1)
    of = replace(GPU_PROCEDURE, shape=LLAMA_SHAPES["tiny"], rotated_bytes=4 << 20, rounds=rounds)
    monkeypatch.setattr(tuning_module, "LEAST_STEP_GAIN", 0.0)
    said: list[float] = []
    device = Device.open(checked=False)
    result = autotune(device, of, lambda done, text: said.append(done))
    assert result.faults == ()
    assert len(result.rows) == 6
    assert said == sorted(said)
    assert device.tuning == DISCRETE_GPU
    assert may_choose(DISCRETE_GPU, result.chosen)
    for row in result.rows:
        assert row.chosen == (row.step_speedup is not None), row
    assert result.stored == (True if result.chosen != DISCRETE_GPU else None)
    assert load_tuning(device).tuning == result.chosen
    device.close()


@pytest.fixture
def model(device: Device) -> Iterator[RandomModel]:
    with closing(RandomModel(device, SOFTWARE_PROCEDURE, "q8")) as model:
        yield model


@pytest.mark.parity
def test_every_candidate_is_compared_with_the_defaults_result(model: RandomModel) -> None:
    timer, tuning = ProductTimer(model), model.device.tuning
    assert timer.begin(tuning, 2) == ""
    (expected,) = timer._expected[2]
    assert expected.shape == (2, model.products[0].n)
    assert 0.5 < expected.std() < 2
    timer._expected[2] = [expected + np.float32(1e-3)]
    assert "instead of" in timer.begin(tuning, 2)
    as_q8 = replace(tuning, q8_activations=True)
    assert timer.begin(as_q8, 2) == ""
    timer._expected[2] = [expected + np.float32(0.1)]
    assert "instead of" in timer.begin(as_q8, 2)


@pytest.mark.parity
def test_whole_steps_are_those_of_the_engine(model: RandomModel) -> None:
    timer, tuning = StepTimer(model), model.device.tuning
    assert timer.begin(tuning, 2) == ""
    labels = [dispatch.label for dispatch in timer._plans[tuning, 2].dispatches]
    assert {"embed", "layer00.attn.qkv", "layer00.mlp.down", "head", "sample"} <= set(labels)
    timer.warm_up(tuning, 2, 0.0)
    assert timer.seconds(tuning, 2) > 0


@pytest.mark.parity
def test_the_cost_of_a_timestamp_is_measured_where_one_can_be_taken(device: Device) -> None:
    found = timestamp_us(device)
    if device.has_pass_timestamps:
        assert found is None or 0 <= found < 1e4
    else:
        assert found is None


def test_a_result_that_was_not_written_is_wrong() -> None:
    right = np.zeros((2, 3), np.float32)
    assert fault(right, right) == ""
    wrong = right.copy()
    wrong[1, 2] = np.nan
    assert fault(wrong, right) == (
        "1 of 6 results are wrong, the first in row 1, column 2: nan instead of 0"
    )


# ---- what a start does ----------------------------------------------------------------------


class FakeModel:
    """In the place of `RandomModel`."""

    def __init__(self, device: Device, procedure: Procedure, dtype: str) -> None:
        self.dtype = dtype

    def multiply_adds(self, n_rows: int) -> int:
        return n_rows

    def close(self) -> None: ...


@pytest.mark.parametrize("confirmed", [True, False])
def test_a_gpu_stores_only_what_whole_steps_confirmed(
    checked_device: Device, folder: Path, monkeypatch: pytest.MonkeyPatch, confirmed: bool
) -> None:
    gpu = with_info(replace(checked_device, checked=False, tuning=GPU), software=False)
    products = FakeTimer(FakeGpu(compiling_s=0.0), {BEST: 1.2})
    steps = FakeTimer(products.gpu, {BEST: 1.1 if confirmed else 0.9})
    monkeypatch.setattr(tuning_module, "RandomModel", FakeModel)
    monkeypatch.setattr(tuning_module, "ProductTimer", lambda model: products)
    monkeypatch.setattr(tuning_module, "StepTimer", lambda model: steps)
    store.write(key_of(gpu.info), replace(GPU, shared_m=4))
    result = autotune(gpu)
    row, *others = result.rows
    assert row.best == str(BEST.one_row)
    assert (row.speedup, row.step_speedup) == pytest.approx((1.2, 1.1 if confirmed else 0.9))
    assert (row.chosen, result.stored) == ((True, True) if confirmed else (False, None))
    assert not any(other.chosen or other.step_speedup for other in others)
    assert stored_tuning(gpu.info) == (BEST if confirmed else None), "what was there is gone"


def best_of(device: Device) -> Tuning:
    return tile_choices(device.tuning, device.policy.max_rows)[0].candidates(device.tuning)[0]


class TestTuned:
    """Software devices are measured at the first start; GPUs use what a probe has stored."""

    @pytest.fixture(autouse=True)
    def probes(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Names of the devices measured; `best_of` is always the best."""
        names: list[str] = []

        def fake(device: Device, progress: Any) -> AutotuneResult:
            names.append(device.info.name)
            best = best_of(device)
            stored = store.write(key_of(device.info), best)
            progress(0.0, "measuring")
            return AutotuneResult(device.info, (), (), 0, best, stored)

        monkeypatch.setattr(tuning_module, "autotune", fake)
        return names

    def test_a_device_is_measured_once(self, checked_device: Device, probes: list[str]) -> None:
        device = with_info(replace(checked_device, checked=False), software=True)
        said: list[str] = []
        first = load_tuning(device, lambda fraction, message: said.append(message))
        assert first.tuning == best_of(device)
        assert said == ["measuring"]
        assert load_tuning(device) == first
        updated = replace(device, info=replace(device.info, driver="another"))
        assert load_tuning(updated).tuning == first.tuning
        assert len(probes) == 2

    def test_a_gpu_is_not_measured_and_uses_what_a_probe_stored(
        self, checked_device: Device, probes: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gpu = with_info(replace(checked_device, checked=False, tuning=GPU), software=False)
        monkeypatch.setattr(tuning_module, "timestamp_us", lambda device: 0.1)
        tuned = load_tuning(gpu)
        assert (tuned.tuning, stored_tuning(gpu.info)) == (GPU, None)
        assert (tuned.policy.timestamp_us, tuned.policy.timed_every) == (0.1, 1)
        store.write(key_of(gpu.info), BEST)
        assert load_tuning(gpu) == replace(tuned, tuning=BEST)
        assert probes == []

    def test_what_an_earlier_version_stored_is_not_used(
        self, checked_device: Device, probes: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gpu = with_info(replace(checked_device, checked=False, tuning=GPU), software=False)
        with monkeypatch.context() as patch:
            patch.setattr(tuning_module, "VERSION", 1)
            tuning_module._digest.cache_clear()
            store.write(key_of(gpu.info), BEST)
        tuning_module._digest.cache_clear()
        assert stored_tuning(gpu.info) is None

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
