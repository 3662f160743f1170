"""SmolLM2-135M-Instruct, as published, beside `transformers` on the dequantised weights: tokenizer,
chat template, greedy tokens and log-probabilities of both engines; and that it writes sense."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from app.prompt.limited_tokenizer import LimitedTokenizer, load_tokenizer
from app.prompt.prompts import prompt_ids
from app.protocol.messages import Message
from gpu import Engine, SamplingParams
from gpu.inspection.requests import Knockout, Losses
from gpu.load_options import LoadOptions
from tests.gpu.models.random_models import masked
from tests.gpu.ops.rig import compare
from tests.real_weights import real_weights

LOGPROB = 2e-4
"""Largest error of a log-probability, in nats."""
N_TOKENS = 12
ASKED = {
    "What is the capital of France?": "Paris",
    "The animal did not cross the road because it was tired. What was tired?": "animal",
    "What is a KV cache?": "cache",
}
"""Messages of the articles, and a word of a sensible answer."""
CONTINUED = {"The capital of France is": "Paris", "The cat sat on the mat because": "cat"}
"""Beginnings of the articles, and a word of a sensible end."""
TEXTS = (
    "Hello world", " a\n\n\tb  c", "naïve café 12345 — 東京 🦊", "def f(x):\n    return x**2\n",
    "<|im_start|>user\nHi<|im_end|>\n", "",
)  # fmt: skip


@pytest.fixture(scope="module")
def file() -> Path:
    return real_weights("SmolLM2-135M-Instruct")


@pytest.fixture(scope="module")
def tokenizer(file: Path) -> Iterator[LimitedTokenizer]:
    found = load_tokenizer(file)
    assert isinstance(found, LimitedTokenizer)
    yield found
    found.close()


@pytest.fixture(scope="module")
def reference_tokenizer(file: Path) -> Any:
    return AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)


@pytest.fixture(scope="module")
def reference(file: Path) -> Any:
    return reference_of(file)


def reference_of(file: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    ).eval()


def prompts(tokenizer: LimitedTokenizer) -> dict[str, tuple[list[int], str]]:
    """Return the ids of each prompt, and the word that its answer has."""
    asked = {
        text: (prompt_ids(tokenizer, messages=[Message("user", text)]), word)
        for text, word in ASKED.items()
    }
    begun = {text: (prompt_ids(tokenizer, text), word) for text, word in CONTINUED.items()}
    return asked | begun


def test_the_tokenizer_is_that_of_transformers(
    tokenizer: LimitedTokenizer, reference_tokenizer: Any
) -> None:
    for text in (*TEXTS, *ASKED, *CONTINUED):
        ids = tokenizer.encode(text)
        assert ids == reference_tokenizer(text).input_ids, text
        wanted = reference_tokenizer.decode(ids, skip_special_tokens=True)
        assert tokenizer.decode(ids) == wanted, text


def test_the_chat_template_is_that_of_transformers(
    tokenizer: LimitedTokenizer, reference_tokenizer: Any
) -> None:
    messages = [
        ("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello!"), ("user", "Why?"),
    ]  # fmt: skip
    for first in (0, 1):
        own = prompt_ids(tokenizer, messages=[Message(*each) for each in messages[first:]])
        wanted = reference_tokenizer.apply_chat_template(
            [{"role": role, "content": content} for role, content in messages[first:]],
            add_generation_prompt=True,
            tokenize=False,
        )
        assert own == reference_tokenizer(wanted, add_special_tokens=False).input_ids


@pytest.mark.parametrize(
    ("backend", "chosen"),
    [
        pytest.param("wgpu", [*ASKED, *CONTINUED], id="wgpu"),
        pytest.param("torch", CONTINUED, id="torch"),
        pytest.param("torch", ASKED, id="torch-chat", marks=pytest.mark.slow),
    ],
)
def test_greedy_texts_and_their_probabilities_are_those_of_transformers(
    file: Path, tokenizer: LimitedTokenizer, reference: Any, backend: str, chosen: Iterable[str]
) -> None:
    """torch, which is slower, writes only the texts without a chat template in `make test`: the ids
    of a chat do not depend on the backend."""
    options = LoadOptions(
        dtype="q4", kv_dtype="f32", activations="f32", backend=backend, context=256
    )
    engine = Engine.load(file, options, tokenizer=tokenizer)
    try:
        found = prompts(tokenizer)
        for text in chosen:
            ids, word = found[text]
            assert word in greedily(engine, reference, ids, f"smollm2.{backend}"), text
    finally:
        engine.close()


@torch.no_grad()
def test_attention_is_knocked_out_as_in_transformers(
    file: Path, tokenizer: LimitedTokenizer, reference: Any
) -> None:
    """Of the word France, in all layers and in some around the middle."""
    before = reference.config._attn_implementation
    reference.set_attn_implementation("eager")
    options = LoadOptions(dtype="q4", kv_dtype="f32", activations="f32", context=256)
    engine = Engine.load(file, options, tokenizer=tokenizer)
    try:
        ids = tokenizer.encode("The capital of France is Paris")
        france, n_layers = len(tokenizer.encode("The capital of")), engine.config.n_layers
        first = len(ids) - 2
        found = []
        for layers in (range(n_layers), range(10, 19)):
            with masked(reference, first, slice(france, france + 1), layers):
                logs = reference(torch.tensor([ids])).logits[0, first].log_softmax(-1)
            knockout = Knockout(france, france + 1, layers.start, layers.stop)
            answer = engine.inspect(Losses(ids, first=first, knockout=knockout)).result()
            assert answer["logprob"][0] == pytest.approx(float(logs[ids[-1]]), abs=LOGPROB)
            found.append(float(answer["logprob"][0]))
        whole = float(engine.inspect(Losses(ids, first=first)).result()["logprob"][0])
        assert whole - found[0] > 1, "Paris owes something to France"
    finally:
        reference.set_attn_implementation(before)
        engine.close()


@pytest.mark.slow
def test_gemma_writes_what_transformers_writes() -> None:
    file = real_weights("gemma-3-270m")
    reference = reference_of(file)
    engine = Engine.load(file, LoadOptions(dtype="f32", context=256))
    try:
        for text in CONTINUED:
            ids = engine.tokenizer.encode(text)
            greedily(engine, reference, ids, "gemma-3-270m")
    finally:
        engine.close()


def greedily(engine: Engine, reference: Any, ids: list[int], which: str) -> str:
    """Return what the engine writes greedily, after comparing its tokens and their
    log-probabilities with those of `reference`."""
    tokens = list(engine.generate(ids, SamplingParams(temperature=0, max_tokens=N_TOKENS)))
    written = [token.id for token in tokens]
    with torch.no_grad():
        logits = reference(torch.tensor([ids + written])).logits[0, len(ids) - 1 : -1]
    assert logits.argmax(-1).tolist() == written
    wanted = logits.double().log_softmax(-1)[range(len(written)), written].numpy()
    got = np.array([token.logprob for token in tokens])
    compare(f"{which}.logprob", which, got, wanted, np.array(LOGPROB), 0)
    return "".join(token.text for token in tokens)
