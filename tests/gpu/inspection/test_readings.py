"""The logit lens and the losses of a text equal torch's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gpu.inspection.readings import LossReading, lens_reading

VOCAB = 97


@pytest.fixture(scope="module")
def logits() -> np.ndarray:
    return np.random.default_rng(5).normal(0, 3, (7, VOCAB)).astype(np.float32)


def test_the_lens_reads_every_layer(logits: np.ndarray) -> None:
    answer = lens_reading(logits, chosen=13, top=4)
    shares = torch.softmax(torch.tensor(logits, dtype=torch.float64), -1)
    want = torch.topk(shares, 4)
    np.testing.assert_array_equal(answer["ids"], want.indices.numpy())
    np.testing.assert_allclose(answer["probabilities"], want.values.numpy(), rtol=1e-6)
    np.testing.assert_allclose(answer["probability"], shares[:, 13].numpy(), rtol=1e-6)
    np.testing.assert_array_equal(answer["rank"], (shares > shares[:, 13:14]).sum(-1).numpy())
    entropy = torch.distributions.Categorical(probs=shares).entropy() / np.log(2)
    np.testing.assert_allclose(answer["entropy"], entropy.numpy(), rtol=1e-6)


@pytest.mark.parametrize("cut", [1, 3, 5])
def test_losses_do_not_depend_on_the_pieces(logits: np.ndarray, cut: int) -> None:
    ids = [4, 90, 0, 13, 13, 96, 2]
    reading = LossReading(top=2)
    reading.add(logits[:cut], ids[1 : cut + 1])
    reading.add(logits[cut:-1], ids[cut + 1 :])
    answer = reading.answer()
    want = torch.nn.functional.cross_entropy(
        torch.tensor(logits[:-1], dtype=torch.float64), torch.tensor(ids[1:]), reduction="none"
    )
    np.testing.assert_allclose(-answer["logprob"], want.numpy(), rtol=1e-6)
    assert answer.info["mean_loss"] == pytest.approx(float(want.mean()), rel=1e-12)
    assert answer.info["perplexity"] == pytest.approx(float(want.mean().exp()), rel=1e-12)
    assert answer["top_ids"][:, 0].tolist() == logits[:-1].argmax(-1).tolist()
    ranks = [(row > row[id]).sum() for row, id in zip(logits[:-1], ids[1:], strict=True)]
    assert answer["rank"].tolist() == ranks


def test_certain_guesses_have_no_entropy() -> None:
    sure = np.full((1, VOCAB), -1e4, np.float32)
    sure[0, 8] = 0
    answer = lens_reading(sure, chosen=8, top=1)
    assert answer["entropy"].tolist() == [0]
    assert answer["rank"].tolist() == [0]
