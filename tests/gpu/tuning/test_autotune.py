"""Choosing how products are cut: by measured speeds, within a budget, once."""

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

from gpu.cache_folder import cache_folder
from gpu.engine.engine import Engine
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.tuning import probe as probing
from gpu.tuning import saved
from gpu.tuning.probe import kept_tuning, key_of, measure, probe, tuned
from gpu.tuning.probed import Probed, Speed, choose
from gpu.tuning.product_timer import ProductTimer, Trial, fault
from gpu.webgpu.device import Device
from gpu.webgpu.tiling import GPU, SOFTWARE, SOFTWARE_LOADS, Tuning, candidates
from tests.gpu import random_llama

DEFAULTS = [GPU, SOFTWARE, SOFTWARE_LOADS]


@dataclass
class FakeTimer:
    """A device whose products take 1 s unless `seconds_of` says else, on a clock of its own;
    compiling takes `compiling` seconds. `wrong`: tiles with wrong results."""

    seconds_of: Mapping[Any, float] = field(default_factory=dict)
    wrong: Mapping[Any, str] = field(default_factory=dict)
    compiling: float = 0.0
    now: float = 0.0
    begun: list[Trial] = field(default_factory=list)
    n_timed: int = 0

    def begin(self, trial: Trial) -> str:
        self.begun.append(trial)
        self.now += self.compiling
        return self.wrong.get(part(trial), "")

    def seconds(self, trial: Trial) -> float:
        assert trial in self.begun
        self.n_timed += 1
        self.now += 1e-3
        return self.seconds_of.get(part(trial), 1.0)

    def clock(self) -> float:
        return self.now


def part(trial: Trial) -> tuple[Any, ...]:
    """A product's tile: what the fake is told speeds of."""
    tile = trial.tile
    return (trial.shape, tile.trade, tile.strands, tile.m, tile.n)


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


def test_lanes_trade_only_where_they_can() -> None:
    assert {tuning.trade for tuning in candidates(SOFTWARE)} == {True, False}
    assert {tuning.trade for tuning in candidates(SOFTWARE_LOADS)} == {False}
    assert set(candidates(SOFTWARE_LOADS)) < set(candidates(SOFTWARE))


@pytest.mark.parametrize("default", DEFAULTS)
def test_no_candidate_exceeds_what_every_device_has(default: Tuning) -> None:
    for tuning in candidates(default):
        for n_rows in (1, 64):
            tile = tuning.tile(n_rows, 2048, 32)
            lanes = tile.strands * tile.columns
            assert lanes <= 256
            assert tile.strands == 1 or 4 * lanes * (tile.n + 1) <= 16384, "workgroup memory"
            assert tile.m * tile.n <= 64, "more sums than registers; takes minutes to compile"


# ---- the choice -----------------------------------------------------------------------------


def test_what_is_hardly_faster_does_not_displace_the_default() -> None:
    other = replace(GPU, few_n=4)
    assert choose(GPU, {GPU: Speed(1.0, 1.0), other: Speed(0.98, 0.98)}) == GPU
    assert choose(GPU, {GPU: Speed(1.0, 1.0), other: Speed(0.96, 1.0)}) == other


def test_few_and_many_rows_are_chosen_independently() -> None:
    timer = FakeTimer(
        {("decode", False, 16, 1, 4): 0.5, ("prefill", False, 16, 8, 8): 0.7}, compiling=0.001
    )
    assert measured(GPU, timer) == replace(GPU, few_n=4, many_n=8)


def test_strands_are_chosen_by_decode() -> None:
    many = [("prefill", False, 8, m, n) for m in (4, 8) for n in (4, 8)]
    faster = {("decode", False, 8, 1, 2): 0.8}
    assert measured(GPU, FakeTimer(faster)).strands == 8
    assert measured(GPU, FakeTimer(faster | dict.fromkeys(many, 1.1))).strands == 8
    assert measured(GPU, FakeTimer(faster | dict.fromkeys(many, 1.5))) == GPU, "prefill loses more"


def test_strands_that_decode_alike_are_chosen_by_prefill() -> None:
    timer = FakeTimer({("prefill", False, 32, 8, 4): 0.5})
    assert measured(GPU, timer) == replace(GPU, strands=32)


def test_trading_is_given_up_where_loading_is_faster() -> None:
    timer = FakeTimer({("decode", False, 1, 1, 8): 0.5, ("prefill", False, 1, 8, 8): 0.9})
    assert measured(SOFTWARE, timer) == SOFTWARE_LOADS


def test_a_wrong_result_is_left_out_and_named() -> None:
    bad = ("decode", False, 16, 1, 4)
    timer = FakeTimer({bad: 0.1}, wrong={bad: "7 results are wrong"})
    found = measure(GPU, timer, 1e6, timer.clock)
    assert found.chosen == GPU
    assert all(tuning.few_n == 4 and tuning.strands == 16 for tuning in found.faults)
    assert set(found.faults.values()) == {"7 results are wrong"}
    assert not set(found.faults) & set(found.speeds)
    assert len(found.faults) + len(found.speeds) == found.n_candidates


# ---- the budget -----------------------------------------------------------------------------


def test_the_time_is_kept_even_by_a_slow_compiler() -> None:
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


def test_each_product_is_compiled_once_and_the_hopeless_are_timed_once() -> None:
    slow = ("decode", True, 1, 1, 4)
    timer = FakeTimer({slow: 2.0})
    measure(SOFTWARE, timer, 1e6, timer.clock)
    assert len(set(timer.begun)) == len(timer.begun)
    assert timer.n_timed == len(timer.begun) + probing.ROUNDS * (len(timer.begun) - 1)


# ---- the cache ------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder, which does not exist yet."""
    monkeypatch.setenv("TOKENGLASS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


KEY = saved.Key("a card", "driver 1", "Vulkan", "0.32.0", "abc")
ALLOWED = candidates(GPU)


def test_what_was_written_is_read(folder: Path) -> None:
    assert saved.read(KEY, ALLOWED) is None
    best = replace(GPU, strands=32, workgroup=128, bytes=True)
    assert saved.write(KEY, best)
    assert saved.write(replace(KEY, adapter="another card"), GPU)
    assert saved.read(KEY, ALLOWED) == best
    assert len(list(folder.iterdir())) == 2, "nothing but a file for each adapter"


@pytest.mark.parametrize("changed", ["adapter", "driver", "backend", "wgpu", "kernels"])
def test_another_device_driver_or_kernel_has_nothing_kept(folder: Path, changed: str) -> None:
    saved.write(KEY, GPU)
    assert saved.read(replace(KEY, **{changed: "other"}), ALLOWED) is None


def contents(tuning: str, adapter: str = "a card", more: str = "") -> str:
    key = json.dumps(asdict(replace(KEY, adapter=adapter)))
    return f'{{"key":{key},"tuning":{tuning}{more}}}'


RIGHT = '{"trade":false,"max_m":8,"few_n":2,"many_n":4,"strands":16,"workgroup":64}'
DAMAGED = {
    "empty": "",
    "cut short": contents(RIGHT)[:-9],
    "not UTF-8": b"\xff\xfe",
    "not an object": "[]",
    "another type": contents(RIGHT.replace("16", '"16"')),
    "a number for a truth": contents(RIGHT.replace("false", "0")),
    "a setting is missing": contents(RIGHT.replace('"max_m":8,', "")),
    "a key too many": contents(RIGHT, more=',"else":1'),
    "an absurd tuning": contents(RIGHT.replace("16", "4096")),
    "a negative one": contents(RIGHT.replace("16", "-16")),
    "a huge number": contents(RIGHT.replace("16", "1" + 400 * "0")),
    "of another adapter": contents(RIGHT, adapter="another card"),
    "deeply nested": "[" * 10_000,
    "too long": contents(RIGHT) + " " * saved.MAX_BYTES,
}


def test_the_right_contents_are_taken(folder: Path) -> None:
    """So that what the next test refuses is refused for what is wrong with it."""
    folder.mkdir()
    (folder / KEY.file_name).write_text(contents(RIGHT), "utf-8")
    assert saved.read(KEY, ALLOWED) == GPU


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_contents_are_ignored_and_logged(
    folder: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    data = DAMAGED[damage]
    folder.mkdir()
    path = folder / KEY.file_name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    assert saved.read(KEY, ALLOWED) is None
    assert str(path) in caplog.text
    assert saved.write(KEY, GPU)
    assert saved.read(KEY, ALLOWED) == GPU


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_what_is_no_file_is_ignored(folder: Path, make: Any) -> None:
    folder.mkdir()
    make(folder / KEY.file_name)
    assert saved.read(KEY, ALLOWED) is None


def test_a_folder_that_cannot_be_made_is_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TOKENGLASS_CACHE", "/dev/null/nowhere")
    assert not saved.writable()
    assert saved.read(KEY, ALLOWED) is None
    assert not saved.write(KEY, GPU)
    assert "cannot be kept" in caplog.text


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


@pytest.mark.parity
def test_a_real_probe_finds_what_can_be_used(
    device: Device, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        probed = probe(device, 1.0)
    assert probed.faults == ()
    assert replace(probed.chosen, bytes=False) in candidates(device.tuning)
    assert [row.name for row in probed.rows if row.chosen] == [str(probed.chosen)]
    assert all(row.decode_gweights > 0 and row.prefill_gflops for row in probed.rows)
    floats, as_bytes = probed.products
    assert (as_bytes.chosen, floats.chosen) == (probed.chosen.bytes, not probed.chosen.bytes)
    assert not probed.chosen.bytes or as_bytes.decode_gweights > floats.decode_gweights
    assert len(probed.rows) + probed.n_left == len(candidates(device.tuning))
    assert device.info.name in caplog.text
    assert probed.kept == (not device.checked)
    assert kept_tuning(device.info) == (None if device.checked else probed.chosen)


@pytest.mark.parity
def test_every_candidate_is_held_to_the_defaults_result(device: Device) -> None:
    timer = ProductTimer(device, device.tuning)
    assert timer.begin(Trial.of("prefill", device.tuning)) == ""
    expected = timer._products["prefill"].expected
    assert expected is not None
    assert 0.5 < expected.std() < 2
    assert expected.shape[0] == 64
    timer._products["prefill"].expected = expected + np.float32(1e-3)
    assert "instead of" in timer.begin(Trial.of("prefill", device.tuning))
    timer.close()


@pytest.mark.parity
def test_products_of_bytes_are_held_to_those_of_floats(device: Device) -> None:
    timer, as_bytes = ProductTimer(device, device.tuning, "q8"), replace(device.tuning, bytes=True)
    assert timer.begin(Trial.of("decode", device.tuning)) == ""
    assert timer.begin(Trial.of("decode", as_bytes)) == ""
    timer._products["decode"].expected += np.float32(0.1)
    assert "instead of" in timer.begin(Trial.of("decode", as_bytes))
    timer.close()


def test_a_result_that_was_not_written_is_wrong() -> None:
    right = np.zeros((2, 3), np.float32)
    assert fault(right, right) == ""
    wrong = right.copy()
    wrong[1, 2] = np.nan
    assert fault(wrong, right) == (
        "1 of 6 results are wrong, the first in row 1, column 2: nan instead of 0"
    )


class TestTuned:
    """Measured at the first start, kept for the next."""

    @pytest.fixture(autouse=True)
    def probes(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """The devices that were measured; the second candidate is always the best."""
        names: list[str] = []

        def fake(device: Device) -> Probed:
            names.append(device.info.name)
            best = candidates(device.tuning)[1]
            kept = saved.write(key_of(device.info), best)
            return Probed(device.info, (), (), 0, best, kept)

        monkeypatch.setattr(probing, "probe", fake)
        return names

    def test_once(self, checked_device: Device, probes: list[str]) -> None:
        device = replace(checked_device, checked=False)
        said: list[str] = []
        first = tuned(device, lambda fraction, message: said.append(message))
        assert first.tuning == candidates(device.tuning)[1]
        assert said == [f"measuring kernels on {device.info.name}"]
        assert tuned(device) == first
        updated = replace(device, info=replace(device.info, driver="another"))
        assert tuned(updated).tuning == first.tuning
        assert len(probes) == 2

    def test_not_where_it_cannot_be_kept(
        self, checked_device: Device, probes: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TOKENGLASS_CACHE", "/dev/null/nowhere")
        device = replace(checked_device, checked=False)
        assert tuned(device) == device
        assert probes == []

    def test_not_on_a_checked_device(self, checked_device: Device, probes: list[str]) -> None:
        assert tuned(checked_device) == checked_device
        assert probes == []

    def test_lanes_that_cannot_trade_any_more(
        self, checked_device: Device, probes: list[str]
    ) -> None:
        info = replace(checked_device.info, software=True)
        device = replace(checked_device, checked=False, info=info, tuning=SOFTWARE_LOADS)
        saved.write(key_of(info), SOFTWARE)
        assert not tuned(device).tuning.trade
        assert len(probes) == 1


@pytest.mark.parametrize("probe", [False, True])
def test_an_engine_asks_for_the_tuning_only_when_told_to(
    monkeypatch: pytest.MonkeyPatch, probe: bool
) -> None:
    said: list[str] = []

    def fake(device: Device, progress: Any) -> Device:
        progress(0.0, "measuring")
        return replace(device, tuning=GPU)

    monkeypatch.setattr("gpu.runners.wgpu_runner.tuned", fake)
    engine = Engine.load(
        random_llama.folder("odd172_bias"),
        probe=probe,
        progress=lambda fraction, message: said.append(message),
    )
    runner = engine._thread.runner
    assert isinstance(runner, WgpuRunner)
    assert (runner.gpu.tuning == GPU) == (probe or not runner.gpu.info.software)
    assert ("measuring" in said) == probe
    engine.close()
