"""A model that does not fit is refused, with settings that would fit."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from app import tale
from app.config import Settings
from app.models.drafts import find_draft
from app.models.find_model import find_model
from app.models.free_memory import FreeMemory
from app.models.memory import expect_fit, fitting_dtype
from gpu import DeviceError, Footprint, Inventory, LoadOptions, ModelError
from tests.gpu.lora import random_loras
from tests.gpu.lora.random_loras import LLAMA

TALE = tale.model_dir()
F16 = Settings(dtype="f16")
LLAMA8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
}


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the matrices of a Llama, which are nearly all of its weights."""
    width, inner, vocab = (
        config[key] for key in ("hidden_size", "intermediate_size", "vocab_size")
    )
    kv = width * config["num_key_value_heads"] // config["num_attention_heads"]
    found = {"model.embed_tokens.weight": (vocab, width), "lm_head.weight": (vocab, width)}
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}"
        found |= {f"{p}.self_attn.{n}_proj.weight": (width, width) for n in "qo"}
        found |= {f"{p}.self_attn.{n}_proj.weight": (kv, width) for n in "kv"}
        found |= {f"{p}.mlp.{n}_proj.weight": (inner, width) for n in ("gate", "up")}
        found[f"{p}.mlp.down_proj.weight"] = (width, inner)
    return found


@pytest.fixture
def llama8b(tmp_path: Path) -> Path:
    """Return a folder with the config of Llama 3.1 8B and no weights."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA8B))
    return tmp_path


def test_stages_make_room_for_a_model_that_is_too_large_for_one_device(llama8b: Path) -> None:
    card, weights = FreeMemory(12 << 30, 64 << 30, shared=False), shapes(LLAMA8B)
    with pytest.raises(DeviceError, match="needs 18"):
        expect_fit("llama", llama8b, F16, weights, free=card)
    in_two = replace(F16, pipeline_parallel_size=2)
    need = expect_fit("llama", llama8b, in_two, weights, free=card)
    layers, matrix = 6.98e9 * 2, 128256 * 4096 * 2
    assert need.weights == pytest.approx(layers / 2 + matrix, rel=0.005)
    assert need.kv_cache == 256 << 20
    small = replace(card, device=8 << 30, n_stages=2)
    with pytest.raises(DeviceError, match=r"for each of 2 stages: .* free for each of 2 stages"):
        expect_fit("llama", llama8b, in_two, weights, free=small)


@pytest.mark.parametrize("dtype", ["f32", "f16", "q8", "q4"])
def test_the_footprint_equals_the_inventory(dtype: str) -> None:
    found = Footprint.of(TALE, LoadOptions(dtype=dtype))
    inventory = Inventory.from_folder(TALE, dtype)
    assert inventory.device_bytes is not None
    assert found.weights == pytest.approx(inventory.device_bytes, rel=0.01)
    assert found.context == 1024
    exact = found.weights + found.kv_cache + found.counts
    assert found.total == pytest.approx(1.1 * exact, abs=2)


def test_the_footprint_of_llama_8b_is_the_known_one(llama8b: Path) -> None:
    found = Footprint.of(llama8b, LoadOptions(dtype="f16"), shapes=shapes(LLAMA8B))
    assert found.weights == pytest.approx(8.03e9 * 2, rel=0.005)
    assert found.kv_cache == 512 << 20, "the engine's own choice"
    assert found.context == 4096, "128 KiB for each token"
    asked = Footprint.of(
        llama8b,
        LoadOptions(dtype="f16", context=8192, slots=1, kv_memory_bytes=1 << 30),
        shapes=shapes(LLAMA8B),
    )
    assert (asked.kv_cache, asked.context) == (1 << 30, 8192)


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(ModelError, match="dtype 'q5' is not supported"):
        Footprint.of(TALE, LoadOptions(dtype="q5"))


def expect(folder: Path, free: int | None, **settings: Any) -> Footprint:
    there = FreeMemory(free, free, shared=True)
    return expect_fit("a/llama", folder, replace(F16, **settings), shapes(LLAMA8B), free=there)


def test_a_model_that_fits_is_accepted(llama8b: Path) -> None:
    assert expect(llama8b, 20_000_000_000).total < 20_000_000_000
    assert expect(llama8b, None).total > 0, "nobody knows, so it is tried"


@pytest.mark.parametrize(
    ("free", "advice"),
    [
        (18_000_000_000, r"With --context 512 it would need 17\.\d\d GB"),
        (11_000_000_000, r"With --dtype q8 it would need 9\.9\d GB"),
        (9_900_000_000, r"With --dtype q8 --context 512 it would need 9\.\d\d GB"),
        (7_500_000_000, r"With --dtype q4 it would need 6\.6\d GB"),
        (1_000_000_000, r"No lower precision fits either: choose a smaller model"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_with_advice(
    llama8b: Path, free: int, advice: str
) -> None:
    with pytest.raises(DeviceError) as refused:
        expect(llama8b, free)
    message = str(refused.value)
    assert message.startswith("a/llama at f16 needs 18.26 GB: 16.06 GB of weights, 0.54 GB of KV")
    assert "KV cache in f16 for 4,096 tokens" in message
    assert f"the device has {free / 1e9:.2f} GB free" in message
    assert re.search(advice, message), message


@pytest.mark.parametrize("kv", ["f16", "q8", "q8q4", "rotated4"])
def test_a_smaller_cache_is_advised_where_that_is_enough(llama8b: Path, kv: str) -> None:
    """The cache has 4.29 GB in f16 and 2.28 GB in q8 with its scales."""
    asked = {"context": 32768, "max_num_seqs": 1, "kv_memory": 4096, "kv_dtype": kv}
    if kv == "f16":
        with pytest.raises(DeviceError, match=r"With --kv-dtype q8 it would need 20\.1\d GB"):
            expect(llama8b, 21_000_000_000, **asked)
    else:
        assert expect(llama8b, 21_000_000_000, **asked).kv_cache <= 32768 * 8 * 2 * 136 * 32
        with pytest.raises(DeviceError, match=r"With --context 512|With --dtype q8"):
            expect(llama8b, 17_700_000_000, **asked)


MIXTRAL = LLAMA8B | {
    "model_type": "mixtral",
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32000,
}
EXPERTS = 32 * 8 * 3 * 4096 * 14336
"""Weights of all experts: 45 of 47 billion."""


def mixtral_shapes() -> dict[str, tuple[int, ...]]:
    """Return the shapes of Mixtral 8x7B, with the experts of a layer in one tensor."""
    found = {name: of for name, of in shapes(MIXTRAL).items() if ".mlp." not in name}
    for i in range(32):
        p = f"model.layers.{i}.mlp"
        found[f"{p}.gate.weight"] = (8, 4096)
        found[f"{p}.experts.gate_up_proj"] = (8, 2 * 14336, 4096)
        found[f"{p}.experts.down_proj"] = (8, 4096, 14336)
    return found


def expect_mixtral(tmp_path: Path, free: FreeMemory, **settings: Any) -> Footprint:
    (tmp_path / "config.json").write_text(json.dumps(MIXTRAL))
    asked = replace(F16, kv_dtype="q8", context=512, **settings)
    return expect_fit("a/mixtral", tmp_path, asked, mixtral_shapes(), free=free)


def test_offloaded_experts_count_as_host_memory(tmp_path: Path) -> None:
    whole = expect_mixtral(tmp_path, FreeMemory(None, 1, shared=False))
    assert (whole.waiting, whole.weights - whole.dense) == (0, 2 * EXPERTS)
    room = FreeMemory(41_000_000_000, 100_000_000_000, shared=False)
    some = expect_mixtral(tmp_path, room, expert_slots=3)
    assert (some.waiting, some.weights) == (2 * EXPERTS, some.dense + 2 * EXPERTS * 3 // 8)
    assert some.dense == whole.dense
    assert expect_mixtral(tmp_path, FreeMemory(None, None, True), expert_slots=8) == replace(
        whole, expert_slots=8
    )


def test_host_memory_for_evicted_kv_blocks_is_counted(tmp_path: Path, llama8b: Path) -> None:
    shared = FreeMemory(30_000_000_000, 30_000_000_000, shared=True)
    apart = FreeMemory(20_000_000_000, 9_000_000_000, shared=False)

    def ask(free: FreeMemory, kv_offload: int) -> Footprint:
        settings = replace(F16, kv_offload=kv_offload)
        return expect_fit("a/llama", llama8b, settings, shapes(LLAMA8B), free=free)

    found = ask(apart, 8)
    assert (found.host, found.waiting) == (8 << 30, 0)
    assert found.total == ask(apart, 0).total, "not the device's memory"
    for free, n in ((apart, 9), (shared, 16)):
        with pytest.raises(DeviceError) as told:
            ask(free, n)
        size = f"{n * (1 << 30) / 1e9:.2f} GB"
        assert f"and {size} of host memory for evicted KV blocks" in str(told.value)
        assert "Without --kv-offload it would need 18.26 GB" in str(told.value)


def test_fewer_experts_on_the_device_are_advised(tmp_path: Path) -> None:
    card = FreeMemory(60_000_000_000, 100_000_000_000, shared=False)
    slots = r"With --expert-slots 4 it would need 53\.\d\d GB and 90\.19 GB of host memory"
    with pytest.raises(DeviceError, match=slots + r", or with --dtype q8 it would need 5\d\.\d\d"):
        expect_mixtral(tmp_path, card)
    with pytest.raises(DeviceError, match=r"needs 10\d\.\d\d GB") as told:
        expect_mixtral(tmp_path, replace(card, host=60_000_000_000), backend="wgpu")
    assert "--expert-slots" not in str(told.value), "the host has not the memory either"
    with pytest.raises(
        DeviceError, match=r"--dtype q8 --expert-slots 2 .* 47\.\d\d GB of host memory"
    ):
        expect_mixtral(tmp_path, FreeMemory(18_000_000_000, 60_000_000_000, shared=False))
    with pytest.raises(DeviceError, match=r"with 7 of 8 experts.* 90\.19 GB of host memory"):
        expect_mixtral(tmp_path, card, expert_slots=7)


def test_where_memory_is_shared_offloading_experts_saves_nothing(tmp_path: Path) -> None:
    with pytest.raises(DeviceError) as told:
        expect_mixtral(tmp_path, FreeMemory(60_000_000_000, 60_000_000_000, shared=True))
    assert "--expert-slots" not in str(told.value)
    room = FreeMemory(110_000_000_000, 110_000_000_000, shared=True)
    with pytest.raises(DeviceError, match=r"the host[.] Without --expert-slots"):
        expect_mixtral(tmp_path, room, expert_slots=4)
    assert expect_mixtral(tmp_path, room).total < 110_000_000_000


def test_adapters_of_the_model_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    base, of_another = random_loras.base(LLAMA), random_loras.folder("qwen2", "all")
    folders = {"all": random_loras.folder(LLAMA, "all"), "other": of_another}
    found = Footprint.of(base, LoadOptions(dtype="q8", loras=folders))
    alone = Footprint.of(base, LoadOptions(dtype="q8", loras={"all": folders["all"]}))
    assert found == alone
    assert found.adapters > 0
    assert found.total - Footprint.of(base, LoadOptions(dtype="q8")).total == pytest.approx(
        1.1 * found.adapters, abs=2
    )
    monkeypatch.setattr("app.models.memory.UNCHECKED_BYTES", 0)
    with pytest.raises(DeviceError, match=r"of weights, 0\.\d\d GB of adapters, "):
        expect_fit("a", base, F16, loras=folders, free=FreeMemory(1, 1, True))


def test_a_model_is_judged_with_the_adapters_it_will_have(monkeypatch: pytest.MonkeyPatch) -> None:
    base, settings = random_loras.base(LLAMA), replace(F16, model=str(random_loras.base(LLAMA)))
    room = Footprint.of(base, LoadOptions(dtype=settings.dtype)).total
    monkeypatch.setattr("app.models.memory.UNCHECKED_BYTES", 0)
    monkeypatch.setattr(
        "app.models.memory.free_memory", lambda settings: FreeMemory(room, room, shared=True)
    )
    assert find_model(settings).path == base
    with pytest.raises(DeviceError, match="of adapters"):
        find_model(settings, loras={"all": random_loras.folder(LLAMA, "all")})


def test_a_model_that_pytorch_does_not_run_is_refused_before_it_is_loaded() -> None:
    """While it is looked for: a change of the model ends no text for it."""
    path = str(random_loras.base("gpt2"))
    assert find_model(Settings(model=path)).path == Path(path)
    with pytest.raises(ModelError, match=r"^--backend torch runs .*, but this is gpt2; use"):
        find_model(Settings(model=path, backend="torch"))


def test_cache_reuse_is_refused_before_a_model_that_cannot_do_it_is_loaded() -> None:
    """A draft model reuses no chunks, so it may be one that could not."""
    path = str(random_loras.base("mistral"))
    assert find_draft(Settings(model="tale", draft=path, cache_reuse=16)) is not None
    with pytest.raises(ModelError, match=r"sliding window.*; leave out --cache-reuse$"):
        find_model(Settings(model=path, cache_reuse=16))


def test_pytorch_keeps_every_weight_in_float32() -> None:
    parameters = Inventory.from_folder(TALE, None).parameters
    found = Footprint.of(TALE, LoadOptions(dtype="q8", backend="torch", expert_slots=1))
    assert found.weights == pytest.approx(4 * parameters, rel=0.01)
    base, folder = random_loras.base(LLAMA), random_loras.folder(LLAMA, "all")
    of_torch = Footprint.of(base, LoadOptions(dtype="q8", backend="torch", loras={"all": folder}))
    assert of_torch.adapters == pytest.approx(
        4 * sum(values.size for values in load_file(folder / "adapter_model.safetensors").values())
    )


@pytest.mark.parametrize(
    ("free", "dtype", "reason"),
    [
        (None, "f16", "the weights are not quantised"),
        (20_000_000_000, "f16", "the weights are not quantised"),
        (11_000_000_000, "q8", r"f16 needs 18\.2\d GB, and the device has 11\.00 GB free"),
        (7_500_000_000, "q4", r"f16 needs 18\.2\d GB, and the device has 7\.50 GB free"),
    ],
)
def test_auto_stores_less_only_where_more_does_not_fit(
    llama8b: Path, free: int | None, dtype: str, reason: str
) -> None:
    there = FreeMemory(free, free, shared=True)
    found = fitting_dtype("a", llama8b, Settings(), lambda: shapes(LLAMA8B), free=there)
    assert found.dtype == dtype
    assert re.fullmatch(reason, found.reason)


def test_auto_refuses_what_fits_in_no_storage_type(llama8b: Path) -> None:
    tiny = FreeMemory(1_000_000_000, None, shared=True)
    with pytest.raises(DeviceError, match="a at f16 needs 18"):
        fitting_dtype("a", llama8b, Settings(), lambda: shapes(LLAMA8B), free=tiny)
    with pytest.raises(DeviceError, match="a at q8 needs 9"):
        fitting_dtype("a", llama8b, Settings(dtype="q8"), lambda: shapes(LLAMA8B), free=tiny)


def test_a_model_that_need_not_fit_is_not_judged(llama8b: Path) -> None:
    """Nor are the shapes of its weights looked up for that."""
    for settings, dtype in ((Settings(), "f16"), (Settings(dtype="q4"), "q4")):
        found = fitting_dtype(
            "a", llama8b, settings, lambda: pytest.fail("looked up"), spare_bytes=None
        )
        assert found.dtype == dtype


def test_small_models_always_fit() -> None:
    assert expect_fit("tale", TALE, F16, free=FreeMemory(1, 1, True)).total < 256 << 20
