"""Recording refuses bad dispatches, since replaying one would end the process."""

from __future__ import annotations

import numpy as np
import pytest

from gpu import ops
from gpu.checks.rig import limited, op_config, plain_rows
from gpu.errors import DeviceError
from gpu.ops.step_buffer import STEP_BYTES
from gpu.webgpu.buffers import Memory, Tensor
from gpu.webgpu.device import Device
from gpu.webgpu.kernels import Kernels
from gpu.webgpu.plan import Grid, Plan, Recorder
from tests.gpu.ops.rig import Rig


@pytest.fixture
def memory(device: Device) -> Memory:
    return Memory(device)


@pytest.fixture
def rec(device: Device) -> Recorder:
    return Recorder(device, Kernels(device))


def embed_tensors(memory: Memory) -> dict[str, Tensor]:
    step = memory.zeros("step", (STEP_BYTES // 4,), "u32", uniform=True)
    chosen, x = memory.zeros("chosen", (8,), "u32"), memory.zeros("x", (32,))
    return {"step": step, "chosen": chosen, "weight": memory.weights("weight", 1, 32), "x": x}


def record_embed(rec: Recorder, tensors: dict[str, Tensor], grid: Grid = (1, 1, 1)) -> None:
    constants = {"BLOCKS": 1, "COUNT": 1}
    rec.dispatch("here", "embed", tensors, grid, constants, lib={"weight": "weight_f32"})


def test_tensors_must_be_those_the_shader_binds(rec: Recorder, memory: Memory) -> None:
    tensors = embed_tensors(memory)
    tensors["y"] = tensors.pop("x")
    with pytest.raises(ValueError, match=r"here: embed\.wgsl binds .*'x'\], but got .*'y'\]"):
        record_embed(rec, tensors)


def test_optional_tensors_are_not_bound(rec: Recorder, memory: Memory) -> None:
    step, x, y = (memory.zeros(name, (STEP_BYTES // 4,), uniform=name == "s") for name in "sxy")
    tensors = {"step": step, "x": x, "gain": x, "bias": None, "residual": None, "y": y}
    constants = {"WIDTH": 32, "STRIDE": 32, "EPS": 0.0, "LANES": 8}
    rec.dispatch("here", "norm", tensors, (1, 1, 1), constants)
    (dispatch,) = rec.plan.dispatches
    assert list(dispatch.tensors) == ["step", "x", "gain", "y"]
    assert [b.name for b in dispatch.kernel.bindings] == ["step", "x", "gain", "y"]


def test_a_buffer_cannot_be_written_and_read_at_once(rec: Recorder, memory: Memory) -> None:
    tensors = embed_tensors(memory)
    tensors["chosen"] = tensors["x"]
    with pytest.raises(ValueError, match=r"here: x f32\[32\] is written and bound again as"):
        record_embed(rec, tensors)


@pytest.mark.parametrize("grid", [(0, 1, 1), (1, 65_536, 1)])
def test_a_grid_must_be_one_that_webgpu_takes(rec: Recorder, memory: Memory, grid: Grid) -> None:
    with pytest.raises(ValueError, match=r"here: a grid of .* is outside 1 to 65535"):
        record_embed(rec, embed_tensors(memory), grid)


def test_a_refused_dispatch_is_not_recorded(rec: Recorder, memory: Memory) -> None:
    with pytest.raises(ValueError, match="a grid"):
        record_embed(rec, embed_tensors(memory), (0, 1, 1))
    assert rec.plan.dispatches == []


def test_a_plan_is_cut_at_its_marks(rec: Recorder, memory: Memory) -> None:
    tensors = embed_tensors(memory)
    for name in ("first", "second"):
        record_embed(rec, tensors)
        rec.mark(name)
    record_embed(rec, tensors)
    assert [len(segment) for segment in rec.plan.segments()] == [1, 1, 1]
    assert rec.plan.marks == [(1, "first"), (2, "second")]
    assert Plan().segments() == ((),)


def test_a_dispatch_says_what_it_is(rec: Recorder, memory: Memory) -> None:
    tensors = embed_tensors(memory)
    record_embed(rec, tensors)
    (dispatch,) = rec.plan.dispatches
    assert (dispatch.label, dispatch.kernel.name, dispatch.grid) == ("here", "embed", (1, 1, 1))
    assert dispatch.n_bytes == STEP_BYTES + 2 * 128 + 32


def test_ops_refuse_tensors_of_the_wrong_width(rig: Rig) -> None:
    batch = rig.batch(plain_rows(1))
    matrix = rig.matrix(np.ones((4, 20), np.float32), "f32")
    x, y = rig.memory.zeros("x", (1, 32)), rig.memory.zeros("y", (1, 32))
    texts, keys = ops.SlotTexts.make(rig.memory, 1, 99), ops.SortKeys(y, None)
    wide = rig.memory.zeros("wide", (1, 16))
    config = op_config(n_layers=1)
    wrong = [
        lambda rec: ops.matmul(rec, batch, "layer03.attn.qkv", wide, matrix, y),
        lambda rec: ops.matmul(rec, batch, "layer03.attn.qkv", x, matrix, wide),
        lambda rec: ops.matmul(rec, batch, "layer03.attn.qkv", x, matrix, y, residual=wide),
        lambda rec: ops.embed(rec, batch, "layer03.attn.qkv", matrix, y, wide),
        lambda rec: ops.layer_stats(rec, batch, "layer03.attn.qkv", config, x, x, wide),
        lambda rec: ops.logit_sort_keys(
            rec, batch, "layer03.attn.qkv", 99, wide, texts, texts.seen, keys
        ),
        lambda rec: ops.sample(rec, batch, "layer03.attn.qkv", 99, wide, keys, texts, y, y),
    ]
    for record in wrong:
        with pytest.raises(
            ValueError,
            match=r"layer03\.attn\.qkv: wide f32\[1, 16\] should have a shape that ends in",
        ):
            record(Recorder(rig.device, rig.kernels))


# ---- memory -------------------------------------------------------------------------------------


def test_memory_is_counted_by_purpose(memory: Memory) -> None:
    memory.zeros("a", (3, 5))
    memory.zeros("b", (1,), "f16", purpose="kv_cache")
    memory.upload("c", np.arange(5, dtype=np.float16))
    assert memory.n_bytes == {"work": 60, "kv_cache": 16, "weights": 16}


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint32])
@pytest.mark.parametrize("n", [1, 3, 8, 1001])
def test_uploaded_arrays_are_read_back(memory: Memory, n: int, dtype: type) -> None:
    array = np.arange(n).astype(dtype)
    assert np.array_equal(memory.read(memory.upload("array", array)), array)


def test_a_part_of_a_tensor_can_be_written(memory: Memory) -> None:
    tensor = memory.upload("array", np.arange(6, dtype=np.uint32))
    memory.write(tensor, np.array([77, 78], np.uint32), at=8)
    assert memory.read(tensor).tolist() == [0, 1, 77, 78, 4, 5]


def test_uploads_larger_than_a_piece_arrive_whole(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu.webgpu.buffers.UPLOAD_BYTES", 16)
    array = np.arange(11, dtype=np.float16)
    assert np.array_equal(memory.read(memory.upload("array", array)), array)


def test_more_than_fits_is_refused(memory: Memory) -> None:
    tensor = memory.zeros("small", (4,))
    with pytest.raises(ValueError, match=r"8 bytes at 12 do not fit in small f32\[4\]"):
        memory.write(tensor, np.zeros(2, np.float32), at=12)


def test_a_buffer_beyond_the_devices_limit_is_refused_with_the_numbers(device: Device) -> None:
    message = r"logits needs 4,096 bytes in one buffer, but this device binds 1,000 at most"
    with pytest.raises(DeviceError, match=message):
        Memory(limited(device, 1000)).zeros("logits", (1024,))
