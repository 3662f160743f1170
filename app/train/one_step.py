"""One step of a full fine-tune on a text: losses, gradients, what the optimiser moves, and losses
after it, for *One step* on the page. The steps of a training are in `app.train.loop`.

Imported by the training process only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from app.train.loop import load_base
from app.train.messages import MatrixStep, OneStep, StepJob

IN_LAYER = re.compile(r"\.(\d+)\.(.+)")


def take_step(job: StepJob) -> OneStep:
    """Return what one step on the text of `job` does. Raises ModelError for a model that cannot be
    loaded."""
    torch.set_num_threads(job.threads)
    model = load_base(Path(job.model), job.name).eval()
    ids = torch.tensor(job.ids)
    before = log_probabilities(model, ids)
    (-before.mean()).backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        matrices = tuple(_update(model, job))
        after = log_probabilities(model, ids)
    return OneStep(tuple(before.tolist()), tuple(after.tolist()), matrices)


def log_probabilities(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Return the log-probability of each token after the first, (n − 1,)."""
    log_p = model(input_ids=ids[None]).logits[0, :-1].log_softmax(-1)
    found: torch.Tensor = log_p.gather(1, ids[1:, None])[:, 0]
    return found


def _update(model: Any, job: StepJob) -> Iterator[MatrixStep]:
    """Update the weights one by one, so that one copy and its moments are in memory at a time."""
    for name, weight in model.named_parameters():
        if weight.grad is None:
            continue
        gradient, old = weight.grad.norm().item(), weight.detach().clone()
        if job.optimizer == "adamw":
            optimizer: torch.optim.Optimizer = torch.optim.AdamW(
                [weight], lr=job.learning_rate, weight_decay=0.0
            )
        else:
            optimizer = torch.optim.SGD([weight], lr=job.learning_rate)
        optimizer.step()
        weight.grad = None
        change = (weight - old).norm().item()
        yield MatrixStep(*_place(name), gradient, change, old.norm().item())


def _place(name: str) -> tuple[int | None, str]:
    """Return the layer of a parameter, and its name there."""
    name, found = name.removesuffix(".weight"), IN_LAYER.search(name.removesuffix(".weight"))
    return (None, name.rpartition(".")[2]) if found is None else (int(found[1]), found[2])
