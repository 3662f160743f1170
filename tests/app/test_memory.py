"""What a model will need, beside what there is."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from app import tale
from app.config import Settings
from app.memory import device_bytes, expect_fit, host_bytes
from gpu import DeviceError, DeviceInfo, Footprint, Inventory, ModelError

TALE = tale.model_dir()
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
    """Of the matrices of a Llama, which is nearly all it has."""
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
    """A folder with the config of Llama 3.1 8B, and nothing else."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA8B))
    return tmp_path


@pytest.mark.parametrize("dtype", ["f32", "f16", "q8", "q4"])
def test_the_need_is_what_the_inventory_says(dtype: str) -> None:
    found = Footprint.of(TALE, dtype)
    inventory = Inventory.from_folder(TALE, dtype)
    assert inventory.device_bytes is not None
    assert found.weights == pytest.approx(inventory.device_bytes, rel=0.01)
    assert found.context == 1024
    assert found.total == pytest.approx(1.1 * (found.weights + found.kv_cache), abs=2)


def test_a_known_model_needs_what_is_known_of_it(llama8b: Path) -> None:
    found = Footprint.of(llama8b, "f16", shapes=shapes(LLAMA8B))
    assert found.weights == pytest.approx(8.03e9 * 2, rel=0.005)
    assert found.kv_cache == 512 << 20, "the engine's own choice"
    assert found.context == 4096, "128 KiB for each token"
    asked = Footprint.of(
        llama8b, "f16", shapes=shapes(LLAMA8B), context=8192, n_slots=1, kv_bytes=1 << 30
    )
    assert (asked.kv_cache, asked.context) == (1 << 30, 8192)


def test_it_knows_dtypes() -> None:
    with pytest.raises(ModelError, match="dtype 'q5' is not supported"):
        Footprint.of(TALE, "q5")


def expect(folder: Path, free: int | None, **settings: Any) -> Footprint:
    return expect_fit(
        "a/llama", folder, Settings(**settings), shapes(LLAMA8B), free_bytes=lambda _: free
    )


def test_what_fits_fits(llama8b: Path) -> None:
    assert expect(llama8b, 20_000_000_000).total < 20_000_000_000
    assert expect(llama8b, None).total > 0, "nobody knows, so it is tried"


@pytest.mark.parametrize(
    ("free", "advice"),
    [
        (18_000_000_000, r"With --context 512 it would need 17\.\d\d GB"),
        (11_000_000_000, r"With --dtype q8 it would need 9\.9\d GB"),
        (9_900_000_000, r"With --dtype q8 --context 512 it would need 9\.\d\d GB"),
        (7_500_000_000, r"With --dtype q4 it would need 6\.6\d GB"),
        (1_000_000_000, r"No lower precision fits either: take a smaller model"),
    ],
)
def test_what_does_not_fit_comes_with_advice(llama8b: Path, free: int, advice: str) -> None:
    with pytest.raises(DeviceError) as refused:
        expect(llama8b, free)
    message = str(refused.value)
    assert message.startswith("a/llama at f16 needs 18.26 GB: 16.06 GB of weights, 0.54 GB of KV")
    assert "KV cache in f16 for 4,096 tokens" in message
    assert f"the device has {free / 1e9:.2f} GB free" in message
    assert re.search(advice, message), message


@pytest.mark.parametrize("kv", ["f16", "q8", "q8q4", "rotated4"])
def test_a_smaller_cache_is_advised_where_that_is_enough(llama8b: Path, kv: str) -> None:
    """4.29 GB of float16, 2.28 GB of bytes with their scales."""
    asked = {"context": 32768, "slots": 1, "kv_memory": 4096, "kv_dtype": kv}
    if kv == "f16":
        with pytest.raises(DeviceError, match=r"With --kv-dtype q8 it would need 20\.1\d GB"):
            expect(llama8b, 21_000_000_000, **asked)
    else:
        assert expect(llama8b, 21_000_000_000, **asked).kv_cache <= 32768 * 8 * 2 * 136 * 32
        with pytest.raises(DeviceError, match=r"With --context 512|With --dtype q8"):
            expect(llama8b, 17_700_000_000, **asked)


def test_small_models_are_never_in_question() -> None:
    assert expect_fit("tale", TALE, Settings(), free_bytes=lambda _: 1).total < 256 << 20


def device(kind: str, name: str) -> DeviceInfo:
    return DeviceInfo(name, "driver", "Vulkan", kind, False)


def test_only_devices_that_share_the_hosts_memory_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [device("discrete GPU", "Card"), device("software device", "llvmpipe")]
    monkeypatch.setattr("gpu.devices", lambda: found)
    monkeypatch.setattr("app.memory.host_bytes", lambda: 77)
    assert device_bytes(Settings()) is None
    assert device_bytes(Settings(adapter="1")) == 77
    assert device_bytes(Settings(adapter="LLVM")) == 77
    assert device_bytes(Settings(adapter="7")) is None
    assert device_bytes(Settings(adapter="nonsense")) is None
    assert device_bytes(Settings(backend="torch")) == 77
    found.clear()
    assert device_bytes(Settings()) is None


def test_host_memory_is_the_least_of_machine_and_container(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal:  100 kB\nMemAvailable:   64 kB\n")
    assert host_bytes(tmp_path) == 64 * 1024
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.current").write_text("5000\n")
    (group / "memory.max").write_text("max\n")
    assert host_bytes(tmp_path) == 64 * 1024
    (group / "memory.max").write_text("25000\n")
    assert host_bytes(tmp_path) == 20_000
    shutil.rmtree(tmp_path / "proc")
    assert host_bytes(tmp_path) == 20_000
    real = host_bytes()
    assert real is None or real > 10_000_000
