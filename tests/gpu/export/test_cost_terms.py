"""The costs in a plan file are what the formulas give, for a step of any size; of every
architecture `test_recording.py` says so."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, cast

import pytest

from gpu.checkpoint.open_model import open_model
from gpu.export import recording
from gpu.export.cost_terms import SymbolicSize
from gpu.export.recording import record
from gpu.load_options import LoadOptions
from gpu.ops.cost import StepSize
from gpu.webgpu.compiler import Compiler
from tests.golden import trained_models
from tests.gpu.export.costs import check_costs


def test_terms_are_the_formulas_with_a_quantised_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Compiler, "begin", lambda *args: Future())  # no dispatch runs here
    monkeypatch.setattr(recording, "ROW_BUCKETS", (1, 16))
    options = LoadOptions(dtype="q8", slots=2, kv_dtype="q8")
    recorded = record(*open_model(trained_models()[0].folder), options, "portable")
    names = {d.kernel.name for plan in recorded.plans for d in plan.plan.dispatches}
    assert {"quantize_kv", "attention_merge"} <= names
    check_costs(recorded)
    recorded.close()


@pytest.mark.parametrize(
    "formula",
    [
        lambda size: size.n_rows * size.n_samples,
        lambda size: size.n_rows // 2,
        lambda size: 2 ** size.n_seen(),
        lambda size: 5 if size.n_rows > 1 else 4,
        lambda size: 5 if size.n_rows else 4,
    ],
)
def test_a_formula_that_is_not_linear_is_refused(formula: Any) -> None:
    """Whoever adds an op finds out when it is exported, not by wrong numbers."""
    with pytest.raises(TypeError):
        formula(cast(StepSize, SymbolicSize()))
