"""Plans recorded without a device are those recorded on one, for every architecture, and a recipe
makes the bytes that the loader puts on the device."""

from __future__ import annotations

import gzip
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu.checkpoint.open_model import open_model
from gpu.checkpoint.random_checkpoint import LLAMA_SHAPES, RandomCheckpoint
from gpu.checkpoint.reader import Checkpoint
from gpu.checkpoint.recipe import Placement
from gpu.checkpoint.weights import WeightLoader
from gpu.config import ModelConfig
from gpu.errors import ModelError
from gpu.export import recording, weight_pieces
from gpu.export.exporter import export_model
from gpu.export.manifest import ExportedModel
from gpu.export.plan_builder import PlanBuilder, build_plan
from gpu.export.plan_format import PlanFile, PlanWeight, decode_plan, encode_plan
from gpu.export.recording import PROFILES, Recording, record
from gpu.load_options import LoadOptions
from gpu.lora.adapter import open_loras
from gpu.runners.loaded_model import LoadedModel
from gpu.webgpu.buffers import Memory
from gpu.webgpu.compiler import Compiler
from gpu.webgpu.device import Device
from gpu.webgpu.null_device import open_null_device
from tests.gpu.export.costs import check_costs
from tests.gpu.export.recipes import interleave, made_by_recipe
from tests.gpu.lora import random_loras
from tests.gpu.models import random_llama, random_models
from tests.gpu.models.random_models import UNLIKE

MAX_PLAN_BYTES = 300_000
CASES = (
    "llama",
    *random_models.ONE_OF_EACH,
    *random_models.ONE_OF_EACH_MOE,
)
DTYPES = ("f32", "f16", "q8", "q4")


@pytest.fixture(autouse=True)
def _nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave pipelines out: no dispatch runs here."""
    monkeypatch.setattr(Compiler, "begin", lambda *args: Future())


@pytest.fixture
def _fewer_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record a plan for each kind of tile, not for each number of rows."""
    monkeypatch.setattr(recording, "ROW_BUCKETS", (1, 2, 16, 128))


@pytest.fixture(scope="module")
def llama() -> Path:
    return random_llama.folder("odd172_bias")


def cases() -> list[Any]:
    """Each architecture with one storage type and one profile; all of these occur, also among those
    that are not slow: the ones whose dispatches differ."""
    profiles = list(PROFILES)
    return [
        pytest.param(
            name,
            DTYPES[i % 4],
            profiles[i // 4 % 2],
            id=name,
            marks=() if name in ("llama", *UNLIKE) else pytest.mark.slow,
        )
        for i, name in enumerate(CASES)
    ]


@pytest.mark.usefixtures("_fewer_rows")
@pytest.mark.parametrize(("name", "dtype", "profile"), cases())
def test_without_a_device(device: Device, llama: Path, name: str, dtype: str, profile: str) -> None:
    config, checkpoint = open_model(llama if name == "llama" else random_models.folder(name))
    options = LoadOptions(dtype=dtype, slots=2)
    recorded = record(config, checkpoint, options, profile)
    plan, constants = build_plan(recorded, profile)
    real, placements = on_device(device, config, checkpoint, options, profile, set(constants))
    assert plan == real
    check_costs(recorded)
    assert decode_plan(encode_plan(plan)) == plan
    assert b"loras" not in gzip.decompress(encode_plan(plan))
    memory = Memory(device)
    weights = {weight.name: weight for weight in plan.weights}
    assert len(weights) == len(plan.weights)
    for placement in placements:
        weight = weights[placement.recipe.name]
        on_it = np.ascontiguousarray(memory.read(placement.tensor)).tobytes()
        assert on_it == placed(weight, checkpoint, placement), weight.name


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("profile", PROFILES)
def test_plans_are_small(llama: Path, name: str, profile: str) -> None:
    folder = llama if name == "llama" else random_models.folder(name)
    recorded = record(*open_model(folder), LoadOptions(slots=2), profile)
    assert len(encode_plan(build_plan(recorded, profile)[0])) <= MAX_PLAN_BYTES


@pytest.mark.parametrize("shape", ["tiny", pytest.param("llama1b", marks=pytest.mark.slow)])
def test_plans_of_a_large_model_are_small(shape: str) -> None:
    """As many layers as one in a browser has, and the splits of a long context."""
    config, options = LLAMA_SHAPES[shape], LoadOptions(dtype="q8", slots=2, context=8192)
    recorded = record(config, RandomCheckpoint(config), options, "portable")
    assert len(encode_plan(build_plan(recorded, "portable")[0])) <= MAX_PLAN_BYTES


def on_device(
    device: Device,
    config: ModelConfig,
    checkpoint: Checkpoint,
    options: LoadOptions,
    profile: str,
    constants: set[str],
) -> tuple[PlanFile, list[Placement]]:
    """Record on a device that has the choices of the profile."""
    null = open_null_device(PROFILES[profile])
    posing = replace(device, info=null.info, tuning=null.tuning, policy=null.policy)
    loras = open_loras(options.loras, config, checkpoint)
    with WeightLoader(checkpoint, Memory(posing), options.dtype) as load:
        loaded = LoadedModel.make(config, options, load, loras)
    recorded = Recording.of(loaded, posing, load.placements)

    def contents(buffer: Any) -> bytes | None:
        if buffer.label not in constants:
            return None
        return bytes(device.wgpu.queue.read_buffer(buffer))

    plan = PlanBuilder(recorded, profile, contents).build()
    recorded.close()
    return plan, load.placements


def placed(weight: PlanWeight, checkpoint: Checkpoint, placement: Placement) -> bytes:
    """Return the bytes of a buffer, from the checkpoint's tensors by the recipe."""
    return in_buffer(weight, made_by_recipe(weight, checkpoint), placement)


def in_buffer(weight: PlanWeight, rows: bytes, placement: Placement) -> bytes:
    """Return the bytes of a buffer, which has some of the rows of a weight."""
    row = weight.bytes // weight.n
    part = rows[placement.first * row : (placement.first + placement.n) * row]
    return interleave(weight.dtype, row, part, placement.interleaved)


def adapters_of(name: str) -> LoadOptions:
    """Options with two adapters of a model, of other ranks and modules."""
    loras = {kind: random_loras.folder(name, kind) for kind in ("all", "attention")}
    return LoadOptions(dtype="q8", slots=2, loras=loras)


def data_of(folder: Path, exported: ExportedModel) -> bytes:
    return b"".join((folder / piece.file).read_bytes() for piece in exported.weights.pieces)


@pytest.mark.usefixtures("_fewer_rows")
@pytest.mark.parametrize(
    ("name", "profile"),
    [
        pytest.param(random_loras.LLAMA, "portable", marks=pytest.mark.slow),
        ("mixtral", "software"),
    ],
)
def test_adapters_without_a_device(device: Device, tmp_path: Path, name: str, profile: str) -> None:
    """The plans are those of a device, each is there with adapters and without, and the pieces
    hold what the loader puts on the device."""
    folder, options = random_loras.base(name), adapters_of(name)
    config, checkpoint = open_model(folder)
    plan, constants = build_plan(record(config, checkpoint, options, profile), profile)
    real, placements = on_device(device, config, checkpoint, options, profile, set(constants))
    assert plan == real
    assert decode_plan(encode_plan(plan)) == plan
    assert [lora.name for lora in plan.model.loras] == list(options.loras)
    assert plan.tensors["lora.strengths"].shape == (options.slots + 1, len(options.loras))
    found = {(p.kind, p.rows, p.samples, p.splits, p.interventions, p.loras) for p in plan.plans}
    assert len(found) == len(plan.plans)
    for *size, loras in found:
        assert size[0] == "lens" or (*size, not loras) in found
    data = data_of(tmp_path, export_model(folder, tmp_path, options, [profile]))
    weights = {weight.name: weight for weight in plan.weights}
    assert len(weights) == len(plan.weights)
    of_adapters = [placement for placement in placements if not placement.recipe.parts]
    assert len(of_adapters) > 2 * config.n_layers
    for placement in of_adapters:
        weight = weights[placement.recipe.name]
        on_it = np.ascontiguousarray(Memory(device).read(placement.tensor)).tobytes()
        rows = in_buffer(weight, data[weight.at : weight.at + weight.bytes], placement)
        assert on_it[: len(rows)] == rows, weight.name


@pytest.mark.slow
@pytest.mark.usefixtures("_fewer_rows")
def test_an_interrupted_export_goes_on_within_adapters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_pieces, "PIECE_BYTES", 5000)
    folder, options = random_loras.base(random_loras.LLAMA), adapters_of(random_loras.LLAMA)
    exported = export_model(folder, tmp_path, options, ["portable"])
    whole, pieces = data_of(tmp_path, exported), exported.weights.pieces
    plan = decode_plan((tmp_path / exported.plans["portable"].file).read_bytes())
    at = next(w.at for w in plan.weights if w.name.endswith(".lora_b"))
    assert len(pieces) > at // 5000 + 2
    for piece in pieces[at // 5000 :]:
        (tmp_path / piece.file).unlink()
    assert data_of(tmp_path, export_model(folder, tmp_path, options, ["portable"])) == whole


@pytest.mark.parametrize("dtype", ["f32", "q4"])
def test_pieces_hold_what_the_recipes_make(llama: Path, tmp_path: Path, dtype: str) -> None:
    exported = export_model(llama, tmp_path, LoadOptions(dtype=dtype, slots=2), ["portable"])
    data = data_of(tmp_path, exported)
    plan = decode_plan((tmp_path / exported.plans["portable"].file).read_bytes())
    checkpoint = Checkpoint.open(llama)
    for weight in (weight for weight in plan.weights if weight.parts):
        made = made_by_recipe(weight, checkpoint)
        assert data[weight.at : weight.at + weight.bytes] == made, weight.name
    assert exported.weights.bytes == len(data) == sum(weight.bytes for weight in plan.weights)


def test_a_plan_needs_no_more_than_every_browser_gives(llama: Path) -> None:
    for profile, adapter in PROFILES.items():
        recorded = record(*open_model(llama), LoadOptions(slots=2), profile)
        needs = build_plan(recorded, profile)[0].needs
        assert needs.features == ()
        assert needs.limits["maxStorageBuffersPerShaderStage"] <= 8
        assert needs.limits["maxComputeInvocationsPerWorkgroup"] <= 256
        most = adapter.limits["max-compute-workgroup-storage-size"]
        assert needs.limits["maxComputeWorkgroupStorageSize"] <= most


def test_every_size_of_a_step_has_its_plan(llama: Path) -> None:
    shapes = record(*open_model(llama), LoadOptions(slots=2, context=300), "portable")
    plan, _ = build_plan(shapes, "portable")
    found = {(p.kind, p.rows, p.samples, p.splits, p.interventions) for p in plan.plans}
    assert len(found) == len(plan.plans)
    lookup, limits = plan.lookup, plan.limits
    for kind in ("plain", "captured"):
        most = limits.max_captured_rows if kind == "captured" else limits.max_rows
        for n_rows in range(1, most + 1):
            for context in range(n_rows, limits.context + 1, 7):
                recorded = shapes.loaded.plans.plan(n_rows, 1, kind, context).key
                rows = next(n for n in lookup.rows if n >= n_rows)
                splits = 1
                while rows <= lookup.split_rows and splits * lookup.split_tokens < context:
                    splits *= 2
                assert (rows, splits) == (recorded.rows, recorded.splits)
                for samples in range(min(rows, limits.slots) + 1):
                    assert (kind, rows, samples, splits, False) in found
                    assert (kind, rows, samples, splits, True) in found


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (LoadOptions(expert_slots=1), "--expert-slots"),
        (LoadOptions(activations="q8"), "--activations"),
    ],
)
def test_what_a_browser_cannot_do_is_refused(llama: Path, options: LoadOptions, word: str) -> None:
    with pytest.raises(ModelError, match=word):
        record(*open_model(llama), options, "portable")


def test_an_adapter_of_another_model_is_refused(llama: Path) -> None:
    options = LoadOptions(loras={"tone": random_loras.folder("qwen2", "all")})
    with pytest.raises(ModelError, match="LoRA adapter 'tone'"):
        record(*open_model(llama), options, "portable")


def test_other_files_are_no_plans() -> None:
    for data in (b"", b"{}", b"\x1f\x8b", gzip.compress(b"{}"), gzip.compress(b"[1")):
        with pytest.raises(ModelError, match="not a plan"):
            decode_plan(data)
