"""Table of a model's weights for the terminal."""

from __future__ import annotations

import click

from app.cli.errors import errors
from app.cli.options import settings_options
from app.cli.untrusted import echo_untrusted
from app.config import AutoDtype, Settings
from app.models.progress_line import fetch_with_line, find_with_line
from gpu import DtypeChoice, Inventory, RopeTable, TensorEntry

HEADINGS = ("tensor", "shape", "saved", "parameters", "share", "bytes", "stored", "read by")
RIGHT_ALIGNED = (3, 4, 5)
"""Indices of columns."""


@click.command()
@click.argument("model", required=False, envvar="TOKENGLASS_MODEL")
@settings_options(("revision", "dtype"))
def weights(model: str | None, revision: str | None, dtype: AutoDtype) -> None:
    """List the tensors of MODEL, named as --model is. Default: that of the other commands.

    Only headers are read, and no GPU is needed. Sizes on the device are those of loading the model
    with this --dtype.
    """
    with errors():
        found = find_with_line(
            Settings(model=model, revision=revision, dtype=dtype), must_fit=False
        )
        fetch_with_line(found)
        for line in weight_lines(Inventory.from_folder(found.path, found.dtype.dtype), found.dtype):
            echo_untrusted(line.replace("\n", "\N{REPLACEMENT CHARACTER}"))  # names are the file's


def weight_lines(inventory: Inventory, dtype: DtypeChoice) -> list[str]:
    """Return a heading, a line for each tensor, the totals, and why their storage type is `dtype`,
    unless it was asked for."""
    rows = [HEADINGS, *(_row(tensor) for tensor in inventory.tensors)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADINGS))]
    lines = [_line(row, widths) for row in rows]
    chosen = [f"{dtype.dtype}, because {dtype.reason}"] if dtype.reason else []
    return [*lines, "", _totals(inventory), *chosen, _rope(inventory.rope)]


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    cells = [
        cell.rjust(width) if i in RIGHT_ALIGNED else cell.ljust(width)
        for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()


def _row(tensor: TensorEntry) -> tuple[str, ...]:
    if tensor.tied_to is not None:
        stored = f"= {tensor.tied_to}"
    elif tensor.device_dtype is not None:
        stored = f"{tensor.device_dtype}, {tensor.device_bytes:,}"
    else:
        stored = "not read" if tensor.kind == "unused" else ""
    return (
        tensor.name,
        "×".join(map(str, tensor.shape)) or "scalar",
        tensor.dtype,
        f"{tensor.parameters:,}",
        f"{tensor.share:.2%}",
        f"{tensor.n_bytes:,}",
        stored,
        ", ".join(tensor.read_by),
    )


def _totals(inventory: Inventory) -> str:
    totals = f"{inventory.parameters:,} parameters, {inventory.n_bytes:,} bytes in the files"
    if inventory.dtype is None:
        return totals
    return (
        f"{totals}; on the device as {inventory.dtype} {inventory.device_bytes:,} bytes, of which "
        f"decoding one token reads {inventory.token_bytes:,}"
    )


def _rope(rope: RopeTable) -> str:
    if not rope.wavelength:
        return "no rotary positions"
    shortest, longest = min(rope.wavelength), max(rope.wavelength)
    scaling = "" if rope.scaling == "default" else f", {rope.scaling} scaling × {rope.factor:g}"
    return (
        f"rotary positions: theta {rope.theta:,.0f}{scaling}, {len(rope.wavelength)} pairs of "
        f"dimensions with wavelengths of {shortest:,.1f} to {longest:,.0f} tokens"
    )
