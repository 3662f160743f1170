"""A model in stages gives the numbers of one device, to the bit, and each stage has its layers
only. Stages that are reached through sockets are held to the same tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import astuple, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from gpu.analysis.footprint import Footprint
from gpu.checkpoint import weight_cache
from gpu.checkpoint.reader import Checkpoint
from gpu.config import ModelConfig, Stage, cut_stages
from gpu.errors import DeviceError, InvalidRequest, ModelError
from gpu.interventions.active import ActiveInterventions
from gpu.kv.copies import TokenMove
from gpu.load_options import LoadOptions
from gpu.runner import Runner
from gpu.runners.staged_runner import StagedRunner
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.step import FROM_GPU, Captured, InspectionRequest, Row, Sample, Step, StepResult
from gpu.webgpu.device import Device
from tests.gpu.models import random_llama, random_models
from tests.gpu.runners.remote_hosts import ThreadHosts

OPTIONS = LoadOptions(dtype="f32", context=64, slots=2, kv_offload_bytes=1 << 20)
N_IDS = 20
CASES = {
    "llama": (random_llama.folder, "derived_head", 3),
    "windows": (random_models.folder, "gemma3", 3),
    "experts": (random_models.folder, "qwen2_moe", 2),
    "layernorm": (random_models.folder, "gpt2", 2),
}
"""Folder and number of stages. The experts have a layer without; groups of windows have layers of
one stage only. Those of `windows` are reached through sockets."""


class Pair(NamedTuple):
    """The same model on one device and in stages."""

    one: WgpuRunner
    staged: StagedRunner
    folder: Path


@pytest.fixture(
    scope="module",
    params=[
        "windows",
        *(pytest.param(name, marks=pytest.mark.slow) for name in CASES if name != "windows"),
    ],
)
def pair(request: pytest.FixtureRequest, device: Device) -> Iterator[Pair]:
    folder_of, name, n_stages = CASES[request.param]
    folder = folder_of(name)
    options = replace(OPTIONS, hybrid_kv_cache=request.param == "windows")
    config, checkpoint = ModelConfig.from_folder(folder), Checkpoint.open(folder)
    one = WgpuRunner(device, config, checkpoint, options)
    hosts = ThreadHosts() if request.param == "windows" else None
    in_stages = replace(options, pipeline_parallel_size=n_stages)
    staged = StagedRunner.load(folder, in_stages, hosts=hosts)
    yield Pair(one, staged, folder)
    staged.close()


def begin(runner: Runner, ids: list[int], slot: int = 0) -> None:
    """Start a text in blocks of its own in every group."""
    runner.begin_slot(slot, np.array(ids, np.uint32))
    for group in range(len(runner.limits.windows)):
        first = 4 * (group + slot * len(runner.limits.windows))
        runner.set_blocks(slot, list(range(first, first + 4)), group)


def prompt(ids: list[int], **settings: Any) -> Step:
    rows = tuple(Row(0, i, id) for i, id in enumerate(ids))
    return Step(rows, (Sample(len(ids) - 1, 0, 7, 0, 0.8),), **settings)


def run(runner: Runner, step: Step) -> StepResult:
    runner.submit(step)
    return runner.collect()


def measured(captured: Captured) -> list[Any]:
    """Return everything but times, whose values differ from run to run."""
    *statistics, layer_ms, embed_ms, head_ms = astuple(captured)
    assert (layer_ms is None) == (embed_ms is None) == (head_ms is None)
    return [None if part is None else np.asarray(part) for part in statistics]


def assert_same(one: list[Any], staged: list[Any]) -> None:
    for a, b in zip(one, staged, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.ci
def test_logits_statistics_and_draws_are_those_of_one_device(pair: Pair) -> None:
    ids = random_models.ids(N_IDS)
    found = []
    for runner in (pair.one, pair.staged):
        begin(runner, ids)
        step = prompt(ids, capture=True)
        result = run(runner, step)
        assert result.captured is not None
        samples = tuple(Sample(i, 0, 0, 0) for i in range(12, N_IDS))
        logits = runner.logits(replace(step, samples=samples))
        runner.submit(Step((Row(0, N_IDS, FROM_GPU),), (Sample(0, 0, 7, 1, 0.8),)))
        runner.submit(Step((Row(0, N_IDS + 1, FROM_GPU),), (Sample(0, 0, 7, 2, 0.8),)))
        drawn = [result.samples, runner.collect().samples, runner.collect().samples]
        found.append((drawn, logits, measured(result.captured)))
    (draws, logits, statistics), (staged_draws, staged_logits, staged_statistics) = found
    assert staged_draws == draws
    np.testing.assert_array_equal(staged_logits, logits)
    assert_same(statistics, staged_statistics)


def test_instruments_see_every_layer(pair: Pair) -> None:
    ids = random_models.ids(N_IDS, seed=1)
    request = InspectionRequest(
        keys=(2, 11), lens=True, states=True, last_hidden=True,
        routes=pair.one.config.experts is not None,
    )  # fmt: skip
    found = []
    for runner in (pair.one, pair.staged):
        begin(runner, ids)
        inspected = runner.inspect(prompt(ids), request)
        routes = astuple(inspected.routes) if inspected.routes else ()
        parts = (inspected.attention, inspected.states, inspected.lens, inspected.last_hidden)
        found.append([*parts, *routes])
    assert_same(*found)
    plans = [runner.list_plan(4, 10) for runner in (pair.one, pair.staged)]
    one, staged = (plan for plan in plans if plan is not None)
    assert [d["label"] for d in staged["dispatches"]] == [d["label"] for d in one["dispatches"]]
    assert (staged["n_bytes"], staged["flops"]) == (one["n_bytes"], one["flops"])
    for dispatch in staged["dispatches"]:
        assert staged["kernels"][dispatch["kernel"]]["op"] == dispatch["op"]
    assert pair.staged.dispatches_per_token == pair.one.dispatches_per_token


def test_interventions_act_on_any_layer(pair: Pair) -> None:
    """Also before the first layer of a stage, whose input the stage before has measured."""
    config, boundary = pair.one.config, pair.staged.stages[1].first_layer
    vector = np.linspace(-1, 1, config.hidden_size).astype(np.float32)
    last = config.n_layers - 1
    active = ActiveInterventions(
        heads={(boundary - 1, 1): 0.0, (last, 0): 2.0},
        attention={boundary: 0.5},
        mlp={0: 1.5, last: 0.0},
        steer={0: 3 * vector, boundary: 2 * vector, last: vector},
        patch={boundary: vector[::-1].copy()},
    )
    ids = random_models.ids(N_IDS, seed=2)
    found = []
    for runner in (pair.one, pair.staged):
        begin(runner, ids)
        plain = run(runner, prompt(ids, capture=True))
        runner.set_interventions(0, active)
        changed = run(runner, prompt(ids, capture=True, interventions=True))
        step = prompt(ids, interventions=True)
        states = runner.inspect(step, InspectionRequest(states=True)).states
        assert changed.samples != plain.samples
        assert changed.captured is not None
        runner.set_interventions(0, None)
        again = run(runner, prompt(ids, capture=True, interventions=True))
        assert again.samples == plain.samples
        found.append((changed.samples, [*measured(changed.captured), states]))
    assert found[0][0] == found[1][0]
    assert_same(found[0][1], found[1][1])
    with pytest.raises(InvalidRequest, match="there is no layer"):
        pair.staged.set_interventions(0, ActiveInterventions(mlp={config.n_layers: 0.0}))


def test_blocks_are_copied_stored_and_moved_on_every_stage(pair: Pair) -> None:
    ids = random_models.ids(N_IDS, seed=3)
    can_shift = bool(pair.one.config.rope_dim)
    found = []
    for runner in (pair.one, pair.staged):
        begin(runner, ids)
        run(runner, prompt(ids))
        n_groups = len(runner.limits.windows)
        for group in range(n_groups):
            first, free = 4 * group, 4 * n_groups + 2 * group
            runner.store_block(first, group)
            runner.copy_block(first + 1, free + 1)
            runner.load_block(group, free)
            runner.set_blocks(0, [free, free + 1], group)
            if can_shift:
                runner.shift_kv([TokenMove(16 * free + 3, 16 * free + 5, 2)], group)
        row = Step((Row(0, N_IDS, 9),), (Sample(0, 0, 0, 0),))
        found.append(runner.logits(row))
    np.testing.assert_array_equal(*found)


def test_a_stage_has_the_memory_of_its_layers(pair: Pair) -> None:
    one, config = pair.one, pair.one.config
    stages = pair.staged.stages
    assert [stage.first_layer for stage in stages] == [
        stage.first for stage in cut_stages(config.n_layers, len(stages))
    ]
    tied = one.model.embedding.n_bytes if config.tie_embeddings else 0
    assert sum(stage.memory.weights for stage in stages) == one.memory.weights + tied
    layers = [sum(matrix.n_bytes for matrix in layer.matrices) for layer in one.model.layers]
    for stage in stages:
        own = sum(layers[stage.first_layer : stage.first_layer + stage.n_layers])
        outside = one.model.embedding.n_bytes if stage is stages[0] else 0
        outside += one.model.head.n_bytes if stage is stages[-1] else 0
        vectors = one.memory.weights - sum(layers) - one.model.embedding.n_bytes
        assert own + outside < stage.memory.weights <= own + outside + vectors
    if len(one.limits.windows) == 1:
        per_layer = one.memory.kv_cache // config.n_layers
        assert [s.memory.kv_cache for s in stages] == [s.n_layers * per_layer for s in stages]
    options = replace(OPTIONS, pipeline_parallel_size=len(stages))
    need = Footprint.of(pair.folder, options)
    assert need.weights <= max(stage.memory.weights for stage in stages) < one.memory.weights
    assert need.total < Footprint.of(pair.folder, OPTIONS).total


def test_stages_work_at_the_same_time(pair: Pair) -> None:
    """A stage has a step of one text while the one before has another text's."""
    runner, n_steps = pair.staged, 6
    ids = random_models.ids(N_IDS, seed=4)
    for slot in (0, 1):
        begin(runner, ids, slot)
    rows = [tuple(Row(slot, i, id) for i, id in enumerate(ids)) for slot in (0, 1)]
    steps = [Step(rows[i % 2], (Sample(N_IDS - 1, i % 2, 0, 0),)) for i in range(n_steps)]
    results = []
    for step in steps:
        runner.submit(step)
        if len(results) + runner.in_flight == steps.index(step) + 1:
            results.append(runner.collect())
    while len(results) < n_steps:
        results.append(runner.collect())
    for result in results:
        assert len(result.stage_spans) == len(runner.stages)
        for before, after in pairwise(result.stage_spans):
            assert before.ended <= after.began
    assert any(
        span.began < earlier.ended and earlier.began < span.ended
        for i, result in enumerate(results)
        for before in results[:i]
        for j, earlier in enumerate(before.stage_spans)
        for span in result.stage_spans[:j]
    )


def test_a_failing_stage_fails_the_steps_after_it(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = random_models.ids(N_IDS)
    options = replace(OPTIONS, pipeline_parallel_size=2)
    runner = StagedRunner.load(pair.folder, options)
    begin(runner, ids)

    def lost(*_: Any) -> None:
        raise DeviceError("the device was lost")

    monkeypatch.setattr(runner._workers[0].runner, "collect", lost)
    for _ in range(2):
        runner.submit(prompt(ids))
    for _ in range(2):
        with pytest.raises(DeviceError, match="was lost"):
            runner.collect()
    monkeypatch.undo()
    runner.close()


def test_stages_cannot_be_more_than_layers_or_on_devices_that_do_not_exist() -> None:
    folder = random_llama.folder("odd36")
    for n_stages in (0, 4):
        with pytest.raises(ModelError, match=rf"{n_stages} stages .* 3 layers"):
            cut_stages(3, n_stages)
    with pytest.raises(ModelError, match="4 stages"):
        StagedRunner.load(folder, replace(OPTIONS, pipeline_parallel_size=4))
    with pytest.raises(ModelError, match="4 stages"):
        Footprint.of(folder, replace(OPTIONS, pipeline_parallel_size=4))
    before = threading.active_count()
    missing = replace(OPTIONS, pipeline_parallel_size=2, stage_adapters=("0", "no such GPU"))
    with pytest.raises(DeviceError, match="no adapter matches 'no such GPU'"):
        StagedRunner.load(folder, missing)
    too_long = replace(OPTIONS, pipeline_parallel_size=2, context=64, kv_memory_bytes=1)
    with pytest.raises(DeviceError, match="KV blocks"):
        StagedRunner.load(folder, too_long)
    assert threading.active_count() == before


@pytest.mark.slow
def test_experts_of_a_stage_may_wait_in_host_memory(device: Device) -> None:
    folder = random_models.folder("qwen2_moe")
    config, checkpoint = ModelConfig.from_folder(folder), Checkpoint.open(folder)
    ids = random_models.ids(N_IDS, seed=5)
    options = replace(OPTIONS, pipeline_parallel_size=2, expert_slots=3)
    staged = StagedRunner.load(folder, options)
    found = []
    for runner in (WgpuRunner(device, config, checkpoint, OPTIONS), staged):
        begin(runner, ids)
        found.append(run(runner, prompt(ids)))
    staged.close()
    assert found[1].samples == found[0].samples
    assert found[1].experts is not None
    assert found[1].experts.brought > 6  # more than one stage has slots


def test_stages_share_the_packed_weights_on_disk_with_one_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: list[str]
) -> None:
    """Also a tied embedding, which two stages have."""
    monkeypatch.setattr(weight_cache, "MIN_WEIGHTS", 0)
    monkeypatch.setattr(weight_cache, "cache_folder", lambda: tmp_path)
    folder = random_llama.folder("odd100_tied")
    options = replace(OPTIONS, dtype="q8", weight_cache_bytes=1 << 30)
    in_stages = replace(options, pipeline_parallel_size=2)
    StagedRunner.load(folder, in_stages).close()
    assert packed
    packed.clear()
    StagedRunner.load(folder, in_stages).close()
    WgpuRunner.load(folder, options).close()
    assert not packed
    assert len(list(tmp_path.iterdir())) == 1


def test_each_machine_keeps_the_packed_weights_of_its_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: list[str]
) -> None:
    monkeypatch.setattr(weight_cache, "MIN_WEIGHTS", 0)
    monkeypatch.setattr(weight_cache, "cache_folder", lambda: tmp_path)
    folder = random_llama.folder("odd100_tied")
    options = replace(OPTIONS, dtype="q8", weight_cache_bytes=1 << 30, pipeline_parallel_size=2)
    StagedRunner.load(folder, options, hosts=ThreadHosts()).close()
    assert packed
    packed.clear()
    StagedRunner.load(folder, options, hosts=ThreadHosts()).close()
    assert not packed
    assert len(list(tmp_path.iterdir())) == 2


def test_stages_are_as_equal_as_can_be() -> None:
    assert cut_stages(7, 3) == (Stage(0, 3, 7), Stage(3, 5, 7), Stage(5, 7, 7))
    assert cut_stages(4, 4)[-1] == Stage(3, 4, 4)
    assert cut_stages(5, 1) == (Stage(0, 5, 5),)


def test_the_configuration_of_a_stage_counts_its_own_layers() -> None:
    config = ModelConfig.from_folder(random_models.folder("qwen2_moe"))
    second = config.of_stage(Stage(1, 3, 3))
    assert (second.n_layers, second.first_layer, second.layer_name(0)) == (2, 1, "layer01")
    assert config.expert_layers == (0, 2)
    assert second.expert_layers == (1,)
    windows = ModelConfig.from_folder(random_models.folder("gemma3"))
    last = windows.of_stage(Stage(5, 7, 7))
    assert last.sliding_windows == windows.sliding_windows[5:]
    assert [last.rope_of(i) for i in range(2)] == [windows.rope_of(i) for i in (5, 6)]
