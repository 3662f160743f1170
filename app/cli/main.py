"""Command line. Each command is a module, which is imported when the command is called: the
engine's process imports this one again, and `--help` should not load a GPU library.

Errors are one line. The exit code is 2 for errors in what the user gave (flags, model folder), else
1, also if this machine has no such adapter or address.
"""

from __future__ import annotations

from importlib import import_module

import click

from app import version

COMMANDS = {
    "bench": "Check and measure a GPU, and write a report to send in an issue.",
    "devices": "List the GPUs that can run a model.",
    "doctor": "Report versions, memory and adapters, to paste into an issue.",
    "export": "Write a model and the page as a static site.",
    "generate": "Write a continuation of a prompt to the terminal.",
    "models": "List the models that can be run by name.",
    "perplexity": "Measure what each storage type costs in quality on a text.",
    "plan": "Show what a model would take, and what devices allow.",
    "reap": "Prune the experts that matter least on a text.",
    "run": "Serve a model by its name.",
    "search": "Find the chunks of documents nearest to a question.",
    "serve": "Serve the playground and the API.",
    "train": "Train a LoRA adapter on lines of text.",
    "version": "Show the version.",
    "watermark": "Look for a watermark in a text.",
    "weights": "List the tensors of a model.",
}
"""What `--help` says of each command, a function of this name in the module of this name."""
MODULES = {"run": "serve"}
"""Modules that have another name than their command."""


class Commands(click.Group):
    """The commands; the default is `serve`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ("--help", "-h", "--version")):
            args = ["serve", *args]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = import_module(f"app.cli.{MODULES.get(name, name)}")
        command: click.Command = getattr(module, name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version(), message="tokenglass %(version)s")
def main() -> None:
    """Tokenglass: a language model you can see through.

    Without a command, it serves the playground; `tokenglass serve --help` lists the settings.
    """
