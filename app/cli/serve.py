"""`tokenglass serve` and `tokenglass run`. The server is imported when it starts, so that `--help`
loads neither Flask nor the engine."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from app.cli.errors import Failure, errors
from app.cli.options import settings_options
from app.config import Settings, setting_specs
from app.terminal import printable


@click.command()
@settings_options()
def serve(**values: Any) -> None:
    """Serve the playground and the API."""
    _serve(Settings(**values))


@click.command()
@click.argument("name", required=False, envvar="TOKENGLASS_MODEL")
@settings_options(tuple(spec.name for spec in setting_specs() if spec.name != "model"))
def run(name: str | None, **values: Any) -> None:
    """Serve the model NAME: one that `tokenglass models` lists, a folder, a GGUF file, or
    OWNER/MODEL on the Hugging Face hub, such as HuggingFaceTB/SmolLM2-135M-Instruct; for GGUF files
    on the hub OWNER/MODEL:Q4_K_M or OWNER/MODEL:FILE. Default: that of `tokenglass serve`.

    Files that are not in the hub's local cache are downloaded first, after a check that the model
    can be run and fits in memory.
    """
    _serve(Settings(model=name, **values))


def tell(line: str) -> None:
    """Print a line on the standard output for as long as anybody reads that: the server goes on
    after `| head -1`, and without its terminal."""
    try:
        # An upstream names its models: with a line break, it would write lines of its own.
        click.echo(printable(line).replace("\n", "\N{REPLACEMENT CHARACTER}"))
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)  # also for the line that Python still holds
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _serve(settings: Settings) -> None:
    from app.server import PortError, log_to_stderr
    from app.server import serve as run_server

    with errors():
        settings.validate()
        log_to_stderr(settings.log_level)
        try:
            failure = run_server(settings, tell)
        except PortError as error:
            raise Failure(str(error)) from None
    if failure is not None:
        raise Failure(failure)
