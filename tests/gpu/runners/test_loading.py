"""Loading weights reports its progress, uses bounded host memory, and is timed."""

from __future__ import annotations

import gc
import json
import re
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

from gpu.bench import loading as bench
from gpu.checkpoint.random_checkpoint import LLAMA_SHAPES
from gpu.checkpoint.reader import Checkpoint, weight_progress
from gpu.checkpoint.weights import WeightLoader
from gpu.config import ModelConfig
from gpu.models.llama import Llama
from gpu.models.registry import MODELS
from gpu.webgpu.buffers import Memory
from gpu.webgpu.device import Device
from tests.gpu.models import random_llama, random_models


def told(device: Device, folder: Path, dtype: str) -> list[tuple[float, str]]:
    """Return the calls of `progress` while the model in `folder` is loaded."""
    config, checkpoint = ModelConfig.from_folder(folder), Checkpoint.open(folder)
    heard: list[tuple[float, str]] = []
    on_weights = weight_progress(
        lambda share, message: heard.append((share, message)), checkpoint, config.tie_embeddings
    )
    memory = Memory(device)
    MODELS[config.model_type](
        config, WeightLoader(checkpoint, memory, dtype, on_weights), memory, 64
    )
    return heard


@pytest.mark.parametrize("name", random_models.NAMES)
def test_progress_is_the_share_of_weights_that_are_in_place(device: Device, name: str) -> None:
    """Progress ends at exactly all weights in every architecture: none is counted twice or left
    out, where tensors are fused, tied or saved transposed."""
    folder = random_models.folder(name)
    shares = [share for share, _ in told(device, folder, "q4")]
    assert shares == sorted(shares)
    assert 0 < shares[0] < 0.5
    assert shares[-1] == 1.0


def test_the_bytes_are_those_of_the_files(device: Device) -> None:
    folder = random_llama.folder("derived_head")
    tied = ModelConfig.from_folder(folder).tie_embeddings
    n_bytes = Checkpoint.open(folder).parameter_bytes(tied)
    assert abs(n_bytes - (folder / "model.safetensors").stat().st_size) < 8192  # but the header
    for dtype in ("f32", "q4"):
        _, message = told(device, folder, dtype)[-1]
        found = re.fullmatch(r"loading weights, (\d+) of (\d+) MB", message)
        assert found is not None
        assert int(found[1]) == int(found[2]) == round(n_bytes / 1e6)


@pytest.mark.slow
def test_the_benchmark_of_loading(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENGLASS_CACHE", "set back afterwards")
    assert bench.main(["--shape", "tiny", "--repeat", "1", "--dtype", "f16", "--dtype", "q4"]) == 0
    *table, line = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert [row[:8].strip() for row in table] == ["read", "f16", "q4", "q4 kept"]
    assert found["bytes"] > 2 * 4_700_000
    assert all(found[key]["wall"] > 0 and found[key]["cpu"] > 0 for key in ("read", "f16", "q4"))


# ---- memory ----------------------------------------------------------------------------------

WIDE = replace(LLAMA_SHAPES["tiny"], vocab_size=1 << 16)
"""An embedding of 34 MB in bfloat16 and 67 MB in float32, in a file of 43 MB."""
MOST_ON_HOST = 16 << 20
"""Less than half of the bound, which is 1.3 of the largest file."""


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wide")
    assert bench.write_random(WIDE, folder) > 2.5 * MOST_ON_HOST
    return folder


@pytest.mark.parametrize("dtype", ["f32", "q4"])
def test_little_of_a_file_is_on_the_host_at_a_time(device: Device, wide: Path, dtype: str) -> None:
    """The bound is on Python's allocations while weights are read, packed and uploaded."""
    bench.load(device, WIDE, wide, dtype, 0)  # what is made once is there
    gc.collect()
    tracemalloc.start()
    try:
        bench.load(device, WIDE, wide, dtype, 0)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < MOST_ON_HOST


@pytest.mark.parametrize("dtype", ["f32", "q4"])
def test_memory_grows_by_what_is_on_the_device(device: Device, wide: Path, dtype: str) -> None:
    """Staging memory included, after every piece. Only where device memory is the process's own."""
    if not device.info.software or not Path("/proc/self/status").exists():
        pytest.skip("only a software device's memory is the process's own, and only Linux tells")
    bench.load(device, WIDE, wide, dtype, 0)
    gc.collect()
    memory, checkpoint, before = Memory(device), Checkpoint.open(wide), anonymous_bytes()
    beyond: list[int] = []

    def on_weights(n: int) -> None:
        beyond.append(anonymous_bytes() - before - memory.n_bytes["weights"])

    Llama(WIDE, WeightLoader(checkpoint, memory, dtype, on_weights), memory, bench.CONTEXT)
    assert len(beyond) > 60
    assert max(beyond) < 2 * MOST_ON_HOST  # staging, and what the driver keeps of it


def anonymous_bytes() -> int:
    """Return the resident bytes of this process that are not mapped from files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = dict(line.split(":", 1) for line in lines)
    return sum(int(found[key].split()[0]) * 1024 for key in ("RssAnon", "RssShmem"))
