"""Distil the draft model of the bundled model: two layers that guess what its eight would write.

    python -m tests.tale.distill

The draft learns the bundled model's probabilities of every token that counts (Hinton et al. 2015,
"Distilling the Knowledge in a Neural Network"), on generated text that nobody trained on. Its
embedding begins as the principal components of the bundled model's. Steps, text and seed are fixed,
so that a run can be repeated.
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from app.tale import draft_dir, model_dir
from tests.tale import corpus
from tests.tale.export import export, load
from tests.tale.model import EMBEDDING_STD, Tale, TaleConfig
from tests.tale.packing import PADDING, Batch, batches
from tests.tale.train import HELD_OUT_SEED, endless, learning_rate, optimizers, set_rates

N_LAYERS, HIDDEN, N_HEADS, INTERMEDIATE = 2, 96, 3, 256
STREAM_SEED = 11
HELD_OUT_BATCHES = 4
PEAK = 0.6
"""Factor on the learning rates of `train`: the embedding does not begin from nothing."""


def student_of(teacher: Tale) -> Tale:
    """Return an untrained draft whose embedding is the teacher's, projected on its principal
    components and as large as an untrained one."""
    config = teacher.config
    student = Tale(
        TaleConfig(
            vocab_size=config.vocab_size,
            n_layers=N_LAYERS,
            hidden=HIDDEN,
            n_heads=N_HEADS,
            n_kv_heads=N_HEADS,
            head_dim=config.head_dim,
            intermediate=INTERMEDIATE,
            max_positions=config.max_positions,
            rope_theta=config.rope_theta,
            norm_eps=config.norm_eps,
        )
    )
    with torch.no_grad():
        embedding = teacher.embed_tokens.weight - teacher.embed_tokens.weight.mean(0)
        _, _, components = torch.linalg.svd(embedding, full_matrices=False)
        projected = embedding @ components[:HIDDEN].T
        student.embed_tokens.weight.copy_(projected * (EMBEDDING_STD / projected.std()))
    return student


def counted_logits(model: Tale, batch: Batch) -> Tensor:
    """Return the logits of the tokens that count, (n_counted, vocab_size)."""
    hidden, _ = model(batch.ids, batch.positions, batch.mask)
    return model.logits(hidden[batch.target != PADDING]).float()


def divergence(teacher: Tensor, student: Tensor) -> Tensor:
    """Return the mean KL(teacher ‖ student) in nats of logits (n, vocab_size)."""
    return F.kl_div(
        student.log_softmax(-1), teacher.log_softmax(-1), log_target=True, reduction="batchmean"
    )


@torch.inference_mode()
def agreement(teacher: Tale, student: Tale, held_out: list[Batch]) -> dict[str, float]:
    """Return how often both have the same most likely token, how much probability they share
    (1 − total variation, the acceptance of rejection sampling), and the divergence."""
    shared, same, apart, n = 0.0, 0, 0.0, 0
    for batch in held_out:
        wanted, found = counted_logits(teacher, batch), counted_logits(student, batch)
        same += int((wanted.argmax(-1) == found.argmax(-1)).sum())
        shared += float(torch.minimum(wanted.softmax(-1), found.softmax(-1)).sum())
        apart += float(divergence(wanted, found)) * len(wanted)
        n += len(wanted)
    figures = {"same_argmax": same / n, "shared_probability": shared / n, "kl": apart / n}
    return {name: round(figure, 4) for name, figure in figures.items()}


def distil(options: argparse.Namespace) -> None:
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    teacher = load(model_dir())
    student = student_of(teacher)
    steppers = optimizers(student, "muon")
    peaks = [[group["lr"] for group in stepper.param_groups] for stepper in steppers]
    stream = corpus.build(options.documents, STREAM_SEED, n_processes=options.threads)
    unseen = corpus.build(600, HELD_OUT_SEED, n_processes=options.threads)
    held_out = list(islice(batches(unseen, options.batch, 0), HELD_OUT_BATCHES))
    began, n_tokens = time.monotonic(), 0
    for step, batch in enumerate(islice(endless(stream, options.batch), options.steps)):
        set_rates(steppers, peaks, PEAK * learning_rate(step / options.steps))
        with torch.inference_mode():
            wanted = counted_logits(teacher, batch)
        loss = divergence(wanted.clone(), counted_logits(student, batch))
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        for stepper in steppers:
            stepper.step()
            stepper.zero_grad()
        n_tokens += int((batch.document != PADDING).sum())
        if step % options.report == 0:
            print(
                f"{step} steps, {time.monotonic() - began:.0f} s, KL {loss.item():.3f}", flush=True
            )
    export(student, options.out)
    (options.out / "generation_config.json").unlink()  # it is never used alone
    record = {
        "parameters": sum(parameter.numel() for parameter in student.parameters()),
        "steps": options.steps,
        "tokens": n_tokens,
        "seed": options.seed,
        "minutes": round((time.monotonic() - began) / 60, 1),
        "held_out": agreement(teacher, load(options.out), held_out),
    }
    (options.out / "distillation.json").write_text(json.dumps(record, indent=2) + "\n", "utf-8")
    print(json.dumps(record, indent=2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=draft_dir(), help="folder of the draft model")
    parser.add_argument("--documents", type=int, default=16_000)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--batch", type=int, default=1920, help="tokens per step, with padding")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--report", type=int, default=50, help="steps between reports")
    parser.add_argument("--seed", type=int, default=1)
    distil(parser.parse_args())


if __name__ == "__main__":
    main()
