"""Divergence of a model whose attention reads rounded keys and values, or only those of a window,
against transformers changed alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.llama import modeling_llama

from gpu.engine.engine import Engine
from gpu.errors import InvalidRequest
from gpu.inspection.requests import Answer, Divergence, Losses
from gpu.kv.formats import pack_block
from gpu.load_options import LoadOptions
from gpu.reference.divergence import kl_of_rows
from gpu.reference.kv import round_kv
from gpu.sampling_params import SamplingParams
from tests.gpu.models import random_models

MODEL = Path(__file__).parents[3] / "app" / "tale" / "model"
WINDOW = 11
NEAR_TIES = 0.3
"""Relative tolerance for a token of which a number lies so close to the middle between two codes
that another order of additions rounds it to the other one."""
ROUNDING_ERROR = 1e-6
"""Of keys and values in float32 after some layers, relatively. Where a number lies so close to the
middle between two codes, it decides the code, and with it the codes of the layers above."""
Found = tuple[Any, Any]
"""Logits (n, vocab_size), and attention weights (n, n_layers, n_heads, n)."""


@pytest.fixture(scope="module", params=["wgpu", "torch"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    options = LoadOptions(backend=request.param, dtype="f32", kv_dtype="f32", context=128, slots=2)
    opened = Engine.load(MODEL, options)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def ids(engine: Engine) -> list[int]:
    return engine.tokenizer.encode(
        "Once upon a time there was a fox who found a lantern, and every evening it carried the "
        "light up the hill, so that the ships would find their way home."
    )


def mask_of(n: int, window: int) -> torch.Tensor:
    """Return the mask with which each of `n` tokens sees the last `window`; 0: all before it."""
    at = torch.arange(n)
    hidden = at > at[:, None]
    if window:
        hidden |= at <= at[:, None] - window
    return torch.zeros(n, n).masked_fill(hidden, -torch.inf)[None, None]


@torch.no_grad()
def transformers_pass(folder: Path, ids: list[int], window: int | None = None) -> Found:
    """`window`: most keys that a token sees; 0: all; None: as the configuration says."""
    changes: dict[str, Any] = {"sliding_window": None} if window == 0 else {}
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", **changes
    )
    mask = mask_of(len(ids), window) if window else None
    out = model(torch.tensor([ids]), attention_mask=mask, output_attentions=True)
    weights = torch.cat(out.attentions).permute(2, 0, 1, 3)
    return out.logits[0].numpy(), weights.numpy()


def rounded_attention(
    plain: Callable[..., Any], keys: str | None, values: str | None, seed: int = 0
) -> Callable[..., Any]:
    """Return attention of transformers that reads rounded keys and values. `seed`: unless 0, they
    are off by about a rounding error of float32 before."""
    rng = np.random.default_rng(seed)

    def rounded(x: torch.Tensor, storage: str | None) -> torch.Tensor:
        numbers = x.double().numpy()
        if seed:
            numbers = numbers * (1 + ROUNDING_ERROR * rng.uniform(-1, 1, numbers.shape))
        return torch.from_numpy(round_kv(storage, numbers, pack_block(x.shape[-1]))).float()

    def attend(
        module: Any, q: Any, k: torch.Tensor, v: torch.Tensor, *rest: Any, **named: Any
    ) -> Any:
        return plain(module, q, rounded(k, keys), rounded(v, values), *rest, **named)

    return attend


def figures(own: Found, changed: Found) -> tuple[Any, Any, Any]:
    """Return what the prediction (KL) and the attention of each token move by, and the attention
    that each receives in both passes (2, n)."""
    moved = np.abs(changed[1] - own[1]).sum(-1).mean((1, 2)) / 2
    received = np.array([weights.mean((1, 2)).sum(0) for _, weights in (own, changed)])
    return kl_of_rows(own[0], changed[0]), moved, received


def check(answer: Answer, own: Found, changed: Found, others: Sequence[Found] = ()) -> None:
    """`others`: passes that differ from `changed` by rounding errors. A figure may differ by twice
    as much as these do from each other."""
    wanted = figures(own, changed)
    spreads = [
        np.ptp(each, axis=0)
        for each in zip(wanted, *(figures(own, other) for other in others), strict=True)
    ]
    assert np.median(spreads[0] / (wanted[0] + 1e-5)) < 0.1  # half of them are checked closely
    for name, want, spread in zip(("kl", "moved", "received"), wanted, spreads, strict=True):
        off = np.maximum(np.abs(answer[name] - want) - 2 * spread, 0)
        if name == "received":
            assert (off <= 1e-3 + 1e-3 * want).all()
        else:
            assert (off <= 1e-5 + 0.01 * want).all(), name
            assert np.median(off / (want + 1e-5)) < 1e-4, name
    top = [logits.argmax(1) for logits, _ in (own, changed)]
    np.testing.assert_array_equal(answer["top_ids"], top)


@pytest.mark.parametrize(("keys", "values"), [("q8", "q4"), ("q4", "q8"), (None, "q4")])
def test_rounded_keys_and_values_change_what_they_change_in_transformers(
    engine: Engine,
    ids: list[int],
    monkeypatch: pytest.MonkeyPatch,
    keys: Any,
    values: Any,
) -> None:
    own = transformers_pass(MODEL, ids)
    plain, passes = modeling_llama.eager_attention_forward, []
    for seed in range(8):
        attend = rounded_attention(plain, keys, values, seed)
        monkeypatch.setattr(modeling_llama, "eager_attention_forward", attend)
        passes.append(transformers_pass(MODEL, ids))
    answer = engine.inspect(Divergence(ids, keys=keys, values=values)).result()
    check(answer, own, passes[0], others=passes[1:])
    assert answer["kl"].mean() > 1e-4
    np.testing.assert_array_equal(*answer["blocks"])


def test_a_window_hides_what_it_hides_in_transformers(engine: Engine, ids: list[int]) -> None:
    answer = engine.inspect(Divergence(ids, window=WINDOW)).result()
    own, changed = transformers_pass(MODEL, ids), transformers_pass(MODEL, ids, WINDOW)
    check(answer, own, changed)
    assert answer["kl"][:WINDOW].max() < 1e-6 < answer["kl"][WINDOW:].min()
    parts = [
        engine.inspect(Divergence(ids[:end], first, window=WINDOW)).result()
        for first, end in ((0, 17), (17, 30), (30, len(ids)))
    ]
    for name in ("kl", "moved", "top_ids", "blocks"):
        joined = np.concatenate([part[name] for part in parts], axis=-1)
        np.testing.assert_allclose(joined, answer[name], rtol=1e-3, atol=1e-5)
    received = sum(
        np.pad(p["received"], ((0, 0), (0, len(ids) - p["received"].shape[1]))) for p in parts
    )
    np.testing.assert_allclose(received, answer["received"], atol=1e-4)
    held = [-(-n // 16) - max(0, n - WINDOW) // 16 for n in range(1, len(ids) + 1)]
    np.testing.assert_array_equal(answer["blocks"][1], held)
    np.testing.assert_array_equal(answer["blocks"][0], np.arange(len(ids)) // 16 + 1)


@pytest.mark.ci
def test_a_storage_is_that_of_the_cache() -> None:
    """What is rounded in a cache of floats is what attention reads of a quantised one."""
    ids, logits = list(range(300, 335)), []
    for kv_dtype in ("f32", "q8q4"):
        opened = Engine.load(MODEL, LoadOptions(dtype="f32", kv_dtype=kv_dtype, context=128))
        logits.append(opened.logits(ids))
        if kv_dtype == "f32":
            answer = opened.inspect(Divergence(ids, keys="q8", values="q4")).result()
        else:
            with pytest.raises(InvalidRequest, match="--kv-dtype f16 or f32"):
                opened.inspect(Divergence(ids, keys="q8", values="q4")).result()
            assert opened.inspect(Divergence(ids, window=4)).result()["kl"].max() > 0
        opened.close()
    want = kl_of_rows(*logits)
    np.testing.assert_allclose(answer["kl"], want, rtol=NEAR_TIES, atol=1e-5)
    assert np.median(np.abs(answer["kl"] / want - 1)) < 0.01


def test_other_texts_find_nothing_of_it(engine: Engine, ids: list[int]) -> None:
    before = engine.inspect(Losses(ids)).result()["logprob"]
    questions = [Divergence(ids, keys="q4", values="q8"), Divergence(ids, window=WINDOW)]
    answers = [engine.inspect(question).result() for question in questions]
    np.testing.assert_array_equal(engine.inspect(Losses(ids)).result()["logprob"], before)
    for question, answer in zip(questions, answers, strict=True):
        again = engine.inspect(question).result()
        np.testing.assert_array_equal(again["kl"], answer["kl"])


@pytest.mark.ci
def test_a_model_with_windows_is_read_whole() -> None:
    """The model's own blocks are those of a run, and without its windows it is the model that
    transformers runs without them."""
    folder = random_models.folder("mistral")
    opened = Engine.load(folder, LoadOptions(dtype="f32", kv_dtype="f32", slots=2))
    try:
        ids = np.random.default_rng(1).integers(0, opened.config.vocab_size, 50).tolist()
        answer = opened.inspect(Divergence(ids, window=0)).result()
        check(answer, transformers_pass(folder, ids), transformers_pass(folder, ids, 0))
        assert answer["kl"][20:].min() > 1e-5
        params = SamplingParams(max_tokens=30, ignore_eos=True, seed=1)
        tokens = list(opened.generate(ids[:20], params))
        held = [token.kv_blocks for token in tokens]
        np.testing.assert_array_equal(answer["blocks"][0, 19:49], held)
        np.testing.assert_array_equal(answer["blocks"][1], np.arange(50) // 16 + 1)
        with pytest.raises(InvalidRequest, match="multiple of 8") as refused:
            opened.inspect(Divergence(ids, keys="q8")).result()
        assert refused.value.param == "keys"
    finally:
        opened.close()


@pytest.mark.ci
@torch.no_grad()
@pytest.mark.parametrize("window", [0, 5])
def test_layers_of_different_windows_get_the_same_one(window: int) -> None:
    folder = random_models.folder("gemma3")
    opened = Engine.load(folder, LoadOptions(dtype="f32", kv_dtype="f32", slots=2))
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    try:
        ids = np.random.default_rng(2).integers(0, opened.config.vocab_size, 50).tolist()
        answer = opened.inspect(Divergence(ids, window=window)).result()
        found = []
        for changed in (False, True):
            masks = None
            if changed:
                masks = dict.fromkeys(("full_attention", "sliding_attention"), mask_of(50, window))
            out = model(torch.tensor([ids]), attention_mask=masks, output_attentions=True)
            weights = torch.cat(out.attentions).permute(2, 0, 1, 3)
            found.append((out.logits[0].numpy(), weights.numpy()))
        check(answer, found[0], found[1])
    finally:
        opened.close()


@pytest.mark.parametrize(
    ("changes", "param", "why"),
    [
        ({}, "window", "nothing would change"),
        ({"window": -1}, "window", "from 0 to 128"),
        ({"window": 129}, "window", "from 0 to 128"),
        ({"first": 3, "window": 3}, "first", "from 0 to 2"),
        ({"ids": [], "window": 3}, "ids", "ids are missing"),
        ({"ids": [1] * 129, "window": 3}, "ids", "more than the context"),
        ({"ids": [1, 10**6], "window": 3}, "ids", "should be from 0"),
    ],
)
def test_what_cannot_be_answered_is_refused(
    engine: Engine, changes: dict[str, Any], param: str, why: str
) -> None:
    with pytest.raises(InvalidRequest, match=why) as refused:
        engine.inspect(Divergence(**{"ids": [1, 2, 3], **changes})).result()
    assert refused.value.param == param
