"""An adapter is that of PEFT's own training, and the engine computes with it as PEFT does."""

from __future__ import annotations

import random
from pathlib import Path

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file

from app import tale
from app.train.loop import train
from app.train.messages import (
    Example,
    HeldOutLoss,
    LoraSettings,
    TrainBegun,
    TrainDone,
    TrainEvent,
    TrainJob,
    TrainStep,
)
from gpu import ModelError
from tests.gpu.gguf import gguf_models
from tests.gpu.models import random_models

SETTINGS = LoraSettings(
    rank=3, alpha=5.0, targets=("q_proj", "down_proj"), learning_rate=3e-3, steps=7, seed=11
)
LINES = tuple(
    Example(tuple(random_models.ids(n, seed=n)), n_prompt)
    for n, n_prompt in ((9, 1), (13, 6), (5, 3))
)
HELD_OUT = (
    Example(tuple(random_models.ids(8, seed=3)), 2),
    Example(tuple(random_models.ids(5)), 1),
)


def run(model: Path, folder: Path, settings: LoraSettings = SETTINGS) -> list[TrainEvent]:
    events: list[TrainEvent] = []
    job = TrainJob(str(model), "base", str(folder), settings, LINES, HELD_OUT)
    train(job, events.append)
    return events


def reference(
    base: torch.nn.Module, settings: LoraSettings
) -> tuple[peft.PeftModel, list[float], float]:
    """Train with PEFT's model, written from the formulas. Return it, the loss of each step and the
    held-out loss at the end."""
    torch.manual_seed(settings.seed)
    config = peft.LoraConfig(
        r=settings.rank, lora_alpha=settings.alpha, target_modules=list(settings.targets)
    )
    model = peft.get_peft_model(base, config)
    trained = [weight for name, weight in model.named_parameters() if "lora_" in name]
    adam = torch.optim.AdamW(trained, betas=(0.9, 0.999), eps=1e-8, weight_decay=0)
    rng, order, losses = random.Random(settings.seed), [], []
    while len(order) < settings.steps:
        order += rng.sample(range(len(LINES)), len(LINES))
    for step, line in enumerate(order[: settings.steps]):
        adam.param_groups[0]["lr"] = settings.learning_rate * (1 - step / settings.steps)
        loss = nll(model, LINES[line]).mean()
        gradients = torch.autograd.grad(loss, trained)
        norm = sum(float((each**2).sum()) for each in gradients) ** 0.5
        for weight, gradient in zip(trained, gradients, strict=True):
            weight.grad = gradient * min(1, 1 / norm)
        adam.step()
        losses.append(loss.item())
    held_out = torch.cat([nll(model, each) for each in HELD_OUT]).mean()
    return model, losses, float(held_out)


def nll(model: torch.nn.Module, line: Example) -> torch.Tensor:
    """Return the losses of the tokens after the prompt of a line."""
    log_p = model(input_ids=torch.tensor([line.ids])).logits[0].log_softmax(-1)
    ids = torch.tensor(line.ids[line.n_prompt :])
    return -log_p[line.n_prompt - 1 : -1].gather(1, ids[:, None])[:, 0]


@pytest.mark.parametrize("name", ["mistral", "gemma2"])
def test_it_is_pefts_own_training(name: str, tmp_path: Path) -> None:
    model = random_models.folder(name)
    events = run(model, tmp_path / "adapter")
    base = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    expected, losses, held_out = reference(base, SETTINGS)
    expected.save_pretrained(tmp_path / "expected")
    found = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    wanted = load_file(tmp_path / "expected" / "adapter_model.safetensors")
    assert found.keys() == wanted.keys()
    for key in wanted:
        assert wanted[key].any()
        torch.testing.assert_close(found[key], wanted[key], rtol=1e-3, atol=1e-5)
    steps = [event for event in events if isinstance(event, TrainStep)]
    assert [event.step for event in steps] == [1, 2, 3, 4, 5, 6, 7]
    assert [event.loss for event in steps] == pytest.approx(losses, rel=1e-4)
    assert steps[-1].seconds_left == 0
    measured = {event.step: event.loss for event in events if isinstance(event, HeldOutLoss)}
    assert list(measured) == [0, *range(1, 8)]
    assert measured[7] == pytest.approx(held_out, rel=1e-4)
    trained = [weight for weight in expected.parameters() if weight.requires_grad]
    assert events[0] == TrainBegun(sum(weight.numel() for weight in trained))
    assert events[-1] == TrainDone()


def test_a_gguf_file_trains_the_weights_that_it_holds(tmp_path: Path) -> None:
    """Its blocks are dequantised: the losses before the first step are those of the numbers."""
    path = gguf_models.write(tale.model_dir(), tmp_path / "tale.gguf", "Q8_0")
    settings = LoraSettings(targets=("q_proj",), learning_rate=1e-9, steps=3)
    events = run(path, tmp_path / "adapter", settings)
    folder = transformers.AutoModelForCausalLM.from_pretrained(
        tale.model_dir(), dtype=torch.float32
    )
    with torch.no_grad():
        expected = float(torch.cat([nll(folder, each) for each in HELD_OUT]).mean())
    assert isinstance(events[1], HeldOutLoss)
    assert events[1].loss == pytest.approx(expected, rel=1e-2)  # 8 bits a weight


def test_a_loss_that_is_not_finite_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    factors = iter((1.0, float("inf")))
    monkeypatch.setattr(
        "app.train.loop.loss_of", lambda model, line: nll(model, line).mean() * next(factors)
    )
    job = TrainJob(
        str(random_models.folder("mistral")), "base", str(tmp_path / "out"), SETTINGS, LINES
    )
    with pytest.raises(ModelError, match=r"at step 2; use a learning rate below 0\.003"):
        train(job, lambda event: None)
    assert not (tmp_path / "out").exists()


def test_a_model_that_transformers_cannot_load(tmp_path: Path) -> None:
    path = gguf_models.write(tale.model_dir(), tmp_path / "tale.gguf")
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(ModelError, match="transformers cannot load base to train it"):
        run(path, tmp_path / "adapter")
