"""Results of the stages of a model, put together as those of the whole model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import TypeVar, cast

import numpy as np
import numpy.typing as npt

from gpu.config import Stage
from gpu.step import Captured, ExpertChoices, ExpertUse, InspectionResult, StepResult

Array = TypeVar("Array", bound=npt.NDArray[np.generic])


def join_results(results: Sequence[StepResult], stages: Sequence[Stage]) -> StepResult:
    """Return the result of a step of the results of its stages, in order. Times are added up:
    another step may run on a stage meanwhile."""
    gpu_ms = [result.gpu_ms for result in results if result.gpu_ms is not None]
    experts = [
        result.experts.from_layer(stage.first)
        for result, stage in zip(results, stages, strict=True)
        if result.experts is not None
    ]
    captured = [result.captured for result in results if result.captured is not None]
    return StepResult(
        samples=results[-1].samples,
        captured=join_captured(captured, stages) if captured else None,
        gpu_ms=sum(gpu_ms) if len(gpu_ms) == len(results) else None,
        gpu_began_ms=results[0].gpu_began_ms,
        encode_ms=sum(result.encode_ms for result in results),
        wait_ms=sum(result.wait_ms for result in results),
        read_ms=sum(result.read_ms for result in results),
        finish_ms=sum(result.finish_ms for result in results),
        submit_ms=sum(result.submit_ms for result in results),
        experts=reduce(ExpertUse.plus, experts) if experts else None,
        stage_spans=tuple(span for result in results for span in result.stage_spans),
    )


def join_captured(parts: Sequence[Captured], stages: Sequence[Stage]) -> Captured:
    """Return the statistics of all layers; each stage measured its own."""
    first, last = parts[0], parts[-1]
    layer_ms = [part.layer_ms for part in parts if part.layer_ms is not None]
    return Captured(
        embedding=first.embedding,
        residual=_join(part.residual for part in parts),
        attention=_join(part.attention for part in parts),
        mlp=_join(part.mlp for part in parts),
        attention_cosine=_join(part.attention_cosine for part in parts),
        mlp_cosine=_join(part.mlp_cosine for part in parts),
        entropy=_join(part.entropy for part in parts),
        chosen=_join_known(part.chosen for part in parts),
        gates=_join_known(part.gates for part in parts),
        expert_layers=tuple(
            stage.first + layer
            for stage, part in zip(stages, parts, strict=True)
            for layer in part.expert_layers
        ),
        layer_ms=np.concatenate(layer_ms) if len(layer_ms) == len(parts) else None,
        embed_ms=first.embed_ms,
        head_ms=last.head_ms,
    )


def join_inspected(parts: Sequence[InspectionResult]) -> InspectionResult:
    """Return what was inspected of all layers. The state after a stage's layers is the one before
    those of the next."""
    states = [part.states for part in parts if part.states is not None]
    inner = [state[:, :-1] for state in states[:-1]]
    routes = [part.routes for part in parts if part.routes is not None]
    return InspectionResult(
        attention=_join_known(part.attention for part in parts),
        states=_join([*inner, states[-1]]) if states else None,
        routes=_join_routes(routes) if routes else None,
        last_hidden=parts[-1].last_hidden,
        layer=next((part.layer for part in parts if part.layer is not None), None),
    )


def _join_routes(routes: Sequence[ExpertChoices]) -> ExpertChoices:
    return ExpertChoices(
        _join(part.chosen for part in routes),
        _join(part.gates for part in routes),
        _join(part.norms for part in routes),
    )


def _join(parts: Iterable[Array]) -> Array:
    """Return arrays (n_rows, layers of a stage, …) as one (n_rows, all layers, …)."""
    return cast("Array", np.concatenate(list(parts), axis=1))


def _join_known(parts: Iterable[Array | None]) -> Array | None:
    known = [part for part in parts if part is not None]
    return _join(known) if known else None
