"""Activations of one token in one layer: held to hooks in transformers, and to each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from gpu.errors import InvalidRequest
from gpu.interventions.active import ActiveInterventions
from gpu.load_options import LoadOptions
from gpu.pytorch.runner import TorchRunner
from gpu.runner import Runner
from gpu.step import Floats, InspectionRequest, LayerActivations, Row, Step
from gpu.webgpu.device import Device
from tests.gpu.engine import driving
from tests.gpu.models import random_llama, random_models
from tests.gpu.models.random_models import ONE_OF_EACH
from tests.gpu.models.test_models import slow_but
from tests.gpu.ops.rig import compare

pytestmark = pytest.mark.parity

N_TOKENS = 37
SEPARATE = {
    "q": ("self_attn.q_proj", "out"),
    "k": ("self_attn.k_proj", "out"),
    "v": ("self_attn.v_proj", "out"),
    "attn_norm": ("self_attn.q_proj", "in"),
    "attn_out": ("self_attn.o_proj", "in"),
    "mlp_norm": ("mlp.up_proj", "in"),
    "gate": ("mlp.gate_proj", "out"),
    "up": ("mlp.up_proj", "out"),
    "ffn_hidden": ("mlp.down_proj", "in"),
}
"""Field → module of a layer, and whether it is what goes in or what comes out."""
GPT2 = {
    "attn_norm": ("attn.c_attn", "in"),
    "attn_out": ("attn.c_proj", "in"),
    "mlp_norm": ("mlp.c_fc", "in"),
    "up": ("mlp.c_fc", "out"),
    "ffn_hidden": ("mlp.c_proj", "in"),
}
HOOKED = slow_but({"derived_head"}, ("derived_head", "gqa8", "qwen3", "gemma2", "gpt2"))


@torch.no_grad()
def theirs(model: Any, ids: list[int], layer: int) -> dict[str, Floats]:
    """Return what transformers has at the last token, by field."""
    inner = model.base_model
    module = (inner.h if hasattr(inner, "h") else inner.layers)[layer]
    named, found, handles = dict(module.named_modules()), {}, []

    def hook(field: str, side: str) -> Any:
        def keep(_module: Any, inputs: Any, output: Any) -> None:
            found[field] = (inputs[0] if side == "in" else output)[0, -1].numpy()

        return keep

    for field, (name, side) in (GPT2 if hasattr(inner, "h") else SEPARATE).items():
        handles.append(named[name].register_forward_hook(hook(field, side)))
    try:
        model(torch.tensor([ids]))
    finally:
        for handle in handles:
            handle.remove()
    return found


def random_folder(name: str) -> Path:
    return (random_llama if name in random_llama.NAMES else random_models).folder(name)


def activations(
    runner: Runner,
    ids: list[int],
    layer: int,
    head: int,
    blocks: Sequence[int] = (),
    active: ActiveInterventions | None = None,
) -> tuple[LayerActivations, Floats]:
    """Return the activations of the last token, under `active`, and the head's attention
    weights."""
    n = len(ids)
    driving.begin(runner, 0, ids, n, blocks)
    driving.prefill(runner, ids[:-1])
    runner.set_interventions(0, active)
    request = InspectionRequest(keys=(0, n), layer=(layer, head))
    step = Step((Row(0, n - 1, ids[-1]),), interventions=active is not None)
    found = runner.inspect(step, request)
    assert found.layer is not None
    assert found.attention is not None
    return found.layer, found.attention[0, layer, head]


@pytest.mark.parametrize("name", HOOKED)
def test_activations_are_those_of_hooks_in_transformers(device: Device, name: str) -> None:
    check_hooked(driving.load(device, random_folder(name), n_slots=1), name)


def test_those_of_pytorch_are_the_same(device: Device) -> None:
    name = "derived_head"
    runner = TorchRunner.load(random_folder(name), LoadOptions(dtype="f32", slots=1))
    try:
        check_hooked(runner, name)
        ids, layer = random_models.ids(N_TOKENS), 3
        mine, weights = activations(runner, ids, layer, 2)
        theirs_, their_weights = activations(
            driving.load(device, random_folder(name), n_slots=1), ids, layer, 2
        )
        compare("layer.torch.weights", name, weights, their_weights, np.array(3e-5), 0)
        for field in fields(LayerActivations):
            got, want = getattr(mine, field.name), getattr(theirs_, field.name)
            if isinstance(want, np.ndarray):
                bound = np.array(3e-5 * np.abs(want).max())
                compare(f"layer.torch.{field.name}", name, got, want, bound, 0)
            else:
                assert got == want
    finally:
        runner.close()


@pytest.mark.parametrize("change", ["steer", "patch"])
def test_the_next_layer_is_changed_after_what_the_mlp_added(device: Device, change: str) -> None:
    """On both backends: what the MLP added is not mixed with a vector that steers."""
    name, layer = "derived_head", 2
    torch_runner = TorchRunner.load(random_folder(name), LoadOptions(dtype="f32", slots=1))
    try:
        for runner in (torch_runner, driving.load(device, random_folder(name), n_slots=1)):
            vector = np.full(runner.config.hidden_size, 3.0, np.float32)
            active = ActiveInterventions(**{change: {layer + 1: vector}})
            ids = random_models.ids(N_TOKENS)
            changed, _ = activations(runner, ids, layer, 0, active=active)
            plain, _ = activations(runner, ids, layer, 0)
            after, _ = activations(runner, ids, layer + 1, 0, active=active)
            bound = np.array(1e-5)
            compare("layer.resid_post", name, changed.resid_post, plain.resid_post, bound, 0)
            start = plain.resid_post if change == "steer" else 0.0
            compare("layer.resid_pre", name, after.resid_pre, start + vector, bound, 0)
    finally:
        torch_runner.close()


def check_hooked(runner: Runner, name: str) -> None:
    ids = random_models.ids(N_TOKENS)
    rooms = random_llama if name in random_llama.NAMES else random_models
    layer = runner.config.n_layers - 1
    got, _ = activations(runner, ids, layer, 0)
    want = theirs(rooms.reference(name).model, ids, layer)
    for field, expected in want.items():
        ours = getattr(got, field)
        assert ours is not None, field
        bound = np.array(3e-5 * np.abs(expected).max())
        compare(f"layer.{field}", name, ours.reshape(-1), expected.reshape(-1), bound, seed=0)
    assert len(want) == (len(GPT2) if name == "gpt2" else len(SEPARATE))


@pytest.mark.ci
@pytest.mark.parametrize("name", slow_but({"gpt_neox"}, [*ONE_OF_EACH, "mixtral"]))
def test_the_steps_of_a_layer_follow_from_each_other(device: Device, name: str) -> None:
    """Of every architecture, so that no line of the instrument is another model's: scores,
    weights, weighted values, the output projection by head."""
    ids = random_models.ids(N_TOKENS)
    runner = driving.load(device, random_folder(name), n_slots=1)
    config, layer = runner.config, runner.config.n_layers - 1
    head = config.n_heads - 1
    got, weights = activations(runner, ids, layer, head)
    scale = config.attn_scale or config.head_dim**-0.5
    scores = got.keys.astype(np.float64) @ got.rot_q[head] * scale
    if cap := config.attn_logit_softcap:
        scores = cap * np.tanh(scores / cap)
    shares = np.exp(scores - scores.max())
    shares /= shares.sum()
    compare("layer.weights", name, weights[got.first_key :], shares, np.array(3e-6), seed=0)
    assert not weights[: got.first_key].any()
    size = np.abs(got.values).max()
    compare(
        "layer.weighted", name, got.attn_out[head], shares @ got.values, np.array(1e-5 * size), 0
    )
    own = runner.model.layers[layer]
    update = got.resid_mid.astype(np.float64) - got.resid_pre
    if own.post_attention is None:
        bias = 0.0 if own.out.bias is None else runner._memory.read(own.out.bias)[: len(update)]
        parts = got.head_out.sum(axis=0) + bias * (config.residual_scale or 1.0)
        compare("layer.head_out", name, parts, update, np.array(2e-5 * np.abs(update).max()), 0)
    assert (got.attn_norm is None) == (own.pre_attention is None)
    assert (got.mlp_norm is None) == (own.pre_mlp is None)
    assert (got.ffn_hidden is None) == (own.moe is not None)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("dtype", "kv_dtype"),
    [
        ("q4", "rotated4"),
        pytest.param("q8", "f16", marks=pytest.mark.slow),
        pytest.param("q8", "q8q4", marks=pytest.mark.slow),
    ],
)
def test_cached_keys_are_those_that_attention_reads(
    device: Device, dtype: str, kv_dtype: str
) -> None:
    """In every storage of weights and cache; the row itself leaves its key behind in all layers."""
    runner = driving.load(device, random_llama.folder("derived_head"), dtype, 1, kv_dtype)
    ids = random_llama.ids("derived_head", N_TOKENS)
    want = driving.all_logits(runner, ids)[-1]
    got, weights = activations(runner, ids, 1, 5, blocks=(5, 2, 3))
    scores = got.keys.astype(np.float64) @ got.rot_q[5] * runner.config.head_dim**-0.5
    shares = np.exp(scores - scores.max())
    compare("layer.weights", kv_dtype, weights, shares / shares.sum(), np.array(1e-5), seed=0)
    again = driving.last_logits(runner, ids)
    assert np.array_equal(again.view("u4"), want.view("u4"))


def test_reading_a_layer_leaves_the_logits_as_they_were(device: Device) -> None:
    runner = driving.load(device, random_llama.folder("derived_head"), n_slots=1)
    ids = random_llama.ids("derived_head", N_TOKENS)
    want = driving.all_logits(runner, ids)
    states = runner.inspect(
        Step((Row(0, N_TOKENS - 1, ids[-1]),)), InspectionRequest(states=True)
    ).states
    assert states is not None
    for layer in range(runner.config.n_layers):
        got, _ = activations(runner, ids, layer, 0)
        assert bits(got.resid_pre) == bits(states[0, layer])
        assert bits(got.resid_post) == bits(states[0, layer + 1])
    assert bits(driving.all_logits(runner, ids)) == bits(want)


def bits(x: npt.NDArray[np.float32]) -> bytes:
    return np.ascontiguousarray(x).tobytes()


def test_a_layer_of_several_rows_is_refused(device: Device) -> None:
    runner = driving.load(device, random_llama.folder("tiny"), n_slots=1)
    driving.begin(runner, 0, [1, 2], 2)
    with pytest.raises(InvalidRequest, match="one row, but 2 came"):
        runner.inspect(Step((Row(0, 0, 1), Row(0, 1, 2))), InspectionRequest(layer=(0, 0)))
