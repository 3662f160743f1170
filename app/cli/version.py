"""`tokenglass version`."""

from __future__ import annotations

import click

from app import version as own_version


@click.command()
def version() -> None:
    """Show the version."""
    click.echo(f"tokenglass {own_version()}")
