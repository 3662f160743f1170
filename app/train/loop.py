"""The training of an adapter in PyTorch, as transformers' Trainer does it by default: AdamW without
weight decay, a learning rate that falls linearly to 0, gradients clipped to norm 1. A step is one
line.

Imported by the training process only: torch, transformers and peft are extras.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import peft
import torch
import transformers

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

MAX_GRADIENT_NORM = 1.0
IGNORED = -100
"""Label of a token without loss, in transformers."""
N_HELD_OUT = 10
"""Times that the loss of the lines held out is measured during a training."""


def train(job: TrainJob, tell: Callable[[TrainEvent], None]) -> None:
    """Train the adapter of `job` and write it. Raises ModelError for a model that transformers or
    PEFT cannot build, and for a loss that is not finite."""
    torch.set_num_threads(job.threads)
    settings = job.settings
    model = add_adapter(load_base(Path(job.model), job.name), settings, job.name)
    trained = [each for each in model.parameters() if each.requires_grad]
    tell(TrainBegun(sum(each.numel() for each in trained)))
    optimizer = torch.optim.AdamW(trained, lr=settings.learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, settings.steps)
    measure_every = max(1, settings.steps // N_HELD_OUT)
    if job.held_out:
        tell(HeldOutLoss(0, mean_loss(model, job.held_out)))
    began = time.monotonic()
    for step, line in enumerate(line_order(len(job.examples), settings), 1):
        loss = loss_of(model, job.examples[line])
        if not torch.isfinite(loss):
            raise ModelError(
                f"the loss is no longer finite at step {step}; use a learning rate below "
                f"{settings.learning_rate:g}"
            )
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(trained, MAX_GRADIENT_NORM)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        each = (time.monotonic() - began) / step
        tell(TrainStep(step, loss.item(), each * (settings.steps - step)))
        if job.held_out and (step % measure_every == 0 or step == settings.steps):
            tell(HeldOutLoss(step, mean_loss(model, job.held_out)))
    model.save_pretrained(job.folder, save_embedding_layers=False)
    tell(TrainDone())


def load_base(path: Path, name: str) -> Any:
    """Return transformers' model of a folder or GGUF file in float32, whose blocks transformers
    dequantises. Raises ModelError."""
    transformers.utils.logging.set_verbosity(logging.ERROR)
    where = (path.parent, {"gguf_file": path.name}) if path.is_file() else (path, {})
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            where[0],
            dtype=torch.float32,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            **where[1],
        )
    except Exception as error:  # each architecture has its own
        raise ModelError(
            f"transformers cannot load {name} to train it: {first_line(error)}. Choose another "
            "model"
        ) from error
    model.config.use_cache = False
    return model


def add_adapter(base: Any, settings: LoraSettings, name: str) -> Any:
    """Return PEFT's model of `base` with a new adapter, to be trained. Raises ModelError."""
    torch.manual_seed(settings.seed)
    config = peft.LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,  # type: ignore[arg-type]  # PEFT takes a float too
        target_modules=list(settings.targets) or "all-linear",
        task_type="CAUSAL_LM",
    )
    try:
        model = peft.get_peft_model(base, config)
    except ValueError as error:
        raise ModelError(f"PEFT cannot adapt {name}: {first_line(error)}") from error
    model.peft_config["default"].base_model_name_or_path = name  # else a path of this machine
    return model.train()


def line_order(n_lines: int, settings: LoraSettings) -> Iterator[int]:
    """Yield the line of each step: all lines in a random order, then again in another one."""
    rng, left = random.Random(settings.seed), list[int]()
    for _ in range(settings.steps):
        left = left or rng.sample(range(n_lines), n_lines)
        yield left.pop(0)


def loss_of(model: Any, example: Example) -> torch.Tensor:
    """Return the mean loss over the tokens of a line after its prompt, a scalar with gradient."""
    ids = torch.tensor([example.ids])
    labels = ids.clone()
    labels[:, : example.n_prompt] = IGNORED
    loss: torch.Tensor = model(input_ids=ids, labels=labels).loss
    return loss


@torch.no_grad()
def mean_loss(model: Any, examples: Sequence[Example]) -> float:
    """Return the mean loss over the tokens of all lines after their prompts."""
    model.eval()
    counts = [len(each.ids) - each.n_prompt for each in examples]
    losses = [loss_of(model, each).item() for each in examples]
    model.train()
    return sum(n * loss for n, loss in zip(counts, losses, strict=True)) / sum(counts)


def first_line(error: Exception) -> str:
    """Return the first line of an error's text, without its full stop."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
