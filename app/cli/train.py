"""`tokenglass train`: train a LoRA adapter on lines of text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from app.cli.errors import errors, read_text
from app.config import Settings
from app.models.progress_line import ProgressLine, fetch_with_line, find_with_line
from app.train.jobs import make_job
from app.train.messages import HeldOutLoss, LoraSettings, TrainBegun, TrainEvent, TrainStep
from app.train.process import Training
from gpu import expect_empty

DEFAULTS = LoraSettings()


@click.command()
@click.argument("model")
@click.argument("lines", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--out", required=True, type=click.Path(path_type=Path),
    help="Folder to write the adapter to, as PEFT does; it must be new or empty.",
)  # fmt: skip
@click.option("--rank", default=DEFAULTS.rank, show_default=True, help="Rank of the matrices.")
@click.option(
    "--alpha", default=DEFAULTS.alpha, show_default=True,
    help="The change of a weight is multiplied by alpha / rank.",
)  # fmt: skip
@click.option(
    "--target", "targets", multiple=True,
    help="Name of the modules to adapt, such as q_proj. May be repeated. Default: all.",
)  # fmt: skip
@click.option(
    "--learning-rate", default=DEFAULTS.learning_rate, show_default=True,
    help="Learning rate of the first step; it falls linearly to 0.",
)  # fmt: skip
@click.option(
    "--steps", default=DEFAULTS.steps, show_default=True, help="Optimiser steps, of one line each."
)
@click.option(
    "--seed", default=DEFAULTS.seed, show_default=True,
    help="Seed of the adapter's first numbers and of the order of the lines.",
)  # fmt: skip
def train(model: str, lines: Path, out: Path, **values: Any) -> None:
    """Train a LoRA adapter for MODEL, named as --model is, on the LINES of a text file.

    A line is a text, or `question => answer`, of which only the answer is trained. A tenth of the
    lines is held out to measure the loss on. Needs `pip install tokenglass[train]`.
    """
    settings = LoraSettings(**values)
    with errors():
        expect_empty(out)
        found = find_with_line(Settings(model=model), must_fit=False)
        fetch_with_line(found)
        text = read_text(lines)
        job = make_job(found.path, found.name, found.tokenizer, text, settings, out)
        n_train, n_held_out = len(job.examples), len(job.held_out)
        click.echo(f"{n_train} lines to train on, {n_held_out} held out; loading {found.name} …")
        line = ProgressLine()
        try:
            Training(job).run(lambda event: _show(event, line, settings.steps))
        finally:
            line.close()
        click.echo(f"Written to {out}. Serve it with: --lora NAME={out}")


def _show(event: TrainEvent, line: ProgressLine, steps: int) -> None:
    match event:
        case TrainBegun(parameters=parameters):
            click.echo(f"training {parameters:,} parameters")
        case TrainStep(step=step, loss=loss, seconds_left=left):
            line.show(f"step {step} of {steps}: loss {loss:.3f}, {left:.0f} s left")
        case HeldOutLoss(step=step, loss=loss):
            line.close()
            click.echo(f"after step {step}: held-out loss {loss:.3f}")
