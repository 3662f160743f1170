"""What a model would take, beside what the engine allocates and computes for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app import tale
from app.models.known_configs import CONFIGS, known_shape
from gpu.analysis.sizing.bounds import users_in
from gpu.analysis.sizing.devices import DEVICES, GB, DeviceSpec
from gpu.analysis.sizing.model_shape import ModelShape
from gpu.analysis.sizing.parts import parts_of
from gpu.analysis.sizing.sizing import Sizing, Workload, footprint, size_model
from gpu.analysis.sizing.step_costs import StepCosts, pairs_seen
from gpu.checkpoint.config_shapes import config_shapes
from gpu.errors import InvalidRequest
from gpu.export.recording import PROFILES, ShapeLoader
from gpu.load_options import LoadOptions
from gpu.ops.cost import Cost, StepSize
from gpu.plans.cost import plan_cost
from gpu.runners.loaded_model import LoadedModel
from gpu.webgpu.buffers import Memory
from gpu.webgpu.null_device import open_null_device
from tests.gpu.models import random_models

MIXTURE = "qwen2_moe"
"""With a shared expert, and biases."""
NAMES = ("tale", "SmolLM2-135M-Instruct", "Qwen/Qwen3-0.6B", "gemma-3-270m", MIXTURE)
LLAMA_70B, QWEN_MOE = "meta-llama/Llama-3.1-70B", "Qwen/Qwen3-30B-A3B"
CARD = DeviceSpec("card", 24 * GB, 1000 * GB, 100e12, 32 * GB, "made up")


def shape_of(name: str) -> ModelShape:
    if name in CONFIGS:
        return known_shape(name)
    folder = tale.model_dir() if name == "tale" else random_models.folder(name)
    return ModelShape.from_path(name, folder)


def load(shape: ModelShape, options: LoadOptions) -> tuple[LoadedModel, Memory]:
    """Load a model's shapes as the engine would its weights, on a device that is not there."""
    memory = Memory(open_null_device(PROFILES["portable"]))
    loader = ShapeLoader(shape.checkpoint, memory, options.dtype)
    return LoadedModel.make(shape.config, options, loader), memory


def recorded_cost(loaded: LoadedModel, size: StepSize) -> Cost:
    plan = loaded.plans.plan(size.n_rows, size.n_samples, "plain", size.longest).plan
    return plan_cost(plan, size)


def sized(name: str, *devices: DeviceSpec, **work: Any) -> Sizing:
    return size_model(shape_of(name), Workload(**work), devices)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", ["f16", pytest.param("q4", marks=pytest.mark.slow)])
def test_the_need_is_what_the_engine_allocates(name: str, dtype: str) -> None:
    shape, work = shape_of(name), Workload(dtype=dtype, users=3, context=96)
    found = size_model(shape, work, ())
    options = LoadOptions(dtype=dtype, slots=3, context=96, hybrid_kv_cache=True)
    loaded, memory = load(shape, options)
    assert found.need.kv_cache == memory.n_bytes["kv_cache"]
    with_rope = memory.n_bytes["weights"]  # the tables of the rotation count there, too
    assert found.need.weights <= with_rope < found.need.weights * 1.05
    assert found.need.total == footprint(shape, work).total
    (stored,) = (each for each in found.stored if each.dtype == dtype)
    assert stored.n_bytes == found.need.weights == sum(part.n_bytes for part in found.parts)
    assert stored.token_bytes == sum(part.token_bytes for part in found.parts)
    loaded.plans.kernels.close()


@pytest.mark.parametrize("name", NAMES)
def test_the_costs_are_nearly_those_of_the_plans(name: str) -> None:
    """A plan counts norms, activations, the softmax and the vectors between dispatches, too: never
    less, and in models that are not tiny little more."""
    shape = shape_of(name)
    loaded, _ = load(shape, LoadOptions(slots=2, context=96))
    costs = StepCosts(shape, parts_of(shape, "f16"), "f16", "f16")
    more = 1.5 if shape.parameters < 1e6 else 1.1
    decode, prefill = costs.decode(1, 61), costs.prefill(61)
    for cost, size in ((decode, StepSize(1, 1, 60)), (prefill, StepSize(61, 1, 0))):
        plan = recorded_cost(loaded, size)
        assert plan.flops / more <= cost.flops <= plan.flops
        if size.n_rows == 1:
            assert plan.n_bytes / more <= cost.n_bytes <= plan.n_bytes
    loaded.plans.kernels.close()


@pytest.mark.parametrize("name", NAMES)
def test_all_parameters_are_in_a_part(name: str) -> None:
    shape = shape_of(name)
    parts = {part.name: part for part in parts_of(shape, "f16")}
    assert sum(part.parameters for part in parts.values()) == shape.parameters
    config = shape.config
    assert parts["W_Q"].parameters == (
        config.n_layers * config.hidden_size * config.n_heads * config.head_dim
    )
    assert parts["W_E"].parameters == config.vocab_size * config.hidden_size
    assert parts["W_unembed"].parameters == (
        0 if config.tie_embeddings else parts["W_E"].parameters
    )


@pytest.mark.parametrize("name", ["phi3", "gpt2", MIXTURE])
def test_fused_projections_are_split(name: str) -> None:
    shape = shape_of(name)
    parts = {part.name: part.parameters for part in parts_of(shape, "f16")}
    config = shape.config
    assert parts["W_K"] == parts["W_V"] == parts["W_Q"] * config.n_kv_heads // config.n_heads
    if name != "gpt2":
        assert parts["W_gate"] == parts["W_up"] == parts["W_down"]


def test_seventy_billion_parameters_at_twenty_tokens_per_second() -> None:
    found = sized(LLAMA_70B, *DEVICES, users=1, context=1, rate=20)
    assert found.parameters == 70_553_706_496
    assert round(found.bytes_per_s / 1e12, 1) == 2.8
    h100 = found.devices[0]
    assert not h100.fits
    assert h100.users == 0
    assert h100.split is not None
    assert h100.split.n_devices == 2
    assert h100.offload is not None
    assert h100.offload.decode.by == "bus"
    assert h100.tokens_per_s == pytest.approx(3350e9 / found.decode.n_bytes)
    assert h100.tokens_per_s < 25


def test_the_users_that_fit_are_those_of_the_footprint() -> None:
    shape, work = shape_of("SmolLM2-135M-Instruct"), Workload(context=2048)
    found = users_in(2 * GB, lambda users, _: footprint(shape, replace(work, users=users)))
    assert found > 1
    assert footprint(shape, replace(work, users=found)).total <= 2 * GB
    assert footprint(shape, replace(work, users=found + 1)).total > 2 * GB


def test_a_mixture_reads_more_experts_for_more_users() -> None:
    one, many, crowd = (sized(QWEN_MOE, users=n, context=512) for n in (1, 8, 4096))
    assert 3.3e9 < one.active_parameters < 3.4e9
    assert one.decode.weight_bytes == pytest.approx(one.stored[1].token_bytes, rel=1e-9)
    assert 4 < many.decode.weight_bytes / one.decode.weight_bytes < 8
    assert crowd.decode.weight_bytes == pytest.approx(crowd.stored[1].n_bytes, rel=0.02)


def test_the_kv_cache_by_heads_and_window() -> None:
    smol, gemma = sized("SmolLM2-135M-Instruct").kv, sized("gemma-3-270m", context=8192).kv
    assert (smol.kind, smol.n_heads, smol.n_kv_heads) == ("GQA", 9, 3)
    assert smol.token_bytes["f16"] == 2 * 30 * 3 * 64 * 2
    assert smol.if_mha == 3 * smol.token_bytes["f16"] == 9 * smol.if_mqa
    assert smol.text_bytes == smol.unwindowed_bytes
    assert (gemma.kind, gemma.window, gemma.n_windowed) == ("MQA", 512, 15)
    assert gemma.text_bytes < gemma.unwindowed_bytes / 3


@pytest.mark.parametrize("window", [None, 1, 5, 40])
def test_the_pairs_of_a_prompt(window: int | None) -> None:
    n = 17
    assert pairs_seen(window, n) == sum(min(i + 1, window or n) for i in range(n))


def test_what_binds() -> None:
    """Writing reads all weights for one row; reading a prompt uses each for every row."""
    bounds = sized("SmolLM2-135M-Instruct", CARD, context=2048).devices[0]
    assert bounds.decode.by == "bytes"
    assert bounds.first_token is not None
    assert bounds.first_token.by == "operations"
    unknown = replace_rate(CARD, None)
    assert sized("tale", unknown).devices[0].first_token is None


def replace_rate(device: DeviceSpec, flops_per_s: float | None) -> DeviceSpec:
    return DeviceSpec(
        device.name, device.memory_bytes, device.bytes_per_s, flops_per_s, None, device.source
    )


def test_a_workload_that_makes_no_sense_is_refused() -> None:
    for work in (
        Workload(users=0),
        Workload(rate=0.0),
        Workload(context=10**6),
        Workload(dtype="q5"),
        Workload(kv_dtype="q3"),
    ):
        with pytest.raises(InvalidRequest):
            size_model(shape_of("tale"), work, ())


def test_a_folder_needs_no_weights(tmp_path: Any) -> None:
    (tmp_path / "config.json").write_bytes((tale.model_dir() / "config.json").read_bytes())
    found = ModelShape.from_path("tale", tmp_path)
    whole = shape_of("tale")
    assert found.parameters == whole.parameters
    assert parts_of(found, "q8") == parts_of(whole, "q8")
    assert set(config_shapes(whole.config)) == set(whole.checkpoint.names())
