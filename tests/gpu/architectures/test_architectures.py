"""The files of gpu/architectures; one is added here, with a forward pass of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import gpu.architectures
from gpu.architectures import ARCHITECTURES, find_architectures
from gpu.bench.machine.child import run_check
from gpu.checkpoint.inventory import Inventory
from gpu.checkpoint.reader import Checkpoint
from gpu.checks.models import check_model
from gpu.checks.rig import Rig
from gpu.config import ModelConfig
from gpu.errors import ModelError
from gpu.load_options import LoadOptions
from gpu.lora.targets import lora_targets
from gpu.models.registry import MODELS
from gpu.pytorch.runner import TorchRunner
from gpu.webgpu.device import Device
from tests.gpu.architectures.added.forward import ParallelPostNorm
from tests.gpu.engine import driving
from tests.gpu.models.logit_checks import check_logits

ROOT = Path(__file__).parents[3]
ADDED = Path(__file__).parent / "added" / "architectures"
NAME = "parallel_post_norm"
LAYERS, HIDDEN, HEADS, KV_HEADS, INNER, VOCAB = 3, 48, 6, 2, 100, 200


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of an architecture that was found in a file more, and has a pass of its own."""
    path = [*gpu.architectures.__path__, str(ADDED)]
    monkeypatch.setattr(gpu.architectures, "__path__", path)
    found = find_architectures()
    assert set(found) - set(ARCHITECTURES) == {NAME}
    monkeypatch.setitem(ARCHITECTURES, NAME, found[NAME])
    monkeypatch.setitem(MODELS, NAME, ParallelPostNorm)
    return NAME


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model of that architecture with random weights."""
    config = {
        "model_type": NAME,
        "num_hidden_layers": LAYERS,
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "intermediate_size": INNER,
        "vocab_size": VOCAB,
        "max_position_embeddings": 128,
        "mlp_bias": True,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(random_weights(), tmp_path / "model.safetensors")
    return tmp_path


def random_weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)

    def matrix(n_out: int, n_in: int, gain: float = 1.0) -> np.ndarray:
        return rng.normal(0, gain * n_in**-0.5, (n_out, n_in)).astype(np.float32)

    def vector(n: int) -> np.ndarray:
        return rng.uniform(0.5, 1.5, n).astype(np.float32)

    kv = HIDDEN // HEADS * KV_HEADS
    found = {
        "model.embed_tokens.weight": matrix(VOCAB, HIDDEN, 3.0),
        "model.norm.weight": vector(HIDDEN),
        "lm_head.weight": matrix(VOCAB, HIDDEN, 2.0),
    }
    for i in range(LAYERS):
        layer = {
            "self_attn.q_proj.weight": matrix(HIDDEN, HIDDEN, 2.0),
            "self_attn.k_proj.weight": matrix(kv, HIDDEN, 2.0),
            "self_attn.v_proj.weight": matrix(kv, HIDDEN),
            "self_attn.o_proj.weight": matrix(HIDDEN, HIDDEN),
            "post_attention_layernorm.weight": vector(HIDDEN),
            "mlp.gate_proj.weight": matrix(INNER, HIDDEN),
            "mlp.gate_proj.bias": vector(INNER),
            "mlp.up_proj.weight": matrix(INNER, HIDDEN),
            "mlp.up_proj.bias": vector(INNER),
            "mlp.down_proj.weight": matrix(HIDDEN, INNER),
            "mlp.down_proj.bias": vector(HIDDEN),
            "post_feedforward_layernorm.weight": vector(HIDDEN),
        }
        found |= {f"model.layers.{i}.{name}": data for name, data in layer.items()}
    return found


@pytest.mark.parity
def test_an_added_architecture_runs_on_both_backends(
    device: Device, added: str, folder: Path
) -> None:
    ids = np.random.default_rng(1).integers(0, VOCAB, 40).tolist()
    wgpu = driving.load(device, folder)
    torch = TorchRunner.load(folder, LoadOptions(dtype="f32"))
    try:
        want = driving.all_logits(torch, ids)
    finally:
        torch.close()
    check_logits("added.logits.f32", driving.all_logits(wgpu, ids), want, added)


def test_an_added_architecture_is_known_to_the_tools(added: str, folder: Path) -> None:
    """Its tensors have a place in the inventory, and adapters their targets."""
    inventory = Inventory.from_folder(folder, "q8")
    assert not [tensor.name for tensor in inventory.tensors if tensor.kind == "unused"]
    targets = lora_targets(ModelConfig.from_folder(folder), Checkpoint.open(folder))
    assert len(list(targets)) == 7 * LAYERS


@pytest.mark.ci
@pytest.mark.parity
def test_a_report_checks_an_added_architecture(device: Device, added: str) -> None:
    found = run_check(partial(check_model, model_type=added), Rig(device))
    assert (found.status, found.note) == ("ok", "")
    assert found.figures["numbers"] > 0


def test_an_architecture_without_its_file_is_refused(folder: Path) -> None:
    with pytest.raises(ModelError, match=f"model_type '{NAME}' is not supported"):
        ModelConfig.from_folder(folder)


def test_every_architecture_has_a_forward_pass() -> None:
    assert list(ARCHITECTURES) == sorted(ARCHITECTURES)
    assert set(ARCHITECTURES) == set(MODELS)


def test_data_files_load_neither_wgpu_nor_torch() -> None:
    code = (
        "import sys, gpu.architectures; print([m for m in ('wgpu', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "[]\n", done.stderr
