"""What an adapter's folder may hold; everything else is refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from gpu.checkpoint.parts import expert_modules
from gpu.checkpoint.reader import Checkpoint
from gpu.config import ModelConfig
from gpu.errors import ModelError
from gpu.lora.adapter import Lora, check_lora, open_loras
from gpu.lora.config import LoraConfig
from gpu.lora.fused import is_turned
from gpu.lora.stack import Stack
from tests.gpu import random_loras
from tests.gpu.random_loras import LLAMA, rank_and_scale

Q = "base_model.model.model.layers.0.self_attn.q_proj"
A, B = f"{Q}.lora_A.weight", f"{Q}.lora_B.weight"
WEIGHTS = "adapter_model.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An adapter to damage."""
    return Path(shutil.copytree(random_loras.folder(LLAMA, "all"), tmp_path / "adapter"))


def opened(folder: Path, name: str = "tone", base: str = LLAMA) -> Lora:
    model = random_loras.base(base)
    return Lora.open(name, folder, ModelConfig.from_folder(model), Checkpoint.open(model))


def told(**changes: Any) -> Callable[[Path], None]:
    """Changes adapter_config.json."""

    def change(folder: Path) -> None:
        path = folder / "adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def held(**changes: Any) -> Callable[[Path], None]:
    """Changes tensors, None: takes one away; A and B stand for the names of one module's."""

    def change(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        for name, values in changes.items():
            name = {"A": A, "B": B}.get(name, name)
            tensors.pop(name, None)
            if values is not None:
                tensors[name] = values
        save_file(tensors, folder / WEIGHTS)

    return change


def only_pickle(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / "adapter_model.bin").write_bytes(b"")


def cut_short(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-5])


BAD: dict[str, tuple[Callable[[Path], None], str]] = {
    "kind": (told(peft_type="LOHA"), "peft_type is 'LOHA'; only LORA"),
    "no_kind": (told(peft_type=None), "peft_type is null"),
    "dora": (told(use_dora=True), "use_dora is True, which is not supported"),
    "bias": (told(bias="lora_only"), "bias is 'lora_only'"),
    "lora_bias": (told(lora_bias=True), "lora_bias is True"),
    "saved": (told(modules_to_save=["lm_head"]), "modules_to_save is ..lm_head.."),
    "replicated": (told(layer_replication=[[0, 2], [1, 2]]), "layer_replication"),
    "pissa": (told(init_lora_weights="pissa_niter_4"), "changes the base as well"),
    "rank_0": (told(r=0), "r must be an integer from 1 to 512"),
    "rank_513": (told(r=513), "r must be an integer from 1 to 512"),
    "other_rank": (told(r=4), r"has shape \(3, \d+\), but base and config make it \(4, "),
    "alpha": (told(lora_alpha="6"), "lora_alpha must be a number"),
    "pattern": (told(alpha_pattern={"(": 1}), "must be a regular expression"),
    "long_pattern": (told(target_modules="a" * 1001), "1000 characters and 3 repetitions"),
    "target": (told(target_modules=["k_proj"]), "its config does not target .*, its file does"),
    "targets": (told(target_modules={"q_proj": 1}), "target_modules must be a list"),
    "layers": (told(layers_to_transform=[0]), "does not target 'model.layers.1"),
    "excluded": (told(exclude_modules=["q_proj"]), "does not target .*q_proj"),
    "a_missing": (held(A=None), "lora_A of 'model.layers.0.self_attn.q_proj' is missing"),
    "both_missing": (held(A=None, B=None), "targets .*q_proj', but its file has nothing for it"),
    "a_wide": (held(A=np.zeros((3, 65), "f4")), r"has shape \(3, 65\)"),
    "b_tall": (held(B=np.zeros((65, 3), "f4")), r"has shape \(65, 3\)"),
    "b_vector": (held(B=np.zeros(64, "f4")), r"has shape \(64,\)"),
    "whole_numbers": (held(A=np.zeros((3, 64), "i4")), "is I32, not F32, F16 or BF16"),
    "magnitude": (held(**{f"{Q}.lora_magnitude_vector": np.ones(64, "f4")}), "is not supported"),
    "head": (
        held(**{f"base_model.model.lm_head.lora_{h}.weight": np.ones((1, 1), "f4") for h in "AB"}),
        "it changes 'lm_head', but adapters are supported for the matrices of attention, MLP, ex",
    ),
    "pickle": (only_pickle, "is a pickle, which can run code"),
    "cut_short": (cut_short, "truncated"),
    "no_config": (lambda f: (f / "adapter_config.json").unlink(), "adapter_config.json is missing"),
    "no_weights": (lambda f: (f / WEIGHTS).unlink(), "adapter_model.safetensors is missing"),
    "not_json": (lambda f: (f / "adapter_config.json").write_text("{") and None, "not valid JSON"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_damaged_or_not_supported_is_refused_by_name(folder: Path, case: str) -> None:
    damage, why = BAD[case]
    damage(folder)
    with pytest.raises(ModelError, match=f"LoRA adapter 'tone': .*{why}"):
        opened(folder)


DOWN = "base_model.model.model.layers.0.mlp.experts"
FUSED = f"{DOWN}.base_layer"
EXPERTS_BASE = "mixtral_window_odd"
"""5 experts of 33 inputs inside, 60 outside."""
BAD_EXPERTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "rank": (told(r=4, rank_pattern={}), r"has shape \(15, 60\) and its lora_B \(66, 15\); base"),
    "wide": (held(**{f"{FUSED}.lora_A.weight": np.zeros((15, 61), "f4")}), r"shape \(15, 61\)"),
    "no_target": (told(target_parameters=["mlp.router"]), "not target the parameters of 'model.l"),
    "other_target": (told(target_parameters=["experts.down_proj"]), "make that of none of model"),
    "half": (
        held(**{f"{FUSED}.lora_A.weight": None}),
        "lora_A of 'model.layers.0.mlp.experts.base",
    ),
    "a_layer": (
        held(**{f"{FUSED}.lora_{half}.weight": None for half in "AB"}),
        "targets 'model.layers.0.block_sparse_moe.experts.0.w1', but its file has nothing for it",
    ),
    "twice": (
        held(
            **{f"{DOWN}.lora_A.weight": np.zeros((15, 60), "f4")},
            **{f"{DOWN}.lora_B.weight": np.zeros((66, 15), "f4")},
        ),
        "it changes 'model.layers.0.block_sparse_moe.experts.0.w1' twice",
    ),
    "whole_numbers": (
        held(**{f"{FUSED}.lora_A.weight": np.zeros((15, 60), "i4")}),
        "is I32, not F32, F16 or BF16",
    ),
}


@pytest.mark.parametrize("case", BAD_EXPERTS)
def test_what_is_wrong_with_all_experts_is_said(tmp_path: Path, case: str) -> None:
    damage, why = BAD_EXPERTS[case]
    folder = Path(shutil.copytree(random_loras.fused(EXPERTS_BASE), tmp_path / "adapter"))
    damage(folder)
    with pytest.raises(ModelError, match=f"LoRA adapter 'tone': .*{why}"):
        opened(folder, base=EXPERTS_BASE)


def test_experts_may_be_left_out_together_but_not_some(tmp_path: Path) -> None:
    """As by "all-linear" since experts and routers are no linear modules any more."""
    source = random_loras.folder(EXPERTS_BASE, "all")
    tensors = load_file(source / WEIGHTS)
    routed = [name for name in tensors if ".experts." in name or ".gate." in name]
    for n_gone, why in ((len(routed), None), (len(routed) - 2, "its file has nothing for it")):
        folder = Path(shutil.copytree(source, tmp_path / str(n_gone)))
        held(**dict.fromkeys(sorted(routed)[:n_gone]))(folder)
        told(target_modules="all-linear")(folder)
        if why is None:
            assert opened(folder, base=EXPERTS_BASE).info.modules == 4 * 3
        else:
            with pytest.raises(ModelError, match=why):
                opened(folder, base=EXPERTS_BASE)


@pytest.mark.parametrize("kinds", [("fused",), ("fused", "all")])
def test_a_stack_of_experts_multiplies_as_their_modules_do(kinds: tuple[str, ...]) -> None:
    """Gate and up of one parameter have one A, and take two beside an adapter of modules."""
    of = {"fused": random_loras.fused, "all": lambda base: random_loras.folder(base, "all")}
    loras = [opened(of[kind](EXPERTS_BASE), kind, EXPERTS_BASE) for kind in kinds]
    config = ModelConfig.from_folder(random_loras.base(EXPERTS_BASE))
    modules, ranks = expert_modules(config, 1, "mlp.experts.gate_up"), sum(3 for _ in kinds)
    stack = Stack.of_experts(loras, modules, 66, 60)
    assert stack is not None
    assert stack.a.shape == (5 * len(kinds) * ranks, 60)
    x = np.random.default_rng(0).normal(size=60)
    shrunk = (stack.a @ x).reshape(5, -1)
    for expert, of_one in enumerate(modules):
        got = [
            sum(stack.b[expert, r, n] * shrunk[expert, stack.first[n] + r] for r in range(ranks))
            for n in range(66)
        ]
        for i, module in enumerate(of_one):
            want = sum(lora.b(module).astype(float) @ lora.a(module) @ x for lora in loras)
            np.testing.assert_allclose(got[i::2], want, rtol=1e-5, atol=1e-5)


def test_older_adapters_of_all_experts_are_turned(tmp_path: Path) -> None:
    """PEFT took their outputs for inputs; of as many, its version tells."""
    whole, base = opened(random_loras.fused(EXPERTS_BASE), base=EXPERTS_BASE), EXPERTS_BASE
    source = random_loras.fused(base)
    tensors, n = load_file(source / WEIGHTS), 5
    turned = {}
    for name, values in tensors.items():
        if "lora_A" in name:  # (experts · rank, inputs), to B (inputs, rank · experts)
            parts = values.reshape(n, -1, values.shape[1]).transpose(2, 1, 0)
            turned[name.replace("lora_A", "lora_B")] = parts.reshape(values.shape[1], -1).copy()
        else:
            parts = values.reshape(len(values), -1, n).transpose(2, 1, 0)
            turned[name.replace("lora_B", "lora_A")] = parts.reshape(-1, len(values)).copy()
    config = json.loads((source / "adapter_config.json").read_text()) | {"peft_version": "0.18.0"}
    older = opened(random_loras.write(tmp_path, config, turned), base=base)
    assert older.modules == whole.modules
    for module in whole.modules:
        assert np.array_equal(older.a(module), whole.a(module)), module
        assert np.array_equal(older.b(module), whole.b(module)), module
    square = (6, 8), (8, 6), 6, 8, 8
    versions = {"": True, "0.18.1": True, "0.19.0": True, "0.19.1": False, "0.21.2.dev0": False}
    assert {version: is_turned(*square, version) for version in versions} == versions
    assert is_turned((6, 8), (9, 6), 6, 9, 8, "") is False
    assert is_turned((6, 8), (9, 6), 5, 9, 8, "") is None


def test_an_adapter_of_another_base_is_refused(folder: Path) -> None:
    with pytest.raises(ModelError, match=r"has shape|nothing for it"):
        opened(folder, base="qwen2")


def test_a_number_that_is_none_is_refused_when_it_is_read(folder: Path) -> None:
    held(A=np.full((3, 64), np.inf, np.float32))(folder)
    with pytest.raises(ModelError, match=r"LoRA adapter 'tone': .*NaN or infinity"):
        opened(folder).a("model.layers.0.self_attn.q_proj")
    with pytest.raises(ModelError, match="NaN or infinity"):
        check_lora("tone", folder, random_loras.base(LLAMA))


@pytest.mark.parametrize("name", ["", "a b", "../x", "x" * 65])
def test_a_name_has_to_be_one(folder: Path, name: str) -> None:
    with pytest.raises(ModelError, match="its name must be 1 to 64 letters"):
        opened(folder, name)


def test_so_many_adapters_are_taken_and_no_more(folder: Path) -> None:
    model = random_loras.base(LLAMA)
    config, checkpoint = ModelConfig.from_folder(model), Checkpoint.open(model)
    with pytest.raises(ModelError, match="9 LoRA adapters are given; 8 are taken at most"):
        open_loras({f"a{i}": folder for i in range(9)}, config, checkpoint)


def test_an_adapter_tells_what_it_is() -> None:
    found = opened(random_loras.folder(LLAMA, "patterns", 2)).info
    assert (found.name, found.rank, found.modules) == ("tone", 7, 35)
    whole = Checkpoint.open(random_loras.base(LLAMA))
    tensors = load_file(random_loras.folder(LLAMA, "patterns", 2) / WEIGHTS)
    assert found.parameters == sum(tensor.size for tensor in tensors.values())
    assert found.parameters < whole.parameters()


def test_targets_and_patterns_mean_what_they_mean_to_peft(folder: Path) -> None:
    module = "model.layers.1.mlp.down_proj"
    cases: dict[str, tuple[dict[str, Any], bool]] = {
        "end": ({"target_modules": ["down_proj"]}, True),
        "part of a name": ({"target_modules": ["own_proj"]}, False),
        "whole": ({"target_modules": [module]}, True),
        "regex": ({"target_modules": r".*\.(down|up)_proj"}, True),
        "regex of a part": ({"target_modules": "down_proj"}, False),
        "all": ({"target_modules": "all-linear"}, True),
        "layer": ({"target_modules": ["down_proj"], "layers_to_transform": [0, 2]}, False),
        "one layer": ({"target_modules": ["down_proj"], "layers_to_transform": 1}, True),
        "excluded": ({"target_modules": ["down_proj"], "exclude_modules": ".*down.*"}, False),
    }
    for case, (settings, wanted) in cases.items():
        told(**settings)(folder)
        assert LoraConfig.read(folder).adapts(module, 1) == wanted, case
    for kind, settings in random_loras.KINDS.items():
        config = LoraConfig.read(random_loras.folder(LLAMA, kind))
        for name in (module, "model.layers.1.self_attn.k_proj", "model.layers.0.self_attn.k_proj"):
            rank, scale = rank_and_scale(settings, name)
            assert (config.rank(name), config.scale(name)) == (
                rank,
                pytest.approx(scale, rel=1e-15),
            )


def test_a_stack_of_fused_rows_multiplies_as_its_modules_do() -> None:
    """Of two modules in turn with unlike ranks: b · (a · x), by hand."""
    from gpu.checkpoint.laid import Laid

    loras = [opened(random_loras.folder(LLAMA, kind), kind) for kind in ("all", "patterns")]
    modules = [f"model.layers.0.mlp.{end}_proj" for end in ("gate", "up")]
    laid = Laid(np.tile([0, 1], 172), np.repeat(np.arange(172)[::-1], 2))
    stack = Stack.of(loras, [f"{module}.weight" for module in modules], lambda: laid, 64)
    assert stack is not None
    x = np.random.default_rng(0).normal(size=64)
    shrunk = stack.a @ x
    got = [
        sum(stack.b[r, n] * shrunk[stack.first[n] + r] for r in range(stack.ends[-1]))
        for n in range(344)
    ]
    for i, module in enumerate(modules):
        want = sum(lora.b(module).astype(float) @ lora.a(module) @ x for lora in loras)
        np.testing.assert_allclose(got[i::2], want[::-1], rtol=1e-5, atol=1e-5)
