"""`tokenglass export`: write a model for engines in browsers."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from app.cli.errors import errors
from app.cli.options import settings_options
from app.config import Settings
from app.models.loras import find_loras
from app.models.progress_line import ProgressLine, fetch_with_line, find_with_line
from app.site.export import expect_replaceable
from app.site.export import export as write_site

VIEW_PORT = 8080
"""Port of the example that shows an export: not the playground's."""


@click.command()
@click.argument("out", metavar="DIR", type=click.Path(path_type=Path))
@settings_options(("model", "revision", "dtype", "kv_dtype", "lora", "context", "kv_memory"))
def export(out: Path, **values: Any) -> None:
    """Write a model and the page to the folder DIR, as a static site that runs in the browser.

    Any file server can host DIR; no GPU is needed to write it. Adapters of --lora are exported with
    the model, and the page has sliders for them. An older export in DIR is replaced, and one that
    was interrupted is continued. docs/plan-format.md describes the files.
    """
    with errors():
        for line in report_lines(Settings(**values), out):
            click.echo(line)


def report_lines(settings: Settings, out: Path) -> Iterator[str]:
    """Export the model of `settings` to `out`; yield what was written. Raises the errors of
    finding a model and adapters, and ModelError if they cannot be exported or written."""
    expect_replaceable(out.absolute())
    loras = find_loras(settings.lora)
    model = find_with_line(settings, must_fit=False)
    fetch_with_line(model)
    line = ProgressLine()
    try:
        exported = write_site(
            settings, model, out, lambda share, message: line.show(message), loras=loras
        )
    finally:
        line.close()
    files = exported.manifest.model
    yield f"{model.name} as {files.dtype}: {exported.n_bytes / 1e6:.1f} MB in {out}"
    if model.dtype.reason:
        yield f"  {files.dtype}, because {model.dtype.reason}"
    for name, plan in files.plans.items():
        yield f"  plans for {name} devices: {plan.bytes / 1e3:.0f} kB"
    if loras:
        yield f"  LoRA adapters: {', '.join(loras)}"
    n = len(files.weights.pieces)
    yield f"  weights: {files.weights.bytes / 1e6:.1f} MB in {n} file{'s' if n > 1 else ''}"
    yield f"To see it: python3 -m http.server {VIEW_PORT} --directory {shlex.quote(str(out))}"
    yield f"and open http://localhost:{VIEW_PORT}/ in a browser with WebGPU"
