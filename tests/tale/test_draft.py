"""The bundled model's draft model: its files, and how it is distilled."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from app.tale import draft_dir, model_dir
from gpu import Engine, LoadOptions, ModelConfig, Request, SamplingParams
from gpu.speculative.draft_length import DraftLength
from tests.tale import distill
from tests.tale.export import load
from tests.tale.model import EMBEDDING_STD, Tale

PROMPT = (
    "<|im_start|>user\nTell me a story about a fox who finds a lantern.<|im_end|>\n"
    "<|im_start|>assistant\n"
)


@pytest.fixture(scope="module")
def teacher() -> Tale:
    return load(model_dir())


def test_the_files_are_of_a_small_model_with_the_same_tokens() -> None:
    config, large = ModelConfig.from_folder(draft_dir()), ModelConfig.from_folder(model_dir())
    assert (config.n_layers, config.vocab_size) == (2, large.vocab_size)
    assert config.context == large.context
    record = json.loads((draft_dir() / "distillation.json").read_text("utf-8"))
    n_bytes = (draft_dir() / "model.safetensors").stat().st_size
    assert 2 * record["parameters"] <= n_bytes < 1_300_000
    assert sorted(path.name for path in draft_dir().iterdir()) == [
        "config.json",
        "distillation.json",
        "model.safetensors",
    ]


@pytest.mark.slow
def test_most_of_its_drafts_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DraftLength, "choose", lambda self, most, n_beside: min(most, 1))
    options = LoadOptions(slots=1, draft=draft_dir())
    params = SamplingParams(seed=0, temperature=0.0, max_tokens=80, ignore_eos=True)
    texts = []
    for each in (replace(options, draft=None), options):
        engine = Engine.load(model_dir(), each)
        try:
            run = engine.submit(Request(engine.tokenizer.encode(PROMPT), params))
            texts.append([token.id for token in run])
        finally:
            engine.close()
    assert run.done is not None
    timings = run.done.timings
    assert texts[0] == texts[1]
    assert timings.draft_n_accepted > 0.6 * timings.draft_n > 20


def test_a_student_begins_with_the_principal_components_of_the_embedding(teacher: Tale) -> None:
    """Tokens that are near each other for the teacher are for the student."""
    student = distill.student_of(teacher)
    embedding = student.embed_tokens.weight.detach()
    assert embedding.shape == (teacher.config.vocab_size, distill.HIDDEN)
    assert float(embedding.std()) == pytest.approx(EMBEDDING_STD, rel=1e-3)
    large = teacher.embed_tokens.weight.detach()
    large = large - large.mean(0)
    near, wanted = (torch.pdist(e[100:140]) for e in (embedding, large))
    assert float(torch.corrcoef(torch.stack([near, wanted]))[0, 1]) > 0.8


def test_the_divergence_is_least_for_the_teachers_own_logits() -> None:
    torch.manual_seed(0)
    logits = torch.randn(5, 30)
    assert float(distill.divergence(logits, logits + 3.0)) == pytest.approx(0.0, abs=1e-6)
    other = torch.randn(5, 30)
    p = logits.softmax(-1)
    by_hand = float((p * (logits.log_softmax(-1) - other.log_softmax(-1))).sum(-1).mean())
    assert float(distill.divergence(logits, other)) == pytest.approx(by_hand, rel=1e-5)
