"""Encoders against transformers, texts of many lengths in one pass."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from gpu.errors import ModelError
from gpu.kv.blocks import ENCODER_TEXTS
from gpu.pytorch.encoder import TorchEncoder
from gpu.runner import Encoder
from gpu.runners.encoder import WgpuEncoder
from gpu.step import MAX_ROWS, Floats
from gpu.webgpu.device import Device
from tests.gpu.models import random_bert

BOUND = 1e-4
"""Largest error of a number of a vector."""
MPNET: dict[str, object] = {"model_type": "mpnet", "max_position_embeddings": 153}
MODERN: dict[str, object] = {
    "model_type": "modernbert",
    "num_hidden_layers": 4,  # all, near, near, all
    "local_attention": 30,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "cls_token_id": 1,
    "eos_token_id": 2,
    "sep_token_id": 2,
}
BIASED: dict[str, object] = {
    "attention_bias": True,
    "mlp_bias": True,
    "local_attention": 7,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
}
LENGTHS = (1, 2, 15, 16, 17, 33, 64, 131)
"""Tokens of texts: parts of a KV block, whole ones, and more than a split of attention."""


def texts_of(lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
    """Return texts without padding, whose token is among the first five."""
    rng = np.random.default_rng(seed)
    return [rng.integers(5, random_bert.SIZES["vocab_size"], n).tolist() for n in lengths]


def finish(pieces: Generator[None, None, Floats]) -> tuple[Floats, int]:
    """Return the vectors, and in how many pieces they came."""
    n = 0
    while True:
        try:
            next(pieces)
        except StopIteration as done:
            return done.value, n
        n += 1


@pytest.fixture(params=["wgpu", "torch"])
def load(request: pytest.FixtureRequest, device: Device) -> Callable[[Path], Encoder]:
    """Return what opens an encoder, of each backend."""
    if request.param == "torch":
        return TorchEncoder.load
    return lambda folder: WgpuEncoder.load(folder, device)


@pytest.mark.parity
@pytest.mark.parametrize(
    "sizes", [{}, MPNET, MODERN | {"local_attention": 8}], ids=["bert", "mpnet", "modernbert"]
)
def test_attention_is_that_of_transformers(
    load: Callable[[Path], Encoder], tmp_path: Path, sizes: dict[str, object]
) -> None:
    folder = random_bert.write(tmp_path, **sizes)  # type: ignore[arg-type]
    encoder = load(folder)
    for ids in texts_of((1, 23, encoder.max_attending)):
        found, _ = finish(encoder.attention(ids))
        np.testing.assert_allclose(found, random_bert.attention(folder, ids), rtol=0, atol=BOUND)
    vectors, _ = finish(encoder.vectors(texts_of((23,))))
    np.testing.assert_allclose(
        vectors, random_bert.reference(folder, texts_of((23,))), rtol=0, atol=BOUND
    )


@pytest.mark.parity
@pytest.mark.parametrize(
    ("pooling", "normalize", "sizes"),
    [
        ("mean", True, {}),
        ("cls", False, {"hidden_size": 36, "num_attention_heads": 3, "prefix": "bert."}),
        ("mean", False, {"hidden_act": "gelu_new", "num_hidden_layers": 1, "type_vocab_size": 1}),
        ("mean", True, {"model_type": "roberta", "type_vocab_size": 1, "prefix": "roberta."}),
        ("cls", True, {"model_type": "xlm-roberta", "type_vocab_size": 1, "pad_token_id": 4}),
        ("mean", True, MPNET),
        ("cls", False, MPNET | {"hidden_size": 36, "num_attention_heads": 3, "prefix": "mpnet."}),
        ("cls", False, MODERN),
        ("mean", True, MODERN | {"hidden_size": 36, "num_attention_heads": 3, "prefix": "model."}),
        ("mean", False, MODERN | BIASED),
    ],
    ids=[
        "mean", "cls", "one layer", "roberta", "xlm-roberta", "mpnet", "mpnet-cls", "modernbert",
        "modernbert-mean", "modernbert-biases",
    ],
)  # fmt: skip
def test_vectors_are_those_of_transformers(
    load: Callable[[Path], Encoder],
    tmp_path: Path,
    pooling: str,
    normalize: bool,
    sizes: dict[str, object],
) -> None:
    how = {"pooling": pooling, "normalize": normalize}
    encoder = load(random_bert.write(tmp_path, **how, **sizes))  # type: ignore[arg-type]
    texts = texts_of(LENGTHS)
    found, _ = finish(encoder.vectors(texts))
    wanted = random_bert.reference(tmp_path, texts, **how)  # type: ignore[arg-type]
    assert np.abs(wanted).max() > 0.1
    np.testing.assert_allclose(found, wanted, rtol=0, atol=BOUND)


def test_the_norms_of_the_first_berts_are_found(
    load: Callable[[Path], Encoder], tmp_path: Path
) -> None:
    """Those of bert-base-uncased are called gamma and beta, as in TensorFlow."""
    weights, texts = (
        random_bert.write(tmp_path, prefix="bert.") / "model.safetensors",
        texts_of((9,)),
    )
    wanted = random_bert.reference(tmp_path, texts)
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    tensors = load_file(weights)
    for name in [name for name in tensors if name.endswith(tuple(old))]:
        end = next(end for end in old if name.endswith(end))
        tensors[name.removesuffix(end) + old[end]] = tensors.pop(name)
    assert len({name for name in tensors if name.endswith("gamma")}) > 2
    save_file(tensors, weights, {"format": "pt"})
    np.testing.assert_array_equal(random_bert.reference(tmp_path, texts), wanted)
    found, _ = finish(load(tmp_path).vectors(texts))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=BOUND)


def test_a_text_has_the_same_bits_alone_and_among_others(device: Device, tmp_path: Path) -> None:
    """Also after another pass left its keys and values, and one dispatch at a time."""
    encoder = WgpuEncoder.load(random_bert.write(tmp_path), device)
    texts = texts_of(LENGTHS)
    together, n_pieces = finish(encoder.vectors(texts))
    assert (n_pieces > 1) == device.info.software
    again, n_pieces = finish(encoder.vectors(texts, in_pieces=True))
    assert n_pieces > 6 * random_bert.SIZES["num_hidden_layers"]
    np.testing.assert_array_equal(again, together)
    for i in (3, 0, 7):
        alone, _ = finish(encoder.vectors(texts[i : i + 1]))
        np.testing.assert_array_equal(alone[0], together[i])


def test_two_passes_at_once_do_not_mix(device: Device, tmp_path: Path) -> None:
    encoder = WgpuEncoder.load(random_bert.write(tmp_path), device)
    first, second = texts_of((9, 20), seed=1), texts_of((30,), seed=2)
    wanted = [finish(encoder.vectors(texts))[0] for texts in (first, second)]
    turns = [encoder.vectors(texts, in_pieces=True) for texts in (first, second)]
    for pieces in turns:
        next(pieces)
    for pieces, vectors in zip(turns, wanted, strict=True):
        np.testing.assert_array_equal(finish(pieces)[0], vectors)
    given_up = encoder.vectors(first, in_pieces=True)
    next(given_up)
    given_up.close()
    np.testing.assert_array_equal(finish(encoder.vectors(second))[0], wanted[1])


def test_as_many_texts_as_fit_are_in_a_pass(device: Device, tmp_path: Path) -> None:
    encoder = WgpuEncoder.load(random_bert.write(tmp_path, max_seq_length=140), device)
    assert encoder.max_tokens == 140
    assert encoder.n_fitting([140, 140, 140, 140], MAX_ROWS) == 3
    assert encoder.n_fitting([1] * 100, MAX_ROWS) == ENCODER_TEXTS
    assert encoder.n_fitting([140, 1], 16) == 1
    assert encoder.n_fitting([8, 8, 1], 16) == 2
    full = texts_of([16] * ENCODER_TEXTS)
    found, _ = finish(encoder.vectors(full))
    np.testing.assert_allclose(found, random_bert.reference(tmp_path, full), rtol=0, atol=BOUND)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_seq_length": 151}, "max_seq_length is 151, but the encoder has positions for 150"),
        ({"max_seq_length": 149, "model_type": "roberta"}, "has positions for 148 tokens"),
        ({"pad_token_id": 149, "vocab_size": 200, "model_type": "roberta"}, "pad_token_id must be"),
        ({"is_decoder": True}, "is_decoder must be false, as in an encoder"),
        ({"hidden_act": "relu"}, "hidden_act must be one of gelu_new"),
        (MPNET | {"relative_attention_num_buckets": 16}, "num_buckets must be an integer from 32"),
        (MODERN | {"norm_bias": True}, "norm_bias must be false"),
        (MODERN | {"local_attention": 0}, "local_attention must be"),
    ],
)
def test_what_would_give_other_vectors_is_refused(
    device: Device, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    folder = random_bert.write(tmp_path, **changes)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match=message):
        WgpuEncoder.load(folder, device)


def test_a_missing_tensor_is_named(device: Device, tmp_path: Path) -> None:
    deeper = random_bert.write(tmp_path / "deeper", num_hidden_layers=4)
    folder = random_bert.write(tmp_path / "encoder")
    shutil.copy(deeper / "config.json", folder)
    with pytest.raises(ModelError, match=r"has no tensor encoder\.layer\.3\.attention"):
        WgpuEncoder.load(folder, device)
