"""The bundled mixture of experts writes what transformers writes, with all experts on the device
and with some of them in host memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers

from gpu import Engine, LoadOptions, Request, SamplingParams
from tests.golden import MIXTURE

PROMPT = (
    "<|im_start|>user\nTell me a story about a fox who finds a lantern.<|im_end|>\n"
    "<|im_start|>assistant\n"
)
N_TOKENS = 48

pytestmark = pytest.mark.parity


@pytest.fixture(scope="module")
def theirs() -> tuple[list[int], list[int], Any]:
    """The prompt, what transformers writes greedily, and the log-probabilities of that."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(MIXTURE)
    model: Any = transformers.MixtralForCausalLM.from_pretrained(MIXTURE, dtype=torch.float32)
    prompt: list[int] = tokenizer(PROMPT)["input_ids"]
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(N_TOKENS):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        logs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    written = ids[len(prompt) :]
    rows = torch.arange(len(prompt) - 1, len(ids) - 1)
    return prompt, written, logs[rows, torch.tensor(written)].numpy()


@pytest.mark.ci
@pytest.mark.parametrize("slots", [None, 3], ids=["all_on_device", "offloaded"])
def test_the_mixture_writes_what_transformers_writes(theirs: Any, slots: int | None) -> None:
    prompt, written, logprobs = theirs
    options = LoadOptions(dtype="f32", kv_dtype="f32", context=128, slots=1, expert_slots=slots)
    engine = Engine.load(MIXTURE, options)
    try:
        params = SamplingParams(seed=0, temperature=0.0, max_tokens=N_TOKENS, ignore_eos=True)
        tokens = list(engine.submit(Request(prompt, params)))
    finally:
        engine.close()
    assert [token.id for token in tokens] == written
    assert np.abs([token.logprob for token in tokens] - logprobs).max() < 1e-4
