"""Exports whose keys and values are quantised, and exports whose weights are cut into shards and
pieces, write what the server's engine writes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from e2e.local.exports import SMALL, TALE, exported, server_tokens
from e2e.local.local_engine import LocalEnginePage, ids_of, request
from e2e.local.test_gpu_engine import ALL_SETTINGS
from gpu.export import recording, weight_pieces
from gpu.export.plan_format import PlanFile, decode_plan
from tests.golden import Trained, trained_models

N = 24
"""Tokens of a text."""
PROFILE = "software"
"""Profile of SwiftShader."""
MAX_BINDING = {"tale": 512 << 10, "stories260k": 96 << 10}
"""Bytes of a binding in which the embedding does not fit, nor the widest matrix of a layer of the
bundled model."""
PIECE_BYTES = 300_000
"""Less than a shard, and no multiple of a row."""
SLOW = pytest.mark.slow
MODELS = [pytest.param(model, marks=() if model is SMALL else SLOW) for model in trained_models()]


@pytest.mark.parametrize(
    ("dtype", "kv_dtype"),
    [
        ("f32", "q8"),
        pytest.param("q4", "q8q4", marks=SLOW),
        pytest.param("q8", "rotated4", marks=SLOW),
        pytest.param("f32", "f32", marks=SLOW),
    ],
)
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_quantised_keys_and_values_with_weights_in_shards(
    local: LocalEnginePage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    model: Trained,
    dtype: str,
    kv_dtype: str,
) -> None:
    """Two texts at once, greedy and seeded, and one that is found again; weights are cut into
    shards where they exceed a binding, and into pieces smaller than a shard."""
    bind_at_most(monkeypatch, MAX_BINDING[model.name])
    monkeypatch.setattr(weight_pieces, "PIECE_BYTES", PIECE_BYTES)
    folder = exported(model, tmp_path, dtype, kv_dtype)
    shards = shards_of(decode_plan((folder / "plans" / f"{PROFILE}.plan").read_bytes()))
    if dtype == "f32":
        assert shards["embedding"] > 1
        assert model is not TALE or shards["layer00.mlp.gate_up"] > 1
    assert len(list((folder / "weights").iterdir())) > 1

    assert local.load(folder)["profile"] == PROFILE
    prompt, other = (text.ids[:40] for text in model.texts[:2])
    greedy = {"temperature": 0, "max_tokens": N}
    seeded = {**ALL_SETTINGS, "max_tokens": N}
    first, second = local.run(request(prompt, **greedy), request(other, **seeded))
    for run, ids, settings in ((first, prompt, greedy), (second, other, seeded)):
        want = server_tokens(model, dtype, ids, kv_dtype, **settings)
        assert ids_of(run) == [token.id for token in want]
    if (dtype, kv_dtype) == ("f32", "f32"):
        assert [*prompt, *ids_of(first)] == model.texts[0].ids[: 40 + N]
    [again] = local.run(request(prompt, **greedy))
    assert again[-1]["timings"]["cache_n"] == len(prompt) - 1
    assert ids_of(again) == ids_of(first)


def test_statistics_of_few_rows_fit(
    local: LocalEnginePage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a model with large layers, or with a short context."""
    monkeypatch.setattr("gpu.plans.capture_buffers.captured_rows", lambda config, memory: 8)
    assert local.load(exported(SMALL, tmp_path, "f32"))["limits"]["max_captured_rows"] == 8
    ids = SMALL.texts[0].ids[:20]
    asked = {"capture": True, "temperature": 0, "max_tokens": 4}
    [run] = local.run(request(ids, **asked))
    assert ids_of(run) == [token.id for token in server_tokens(SMALL, "f32", ids, **asked)]


def bind_at_most(monkeypatch: pytest.MonkeyPatch, n_bytes: int) -> None:
    """Record plans for devices whose buffers and bindings have at most `n_bytes`."""
    sizes = {"max-buffer-size": n_bytes, "max-storage-buffer-binding-size": n_bytes}
    for name, info in list(recording.PROFILES.items()):
        small = replace(info, limits={**info.limits, **sizes})
        monkeypatch.setitem(recording.PROFILES, name, small)


def shards_of(plan: PlanFile) -> Counter[str]:
    """Return the number of buffers of each weight by its name."""
    return Counter(plan.weights[b.weight].name for b in plan.buffers if b.weight is not None)
