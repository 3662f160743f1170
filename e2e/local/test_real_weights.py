"""SmolLM2-135M-Instruct, exported from its GGUF file, writes in the browser what the server's
engine writes, which `tests/test_real_weights.py` compares with transformers."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.config import Settings
from app.models.find_model import find_model
from app.prompt.limited_tokenizer import LimitedTokenizer
from app.site.export import export
from e2e.local.local_engine import LocalEnginePage, ids_of, request
from gpu import Engine, LoadOptions, SamplingParams
from tests.real_weights import real_weights

PROMPT = "The capital of France is"
N = 4
"""Tokens of the text: each takes seconds on the software driver."""


@pytest.mark.slow
@pytest.mark.timeout(900)  # the software driver compiles and computes for minutes
def test_an_exported_gguf_file_writes_the_same_text(local: LocalEnginePage, tmp_path: Path) -> None:
    settings = Settings(model=str(real_weights("SmolLM2-135M-Instruct")), context=256)
    model = find_model(settings)
    ids = model.tokenizer.encode(PROMPT)
    engine = Engine.load(model.path, LoadOptions(context=256))
    try:
        want = list(engine.generate(ids, SamplingParams(temperature=0, max_tokens=N)))
    finally:
        engine.close()
    local.load(export(settings, model, tmp_path).folder)
    [events] = local.run(request(ids, temperature=0, max_tokens=N))
    assert ids_of(events) == [token.id for token in want]
    assert "Paris" in model.tokenizer.decode(ids_of(events))
    assert isinstance(model.tokenizer, LimitedTokenizer)
    model.tokenizer.close()
