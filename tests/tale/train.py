"""Train the bundled model on the generated stream for a given time.

    python -m tests.tale.train --stream FOLDER --run FOLDER --minutes 75

The learning rate follows the clock, not the step count: a short warm-up, a plateau, then a straight
line to zero, so a run always ends with its decay done however busy the machine is. Every few
minutes the f16 export is written to the model folder.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TextIO

import torch
import torch.nn.functional as F
from torch import Tensor

from app.tale import model_dir
from tests.tale import corpus
from tests.tale.export import export, load
from tests.tale.model import Tale, TaleConfig
from tests.tale.packing import PADDING, Batch, batches
from tests.tale.tokenizer import VOCAB_SIZE

WARM_UP, DECAY_FROM = 0.02, 0.45  # shares of the time
FIRST_EXPORT, EXPORT_EVERY = 180.0, 300.0  # seconds
EMBEDDING_RATE, FINAL_NORM_RATE = 5e-2, 1e-4  # as their sizes: see Tale.reset
HELD_OUT_BATCHES = 3
HELD_OUT_SEED = 987_001  # never used for training streams


def learning_rate(progress: float) -> float:
    """Return the factor on the peak learning rate at `progress` (0 to 1) of the time."""
    if progress < WARM_UP:
        return progress / WARM_UP + 0.01
    return min(1.0, max(0.0, (1.0 - progress) / (1.0 - DECAY_FROM)))


def loss_of(model: Tale, batch: Batch, *, precise: bool = False) -> Tensor:
    """Return the mean cross-entropy (nats) over the tokens that count; in bf16 unless `precise`."""
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not precise):
        hidden, _ = model(batch.ids, batch.positions, batch.mask)
        counted = batch.target != PADDING
        logits = model.logits(hidden[counted])  # (n_counted, vocab_size)
    return F.cross_entropy(logits.float(), batch.target[counted])


def optimizers(model: Tale, name: str) -> list[torch.optim.Optimizer]:
    """Return AdamW for everything, or Muon for the layers' matrices and AdamW for the rest."""
    inner = [p for n, p in model.named_parameters() if p.dim() == 2 and "layers" in n]
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and "layers" not in n]
    vectors = [p for n, p in model.named_parameters() if p.dim() == 1 and "layers" in n]
    groups = [
        {"params": matrices, "weight_decay": 0.0, "lr": EMBEDDING_RATE},
        {"params": [model.norm.weight], "weight_decay": 0.0, "lr": FINAL_NORM_RATE},
        {"params": vectors, "weight_decay": 0.0},
    ]
    if name == "muon":
        return [
            torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95), fused=True),
            torch.optim.Muon(
                inner, lr=5e-3, weight_decay=0.05, adjust_lr_fn="match_rms_adamw", ns_steps=5
            ),
        ]
    groups.append({"params": inner, "weight_decay": 0.1})
    return [torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95), fused=True)]


def endless(stream: corpus.Stream, tokens_per_batch: int) -> Iterator[Batch]:
    """Yield batches forever; the stream is shuffled again after each pass."""
    seed = 0
    while True:
        yield from batches(stream, tokens_per_batch, seed)
        seed += 1


def held_out_loss(model: Tale, held_out: list[Batch]) -> float:
    with torch.no_grad():
        return sum(loss_of(model, batch).item() for batch in held_out) / len(held_out)


@dataclass(slots=True)
class Progress:
    """State of a training run and its log, one JSON line per report."""

    minutes: float
    log: TextIO
    start: float = field(default_factory=time.monotonic)
    step: int = 0
    tokens: int = 0  # padding not counted
    recent_loss: float = 0.0  # mean with a memory of about twenty steps

    def elapsed(self) -> float:
        return time.monotonic() - self.start

    def rate(self) -> float:
        return learning_rate(self.elapsed() / (self.minutes * 60))

    def count(self, batch: Batch, loss: float) -> None:
        self.step += 1
        self.tokens += int((batch.document != PADDING).sum())
        self.recent_loss = loss if self.step == 1 else 0.95 * self.recent_loss + 0.05 * loss

    def report(self, held_out: float) -> None:
        record = {
            "step": self.step,
            "tokens": self.tokens,
            "seconds": round(self.elapsed(), 1),
            "lr_factor": round(self.rate(), 4),
            "train_loss": round(self.recent_loss, 4),
            "held_out_loss": round(held_out, 4),
        }
        self.log.write(json.dumps(record) + "\n")
        self.log.flush()


def set_rates(steppers: list[torch.optim.Optimizer], peaks: list[list[float]], rate: float) -> None:
    for stepper, peak in zip(steppers, peaks, strict=True):
        for group, lr in zip(stepper.param_groups, peak, strict=True):
            group["lr"] = lr * rate


def train_step(model: Tale, steppers: list[torch.optim.Optimizer], batch: Batch) -> float:
    loss = loss_of(model, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for stepper in steppers:
        stepper.step()
        stepper.zero_grad()
    return loss.item()


def train(options: argparse.Namespace) -> None:
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    options.run.mkdir(parents=True, exist_ok=True)
    model = Tale(TaleConfig(vocab_size=VOCAB_SIZE))
    if options.init is not None:
        model.load_state_dict(load(options.init).state_dict())
    for layer in model.layers:
        layer.compile(dynamic=False)  # 17 % faster here; one compilation per row length
    steppers = optimizers(model, options.optimizer)
    peaks = [[group["lr"] for group in stepper.param_groups] for stepper in steppers]
    held_out_stream = corpus.build(600, HELD_OUT_SEED, n_processes=1)
    held_out = list(islice(batches(held_out_stream, options.batch, 0), HELD_OUT_BATCHES))
    source = endless(corpus.load(options.stream), options.batch)
    first = source if options.first is None else endless(corpus.load(options.first), options.batch)
    with (options.run / "log.jsonl").open("w", encoding="utf-8") as log:
        progress = Progress(options.minutes, log)
        next_report, next_export = 0.0, FIRST_EXPORT
        while progress.elapsed() < options.minutes * 60:
            set_rates(steppers, peaks, progress.rate() * options.peak)
            at_first = progress.elapsed() < options.first_minutes * 60
            batch = next(first if at_first else source)
            progress.count(batch, train_step(model, steppers, batch))
            if progress.elapsed() >= next_report:
                next_report = progress.elapsed() + options.report
                progress.report(held_out_loss(model, held_out))
            if progress.elapsed() >= next_export and not options.trial:
                next_export = progress.elapsed() + EXPORT_EVERY
                export(model, model_dir())
        progress.report(held_out_loss(model, held_out))
    if not options.trial:
        export(model, model_dir())
        torch.save(model.state_dict(), options.run / "final.pt")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stream", type=Path, required=True, help="folder written by corpus --out")
    parser.add_argument("--first", type=Path, help="folder of the stream for the first minutes")
    parser.add_argument("--first-minutes", type=float, default=12.0)
    parser.add_argument("--run", type=Path, required=True, help="folder for the log and weights")
    parser.add_argument("--minutes", type=float, default=75.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=3840, help="tokens per step, padding included")
    parser.add_argument("--optimizer", choices=("adamw", "muon"), default="muon")
    parser.add_argument("--peak", type=float, default=1.0, help="factor on the learning rates")
    parser.add_argument("--report", type=float, default=90.0, help="seconds between reports")
    parser.add_argument("--init", type=Path, help="start from the export in this folder")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trial", action="store_true", help="export nothing")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
