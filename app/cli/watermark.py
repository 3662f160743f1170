"""`tokenglass watermark`: whether a text has the watermark of a key."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import click

from app.cli.errors import errors, read_text
from app.cli.options import settings_options
from app.config import Settings
from app.models.progress_line import fetch_with_line, find_with_line
from gpu import (
    Greenlists,
    ModelConfig,
    SeedingScheme,
    WatermarkConfig,
    detect_watermark,
)

DEFAULTS = WatermarkConfig()


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@settings_options(("model", "revision"))
@click.option("--greenlist-ratio", type=float, default=DEFAULTS.greenlist_ratio, show_default=True)
@click.option("--hashing-key", type=int, default=DEFAULTS.hashing_key, show_default=True)
@click.option(
    "--seeding-scheme", type=click.Choice(get_args(SeedingScheme)), default=DEFAULTS.seeding_scheme,
    show_default=True,
)  # fmt: skip
@click.option("--context-width", type=click.IntRange(1, 16), default=1, show_default=True)
def watermark(
    file: Path,
    greenlist_ratio: float,
    hashing_key: int,
    seeding_scheme: SeedingScheme,
    context_width: int,
    **values: Any,
) -> None:
    """Look for a watermark in the text of FILE (UTF-8), as transformers' WatermarkDetector does.

    The model gives the tokenizer and the size of the vocabulary; it is not loaded. The options are
    those with which the text was written.
    """
    text = read_text(file)
    with errors():
        config = WatermarkConfig(greenlist_ratio, hashing_key, seeding_scheme, context_width)
        config.check()
        model = find_with_line(Settings(**values), must_fit=False)
        fetch_with_line(model)
        vocab_size = ModelConfig.from_folder(model.path).vocab_size
        ids = model.tokenizer.encode(text, False, False)
        found = detect_watermark(ids, config, Greenlists(vocab_size))
        share = f"{found.num_green_tokens:,} of {found.num_tokens_scored:,} tokens are green"
        click.echo(f"{share} ({found.green_fraction:.1%}, by chance {greenlist_ratio:.1%})")
        click.echo(f"z {found.z_score:.2f}, p {found.p_value:.2g}")
        click.echo("a watermark of this key" if found.prediction else "no watermark of this key")
