"""Weights that the browser lays out and quantises itself have the bytes of the server's loader."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app import tale
from e2e.local.local_engine import LocalEnginePage
from gpu.checkpoint.packing import pack
from gpu.export.exporter import export_model
from gpu.load_options import LoadOptions
from tests.gpu.models import random_models

pytestmark = pytest.mark.quick

DTYPES = ("f32", "f16", "q8", "q4")

PACK = """async ({ dtype, k, numbers }) => {
  const { packRows, rowBytes } = await import("/static/js/local/hub/pack.js");
  const rows = new Float32Array(Uint8Array.from(atob(numbers), (c) => c.charCodeAt(0)).buffer);
  const out = new Uint8Array((rows.length / k) * rowBytes(dtype, k));
  packRows(dtype, rows, k, out, "the matrix");
  return btoa(String.fromCharCode(...out));
}"""

DIGESTS = """async ({ url, weights }) => {
  const { readHeader, TensorRows } = await import("/static/js/local/hub/safetensors.js");
  const { weightBytes } = await import("/static/js/local/hub/recipe.js");
  const { digest } = await import("/static/js/local/gpu/weight-cache.js");
  const file = new Uint8Array(await (await fetch(url)).arrayBuffer());
  const read = async (at, bytes) => file.subarray(at, at + bytes);
  const tensors = await readHeader(read, file.length, "model.safetensors");
  for (const tensor of tensors.values()) tensor.read = read;
  const rows = new TensorRows(tensors);
  const found = {};
  for (const weight of weights) {
    // In two pieces, as large weights are.
    const half = Math.floor(weight.n / 2);
    const rowsOf = (part, wanted) => rows.rowsOf(part, wanted);
    const parts = [
      await weightBytes(weight, 0, half, rowsOf),
      await weightBytes(weight, half, weight.n - half, rowsOf),
    ];
    found[weight.name] = await digest(await new Blob(parts).arrayBuffer());
  }
  return found;
}"""


def numbers_of(k: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Rows with what quantisation must handle: zeros, equal weights, outliers, tiny and huge
    ones."""
    rng = np.random.default_rng(k)
    rows = rng.standard_normal((24, k)).astype(np.float32)
    rows[1] = 0
    rows[2] = -0.0
    rows[3] = 0.25
    rows[4, ::7] = 100
    rows[5] *= 1e-7
    rows[6] *= 3e-5
    rows[7] *= 6000
    rows[8] = np.float32(-1.5)
    rows[9] = np.abs(rows[9])
    rows[10, : k // 2] = 0
    rows[11] *= 1e-30
    rows[12] = np.round(rows[12] * 4) / 4
    rows[13] *= 2.0**-14
    return rows


@pytest.mark.parametrize("k", [32, 70])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_packed_to_the_same_bytes(local: LocalEnginePage, dtype: str, k: int) -> None:
    rows = numbers_of(k)
    given = {"dtype": dtype, "k": k, "numbers": base64.b64encode(rows.tobytes()).decode()}
    got = np.frombuffer(base64.b64decode(local.page.evaluate(PACK, given)), np.uint32)
    want = pack(dtype, rows)
    wrong = np.flatnonzero((got.reshape(want.shape) != want).any(axis=1))
    assert not len(wrong), f"rows {wrong.tolist()} differ"


def same_bytes(local: LocalEnginePage, model: Path, folder: Path, dtype: str) -> int:
    """Compare all weights of a model with those of its export; return their number."""
    exported = export_model(model, folder, LoadOptions(dtype=dtype, slots=2), ("portable",))
    plan = json.loads(gzip.decompress((folder / exported.plans["portable"].file).read_bytes()))
    stream = b"".join((folder / piece.file).read_bytes() for piece in exported.weights.pieces)
    weights = [weight for weight in plan["weights"] if weight.get("parts")]
    want = {
        each["name"]: hashlib.sha256(stream[each["at"] : each["at"] + each["bytes"]]).hexdigest()
        for each in weights
    }
    url = local.serve(model) + "model.safetensors"
    got = local.page.evaluate(DIGESTS, {"url": url, "weights": weights})
    assert [name for name in want if got[name] != want[name]] == []
    return len(want)


@pytest.mark.parametrize(
    "dtype", ["q4", *(pytest.param(dtype, marks=pytest.mark.slow) for dtype in DTYPES[:3])]
)
def test_the_bundled_model(local: LocalEnginePage, tmp_path: Path, dtype: str) -> None:
    assert same_bytes(local, tale.model_dir(), tmp_path, dtype) > 20


CASES = tuple(dict.fromkeys((*random_models.ONE_OF_EACH, *random_models.ONE_OF_EACH_MOE)))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", "q4"])
@pytest.mark.parametrize("name", CASES)
def test_every_architecture(local: LocalEnginePage, tmp_path: Path, name: str, dtype: str) -> None:
    """Stacked, alternating and transposed rows, fused tensors, and mixtures of experts."""
    assert same_bytes(local, random_models.folder(name), tmp_path, dtype) > 5
