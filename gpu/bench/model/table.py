"""Rewrite the table of predictions in docs/gpus.md.

python -m gpu.bench.model.table docs/gpus.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from gpu.bench.model.shape_plans import open_as_gpu
from gpu.bench.model.shape_prediction import ShapePrediction, ShapeWork, trace_shape
from gpu.bench.model.specs import SPECS
from gpu.bench.table import replace_section

SHAPES = (("smol135", "f16"), ("llama1b", "f16"), ("llama8b", "q4"))
CONTEXT = 512
PROMPT = 512


def predictions() -> Iterator[ShapePrediction]:
    """Yield the prediction of every shape on every GPU."""
    devices = {discrete: open_as_gpu(discrete=discrete) for discrete in (True, False)}
    for shape, dtype in SHAPES:
        works: dict[tuple[bool, int], ShapeWork] = {}
        for spec in SPECS.values():
            key = (spec.discrete, spec.wave)
            if key not in works:
                device = devices[spec.discrete]
                works[key] = trace_shape(device, shape, dtype, CONTEXT, PROMPT, spec.wave)
            yield ShapePrediction.of(works[key], spec)


def table() -> str:
    """Return the predictions as Markdown."""
    rows = [
        "| model | GPU | token | tokens/s | of the bandwidth | limit | prompt | tokens/s "
        "| of the f32 peak | limit |",
        "| --- | --- | ---: | ---: | ---: | --- | ---: | ---: | ---: | --- |",
    ]
    for found in predictions():
        work = found.work
        rows.append(
            f"| {work.shape} {work.dtype} | {found.spec.name} "
            f"| {found.token.us / 1e3:.2f} ms | {found.decode_tok_s:.0f} "
            f"| {found.bandwidth_share:.0%} | {found.token.limit} "
            f"| {found.prompt_us / 1e3:.1f} ms | {found.prefill_tok_s:.0f} "
            f"| {found.f32_share:.0%} | {found.prompt[-1].limit} |"
        )
    return "\n".join(rows)


def main(path: Path) -> None:
    text = path.read_text("utf-8")
    path.write_text(replace_section(text, "predictions", table()), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/gpus.md"))
