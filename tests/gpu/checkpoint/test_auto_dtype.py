"""`--dtype auto`: the storage type that is nearest to that of the file."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import quantize

from gpu import Engine, LoadOptions
from gpu.checkpoint.auto_dtype import FLOATS, NEAREST, MatrixDtypes, choose_dtype
from gpu.checkpoint.gguf_repack import EXACT_FORMATS
from gpu.checkpoint.inventory import Inventory
from gpu.checkpoint.packing import FORMATS, pack, unpack
from gpu.checkpoint.reader import Checkpoint
from gpu.gguf.types import QUANT_TYPES, TYPES_BY_NAME, dequantize_rows
from tests.gpu.gguf import gguf_models
from tests.gpu.gguf.shapes import BIASES
from tests.gpu.models import random_llama


@pytest.mark.parametrize(
    ("saved", "dtype", "reason"),
    [
        ({"Q8_0": 9}, "q8", "the layers are saved as Q8_0, which q8 holds exactly"),
        ({"Q4_K": 7, "Q3_K": 8}, "q4", "saved mostly as Q3_K, to which q4 is nearest"),
        ({"Q4_1": 7, "F16": 2}, "q4", "as Q4_1 and F16; matrices in F16 are stored as q8"),
        ({"Q4_K": 7, "Q6_K": 5}, "q4", "as Q4_K and Q6_K; matrices in Q6_K are stored as q8"),
        ({"Q4_K": 2, "Q6_K": 4, "Q5_K": 3}, "q4",
         "as Q6_K, Q5_K and Q4_K; matrices in Q6_K and Q5_K are stored as q8"),
        ({"Q6_K": 4, "Q5_K": 5}, "q8", "mostly as Q5_K, to which q8 is nearest"),
        ({"Q5_0": 5, "F32": 6}, "f16", "the weights are not quantised"),
        ({"BF16": 9}, "f16", "the weights are not quantised"),
        ({}, "f16", "the weights are not quantised"),
    ],
)  # fmt: skip
def test_the_types_of_a_file_decide(saved: dict[str, int], dtype: str, reason: str) -> None:
    found = choose_dtype(saved)
    assert (found.dtype, found.reason[-len(reason) :]) == (dtype, reason)


def test_less_is_chosen_only_if_more_does_not_fit() -> None:
    def lacking(dtype: str) -> str:
        return "" if FORMATS[dtype].bits_per_weight <= most else f"{dtype} needs 9 GB"

    most = 9.0
    found = choose_dtype({"BF16": 1}, lacking)
    assert (found.dtype, found.reason) == ("q8", "f16 needs 9 GB")
    assert choose_dtype({"Q4_0": 1}, lacking) == choose_dtype({"Q4_0": 1})
    most = 5.0
    assert choose_dtype({"Q6_K": 1}, lacking).dtype == "q4"
    most = 1.0
    assert choose_dtype({"Q6_K": 1}, lacking) == choose_dtype({"Q6_K": 1}), "none fits"


def test_every_type_has_one_that_is_less_than_four_times_as_large() -> None:
    assert NEAREST.keys() == set(QUANT_TYPES)
    for kind, dtype in NEAREST.items():
        saved = TYPES_BY_NAME[kind]
        bits = 8 * saved.type_size / saved.block_size
        assert FORMATS[dtype].bits_per_weight < 4 * bits
    assert FLOATS in FORMATS


@pytest.mark.parametrize("kind", ["Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0"])
def test_the_nearest_type_is_the_smallest_that_loses_little(kind: str) -> None:
    weights = np.random.default_rng(5).normal(0, 0.02, (64, 1024)).astype(np.float32)
    saved = dequantize_rows(kind, quantize(weights, GGMLQuantizationType[kind]))

    def loss(dtype: str) -> float:
        error = unpack(dtype, pack(dtype, saved), saved.shape[1]) - saved
        return float(np.sqrt(np.square(error).mean() / np.square(saved).mean()))

    dtype = NEAREST[kind]
    if dtype == "q8":
        assert loss("q8") < 0.01
        assert loss("q4") > 0.02
    else:
        assert EXACT_FORMATS[kind] == dtype, "its blocks are copied"


def test_the_matrices_of_the_layers_are_counted_and_no_others(tmp_path: Path) -> None:
    """q4 stores the vocabulary as q8 anyway, and vectors are never quantised."""
    folder = random_llama.write(tmp_path, BIASES)
    inventory = Inventory.from_folder(gguf_models.write(folder, tmp_path / "model.gguf", "Q4_0"))
    n_weights = BIASES.n_layers * sum(math.prod(shape) for shape in matrices(BIASES))
    assert inventory.saved_types == {"Q4_0": n_weights * 18 // 32}


@pytest.mark.parametrize(
    ("kind", "kinds", "dtype", "stored"),
    [
        ("Q8_0", {}, "q4", {"q4"}),
        ("Q8_0", {"token_embd": "Q4_0"}, "q4", {"q4"}),
        ("Q4_0", {"token_embd": "Q8_0"}, "q4", {"q4"}),
        ("Q8_0", {"blk.0.attn_q": "Q4_0"}, "q4", {"q8"}),
        ("Q8_0", {"blk.0.attn_output": "Q4_0"}, "q4", {"q8", "q4"}),
        ("Q4_0", {"blk.0.attn_output": "F16"}, "q4", {"q8", "q4"}),
        ("Q4_0", {"blk.0.attn_output": "Q5_0"}, "q8", {"q8"}),
        ("Q4_0", {"blk.0.attn_output": "Q5_0"}, "f16", {"f16"}),
    ],
)
def test_a_file_is_a_mixture_by_the_matrices_of_its_layers(
    tmp_path: Path, kind: str, kinds: dict[str, str], dtype: str, stored: set[str]
) -> None:
    folder = random_llama.write(tmp_path, BIASES)
    path = gguf_models.write(folder, tmp_path / "model.gguf", kind, kinds=kinds)
    inventory = Inventory.from_folder(path, dtype)
    layers = [tensor for tensor in inventory.tensors if tensor.layer is not None]
    assert {tensor.device_dtype for tensor in layers if len(tensor.shape) > 1} == stored
    dtypes = MatrixDtypes(Checkpoint.open(path), dtype)
    for tensor in layers:
        if tensor.name == "model.layers.0.self_attn.o_proj.weight":
            assert tensor.device_dtype == dtypes.of([tensor.name])


def test_the_engine_keeps_the_precision_of_a_file(tmp_path: Path) -> None:
    """Where it is used without the server, too."""
    folder = random_llama.write(tmp_path, BIASES)
    file = gguf_models.write(folder, tmp_path / "model.gguf", "Q8_0")
    options = LoadOptions(dtype="auto", backend="torch", slots=1)
    for engine in (Engine.load(file), Engine.load(file, options)):
        model = engine.info.model
        engine.close()
        assert (model.dtype, model.dtype_reason) == (
            "q8",
            "the layers are saved as Q8_0, which q8 holds exactly",
        )


def matrices(shape: random_llama.Shape) -> list[tuple[int, int]]:
    """Return the shapes of the matrices of a layer."""
    q, kv = shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
    width, inner = shape.hidden_size, shape.intermediate_size
    return [(q, width), (kv, width), (kv, width), (width, q), *[(inner, width)] * 3]
