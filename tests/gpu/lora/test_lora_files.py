"""Valid contents of an adapter's folder; everything else is refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from gpu.checkpoint.reader import Checkpoint
from gpu.checkpoint.tensor_names import expert_modules
from gpu.config import ModelConfig
from gpu.errors import ModelError
from gpu.lora import name_patterns
from gpu.lora.adapter import Lora, check_lora, open_loras
from gpu.lora.config import LoraConfig
from gpu.lora.fused import is_swapped
from gpu.lora.stack import LoraStack
from tests.gpu.lora import random_loras
from tests.gpu.lora.random_loras import LLAMA, rank_and_scale

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


def with_config(**changes: Any) -> Callable[[Path], None]:
    """Return a function that changes adapter_config.json."""

    def change(folder: Path) -> None:
        path = folder / "adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def with_tensors(**changes: Any) -> Callable[[Path], None]:
    """Return a function that changes tensors; None removes one. A and B stand for the names of one
    module's matrices."""

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
    "kind": (with_config(peft_type="LOHA"), "peft_type is 'LOHA'; only LORA"),
    "no_kind": (with_config(peft_type=None), "peft_type is null"),
    "dora": (with_config(use_dora=True), "use_dora is True, which is not supported"),
    "bias": (with_config(bias="lora_only"), "bias is 'lora_only'"),
    "lora_bias": (with_config(lora_bias=True), "lora_bias is True"),
    "saved": (with_config(modules_to_save=["lm_head"]), "modules_to_save is ..lm_head.."),
    "replicated": (with_config(layer_replication=[[0, 2], [1, 2]]), "layer_replication"),
    "pissa": (with_config(init_lora_weights="pissa_niter_4"), "changes the base as well"),
    "rank_0": (with_config(r=0), "r must be an integer from 1 to 512"),
    "rank_513": (with_config(r=513), "r must be an integer from 1 to 512"),
    "other_rank": (with_config(r=4), r"has shape \(3, \d+\), but base and config require \(4, "),
    "alpha": (with_config(lora_alpha="6"), "lora_alpha must be a number"),
    "pattern": (with_config(alpha_pattern={"(": 1}), "must be a regular expression"),
    "slow_pattern": (with_config(target_modules="(?:.*[" * 4), "must be a regular expression"),
    "long_pattern": (with_config(target_modules="a" * 65537), "of at most 65,536 characters"),
    "target": (
        with_config(target_modules=["k_proj"]),
        "its file changes .*, but its config does not",
    ),
    "targets": (with_config(target_modules={"q_proj": 1}), "target_modules must be a list"),
    "layers": (
        with_config(layers_to_transform=[0]),
        "its file changes 'model.layers.1.*not target it",
    ),
    "excluded": (
        with_config(exclude_modules=["q_proj"]),
        "its file changes .*q_proj.*not target it",
    ),
    "a_missing": (with_tensors(A=None), "lora_A of 'model.layers.0.self_attn.q_proj' is missing"),
    "both_missing": (
        with_tensors(A=None, B=None),
        "targets .*q_proj', but its file has no tensors for it",
    ),
    "a_wide": (with_tensors(A=np.zeros((3, 65), "f4")), r"has shape \(3, 65\)"),
    "b_tall": (with_tensors(B=np.zeros((65, 3), "f4")), r"has shape \(65, 3\)"),
    "b_vector": (with_tensors(B=np.zeros(64, "f4")), r"has shape \(64,\)"),
    "whole_numbers": (with_tensors(A=np.zeros((3, 64), "i4")), "is I32; expected F32, F16 or BF16"),
    "magnitude": (
        with_tensors(**{f"{Q}.lora_magnitude_vector": np.ones(64, "f4")}),
        "is not supported",
    ),
    "head": (
        with_tensors(
            **{f"base_model.model.lm_head.lora_{h}.weight": np.ones((1, 1), "f4") for h in "AB"}
        ),
        "it changes 'lm_head'; expected only matrices of attention, MLP, ex",
    ),
    "pickle": (only_pickle, "is a pickle, which can run code"),
    "cut_short": (cut_short, "truncated"),
    "no_config": (lambda f: (f / "adapter_config.json").unlink(), "adapter_config.json is missing"),
    "no_weights": (lambda f: (f / WEIGHTS).unlink(), "adapter_model.safetensors is missing"),
    "not_json": (lambda f: (f / "adapter_config.json").write_text("{") and None, "not valid JSON"),
}


@pytest.mark.parametrize("case", BAD)
def test_damaged_or_unsupported_adapters_are_refused_by_name(folder: Path, case: str) -> None:
    damage, why = BAD[case]
    damage(folder)
    with pytest.raises(ModelError, match=f"LoRA adapter 'tone': .*{why}"):
        opened(folder)


DOWN = "base_model.model.model.layers.0.mlp.experts"
FUSED = f"{DOWN}.base_layer"
EXPERTS_BASE = "mixtral_window_odd"
"""5 experts with 33 inner and 60 outer dimensions."""
BAD_EXPERTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "rank": (
        with_config(r=4, rank_pattern={}),
        r"has shape \(15, 60\) and its lora_B \(66, 15\); that",
    ),
    "wide": (
        with_tensors(**{f"{FUSED}.lora_A.weight": np.zeros((15, 61), "f4")}),
        r"shape \(15, 61\)",
    ),
    "no_target": (
        with_config(target_parameters=["mlp.router"]),
        "not target the parameters of 'model.l",
    ),
    "other_target": (with_config(target_parameters=["experts.down_proj"]), "fits none of model"),
    "half": (
        with_tensors(**{f"{FUSED}.lora_A.weight": None}),
        "lora_A of 'model.layers.0.mlp.experts.base",
    ),
    "a_layer": (
        with_tensors(**{f"{FUSED}.lora_{half}.weight": None for half in "AB"}),
        "targets 'model.layers.0.block_sparse_moe.experts.0.w1', but its file has no tensors",
    ),
    "twice": (
        with_tensors(
            **{f"{DOWN}.lora_A.weight": np.zeros((15, 60), "f4")},
            **{f"{DOWN}.lora_B.weight": np.zeros((66, 15), "f4")},
        ),
        "it changes 'model.layers.0.block_sparse_moe.experts.0.w1' twice",
    ),
    "whole_numbers": (
        with_tensors(**{f"{FUSED}.lora_A.weight": np.zeros((15, 60), "i4")}),
        "is I32; expected F32, F16 or BF16",
    ),
}


@pytest.mark.parametrize("case", BAD_EXPERTS)
def test_faults_of_adapters_of_all_experts_are_named(tmp_path: Path, case: str) -> None:
    damage, why = BAD_EXPERTS[case]
    folder = Path(shutil.copytree(random_loras.fused(EXPERTS_BASE), tmp_path / "adapter"))
    damage(folder)
    with pytest.raises(ModelError, match=f"LoRA adapter 'tone': .*{why}"):
        opened(folder, base=EXPERTS_BASE)


def test_experts_may_be_missing_in_all_layers_but_not_in_some(tmp_path: Path) -> None:
    """PEFT's "all-linear" omits experts and routers since they are no linear modules any more."""
    source = random_loras.folder(EXPERTS_BASE, "all")
    tensors = load_file(source / WEIGHTS)
    routed = [name for name in tensors if ".experts." in name or ".gate." in name]
    for n_gone, why in ((len(routed), None), (len(routed) - 2, "its file has no tensors for it")):
        folder = Path(shutil.copytree(source, tmp_path / str(n_gone)))
        with_tensors(**dict.fromkeys(sorted(routed)[:n_gone]))(folder)
        with_config(target_modules="all-linear")(folder)
        if why is None:
            assert opened(folder, base=EXPERTS_BASE).info.modules == 4 * 3
        else:
            with pytest.raises(ModelError, match=why):
                opened(folder, base=EXPERTS_BASE)


@pytest.mark.parametrize("kinds", [("fused",), ("fused", "all")])
def test_a_stack_of_experts_multiplies_as_their_modules_do(kinds: tuple[str, ...]) -> None:
    """Gate and up of one parameter share one A, and need two beside an adapter of modules."""
    of = {"fused": random_loras.fused, "all": lambda base: random_loras.folder(base, "all")}
    loras = [opened(of[kind](EXPERTS_BASE), kind, EXPERTS_BASE) for kind in kinds]
    config = ModelConfig.from_folder(random_loras.base(EXPERTS_BASE))
    modules, ranks = expert_modules(config, 1, "mlp.experts.gate_up"), sum(3 for _ in kinds)
    stack = LoraStack.of_experts(loras, modules, 66, 60)
    assert stack is not None
    assert stack.a.shape == (5 * len(kinds) * ranks, 60)
    x = np.random.default_rng(0).normal(size=60)
    lora_a_out = (stack.a @ x).reshape(5, -1)
    for expert, of_one in enumerate(modules):
        got = [
            sum(
                stack.b[expert, r, n] * lora_a_out[expert, stack.first[n] + r] for r in range(ranks)
            )
            for n in range(66)
        ]
        for i, module in enumerate(of_one):
            want = sum(lora.b(module).astype(float) @ lora.a(module) @ x for lora in loras)
            np.testing.assert_allclose(got[i::2], want, rtol=1e-5, atol=1e-5)


def test_older_adapters_of_all_experts_are_swapped(tmp_path: Path) -> None:
    """PEFT swapped inputs and outputs; if both are equal, its version decides."""
    whole, base = opened(random_loras.fused(EXPERTS_BASE), base=EXPERTS_BASE), EXPERTS_BASE
    source = random_loras.fused(base)
    tensors, n = load_file(source / WEIGHTS), 5
    swapped = {}
    for name, values in tensors.items():
        if "lora_A" in name:  # (experts · rank, inputs), to B (inputs, rank · experts)
            parts = values.reshape(n, -1, values.shape[1]).transpose(2, 1, 0)
            swapped[name.replace("lora_A", "lora_B")] = parts.reshape(values.shape[1], -1).copy()
        else:
            parts = values.reshape(len(values), -1, n).transpose(2, 1, 0)
            swapped[name.replace("lora_B", "lora_A")] = parts.reshape(-1, len(values)).copy()
    config = json.loads((source / "adapter_config.json").read_text()) | {"peft_version": "0.18.0"}
    older = opened(random_loras.write(tmp_path, config, swapped), base=base)
    assert older.modules == whole.modules
    for module in whole.modules:
        assert np.array_equal(older.a(module), whole.a(module)), module
        assert np.array_equal(older.b(module), whole.b(module)), module
    square = (6, 8), (8, 6), 6, 8, 8
    versions = {"": True, "0.18.1": True, "0.19.0": True, "0.19.1": False, "0.21.2.dev0": False}
    assert {version: is_swapped(*square, version) for version in versions} == versions
    assert is_swapped((6, 8), (9, 6), 6, 9, 8, "") is False
    assert is_swapped((6, 8), (9, 6), 5, 9, 8, "") is None


def test_an_adapter_of_another_base_is_refused(folder: Path) -> None:
    with pytest.raises(ModelError, match=r"has shape|nothing for it"):
        opened(folder, base="qwen2")


def test_a_non_finite_number_is_refused_when_it_is_read(folder: Path) -> None:
    with_tensors(A=np.full((3, 64), np.inf, np.float32))(folder)
    with pytest.raises(ModelError, match=r"LoRA adapter 'tone': .*NaN or infinity"):
        opened(folder).a("model.layers.0.self_attn.q_proj")
    with pytest.raises(ModelError, match="NaN or infinity"):
        check_lora("tone", folder, random_loras.base(LLAMA))


@pytest.mark.parametrize("name", ["", "a b", "../x", "x" * 65])
def test_an_invalid_name_is_refused(folder: Path, name: str) -> None:
    with pytest.raises(ModelError, match="expected a name of 1 to 64 letters"):
        opened(folder, name)


def test_too_many_adapters_are_refused(folder: Path) -> None:
    model = random_loras.base(LLAMA)
    config, checkpoint = ModelConfig.from_folder(model), Checkpoint.open(model)
    with pytest.raises(ModelError, match="expected at most 8 LoRA adapters, but got 9"):
        open_loras({f"a{i}": folder for i in range(9)}, config, checkpoint)


def test_an_adapter_reports_rank_modules_and_parameters() -> None:
    found = opened(random_loras.folder(LLAMA, "patterns", 2)).info
    assert (found.name, found.rank, found.modules) == ("tone", 7, 35)
    whole = Checkpoint.open(random_loras.base(LLAMA))
    tensors = load_file(random_loras.folder(LLAMA, "patterns", 2) / WEIGHTS)
    assert found.parameters == sum(tensor.size for tensor in tensors.values())
    assert found.parameters < whole.parameters()


def test_a_pattern_that_is_never_done_is_stopped(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(name_patterns, "MAX_SECONDS", 1)
    with_config(target_modules=r"(?:(?:\w|\.|x)*)*!")(folder)
    with pytest.raises(ModelError, match="takes more than 1 seconds"):
        opened(folder)


def test_ranks_and_scales_of_slow_patterns(folder: Path) -> None:
    keys = {r"(?:\w+\.)*down_proj": 5, r"mlp\..*?(?:.*?)(?:.*?)p_.*?": 7}
    with_config(rank_pattern=keys, alpha_pattern=keys)(folder)
    names = [f"model.layers.1.mlp.{name}_proj" for name in ("down", "up", "gate")]
    config = LoraConfig.read(folder, names)
    assert [config.rank(name) for name in names] == [5, 7, config.r]
    assert [config.scale(name) for name in names[:2]] == [1.0, 1.0]


def test_targets_and_patterns_mean_what_they_mean_to_peft(folder: Path) -> None:
    module = "model.layers.1.mlp.down_proj"
    cases: dict[str, tuple[dict[str, Any], bool]] = {
        "end": ({"target_modules": ["down_proj"]}, True),
        "part of a name": ({"target_modules": ["own_proj"]}, False),
        "whole": ({"target_modules": [module]}, True),
        "regex": ({"target_modules": r".*\.(down|up)_proj"}, True),
        "regex with repetitions": ({"target_modules": r".*?(?:mlp).*?\.(?:d|e).*?n_proj.*?"}, True),
        "regex with a repeated group": ({"target_modules": r"(?:\w+\.)*down_proj"}, True),
        "regex with a boundary": (
            {"target_modules": r"(?:.*text.*)|(?:\bmodel\.\w+\.[\d]{1,}\.(?:mlp)\.(?:down_proj))"},
            True,
        ),
        "regex of others": ({"target_modules": r"(?:\w+\.)+(up|gate)_(?:\w)*"}, False),
        "regex of a part": ({"target_modules": "down_proj"}, False),
        "all": ({"target_modules": "all-linear"}, True),
        "layer": ({"target_modules": ["down_proj"], "layers_to_transform": [0, 2]}, False),
        "one layer": ({"target_modules": ["down_proj"], "layers_to_transform": 1}, True),
        "excluded": ({"target_modules": ["down_proj"], "exclude_modules": ".*down.*"}, False),
        "excluded by repetitions": (
            {"target_modules": ["down_proj"], "exclude_modules": r"(?:\w+\.)+[cd]\w*"},
            False,
        ),
    }
    for case, (settings, wanted) in cases.items():
        with_config(**settings)(folder)
        assert LoraConfig.read(folder, {module}).adapts(module, 1) == wanted, case
    for kind, settings in random_loras.KINDS.items():
        config = LoraConfig.read(random_loras.folder(LLAMA, kind))
        for name in (module, "model.layers.1.self_attn.k_proj", "model.layers.0.self_attn.k_proj"):
            rank, scale = rank_and_scale(settings, name)
            assert (config.rank(name), config.scale(name)) == (
                rank,
                pytest.approx(scale, rel=1e-15),
            )


def test_a_stack_of_fused_rows_multiplies_as_its_modules_do() -> None:
    """Two alternating modules with different ranks: b · (a · x), computed by NumPy."""
    from gpu.checkpoint.row_layout import RowLayout

    loras = [opened(random_loras.folder(LLAMA, kind), kind) for kind in ("all", "patterns")]
    modules = [f"model.layers.0.mlp.{end}_proj" for end in ("gate", "up")]
    layout = RowLayout(np.tile([0, 1], 172), np.repeat(np.arange(172)[::-1], 2))
    stack = LoraStack.of(loras, [f"{module}.weight" for module in modules], lambda: layout, 64)
    assert stack is not None
    x = np.random.default_rng(0).normal(size=64)
    lora_a_out = stack.a @ x
    got = [
        sum(stack.b[r, n] * lora_a_out[stack.first[n] + r] for r in range(stack.ends[-1]))
        for n in range(344)
    ]
    for i, module in enumerate(modules):
        want = sum(lora.b(module).astype(float) @ lora.a(module) @ x for lora in loras)
        np.testing.assert_allclose(got[i::2], want[::-1], rtol=1e-5, atol=1e-5)
