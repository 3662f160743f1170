"""Statistics read in chunks, against NumPy and SciPy on the whole tensor at once."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy import stats

from gpu.checkpoint import tensor_summary as summaries
from gpu.checkpoint.reader import Checkpoint
from gpu.checkpoint.tensor_summary import BINS, OUTLIERS, TensorSummary, tensor_summary
from gpu.errors import InvalidRequest
from tests.golden import tale

Array = npt.NDArray[np.float64]
DTYPES = ("float32", "float16", "bfloat16")


def save(folder: Path, **tensors: torch.Tensor) -> Checkpoint:
    from safetensors.torch import save_file

    save_file(tensors, folder / "model.safetensors")
    return Checkpoint.open(folder)


def heavy_tailed(shape: tuple[int, ...], dtype: str, seed: int = 0) -> torch.Tensor:
    """Student's t with 4 degrees of freedom and some zeros: outliers, and a kurtosis far from 3."""
    rng = np.random.default_rng(seed)
    values = rng.standard_t(4, shape) * 0.3 + 0.01
    values[rng.random(shape) < 0.05] = 0
    return torch.from_numpy(values).to(getattr(torch, dtype))


def check(summary: TensorSummary, whole: Array) -> None:
    """Compare a summary with `whole`, the tensor's values in their shape."""
    finite = whole[np.isfinite(whole)]
    assert summary.shape == whole.shape
    assert (summary.n, summary.n_nan, summary.n_inf) == (
        whole.size, np.isnan(whole).sum(), np.isinf(whole).sum(),
    )  # fmt: skip
    assert (summary.min, summary.max) == (finite.min(), finite.max())
    assert summary.max_abs == np.abs(finite).max()
    assert summary.mean == pytest.approx(finite.mean(), rel=1e-9, abs=1e-15)
    assert summary.std == pytest.approx(finite.std(), rel=1e-9)
    assert summary.kurtosis == pytest.approx(stats.kurtosis(finite, fisher=False), rel=1e-9)
    assert summary.zeros == (finite == 0).mean()
    counts, edges = np.histogram(finite, BINS, (-summary.max_abs, summary.max_abs))
    assert summary.counts == tuple(counts)
    assert len(edges) == BINS + 1
    check_outliers(summary, whole)


def check_outliers(summary: TensorSummary, whole: Array) -> None:
    """Compare with a stable sort of all values by size, then position."""
    flat = whole.reshape(-1)
    sizes = np.where(np.isfinite(flat), np.abs(flat), -1)
    n = min(OUTLIERS, int(np.isfinite(flat).sum()))
    places = np.argsort(-sizes, kind="stable")[:n]
    assert [o.value for o in summary.outliers] == flat[places].tolist()
    assert [o.index for o in summary.outliers] == [
        tuple(int(i) for i in np.unravel_index(place, whole.shape)) for place in places
    ]
    for outlier in summary.outliers:
        wanted = (whole[outlier.index] - np.mean(flat[sizes >= 0])) / np.std(flat[sizes >= 0])
        assert outlier.deviations == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(7,), (16,), (17,), (33, 20), (1009, 37), (3, 5, 7)])
@pytest.mark.parametrize("piece", [1 << 20, 1000, 64, 7])
def test_statistics_equal_those_of_the_whole_tensor(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    dtype: str,
    shape: tuple[int, ...],
    piece: int,
) -> None:
    monkeypatch.setattr(summaries, "CHUNK_NUMBERS", piece)
    values = heavy_tailed(shape, dtype)
    summary = tensor_summary(save(tmp_path, w=values), "w")
    assert summary.dtype == {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}[dtype]
    check(summary, values.double().numpy())


@pytest.mark.parametrize("dtype", DTYPES)
def test_non_finite_values_are_counted_and_excluded(tmp_path: Path, dtype: str) -> None:
    values = heavy_tailed((50, 40), dtype)
    values[3, 4] = values[7, 0] = torch.nan
    values[0, 0], values[49, 39], values[20, 20] = torch.inf, -torch.inf, torch.inf
    summary = tensor_summary(save(tmp_path, w=values), "w")
    assert (summary.n_nan, summary.n_inf) == (2, 3)
    check(summary, values.double().numpy())


@pytest.mark.parametrize("piece", [1 << 20, 5])
def test_ties_are_listed_in_the_order_of_their_positions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    monkeypatch.setattr(summaries, "CHUNK_NUMBERS", piece)
    signs = torch.tensor([1.0, -1.0, 2.0, 1.0]).repeat(30).reshape(12, 10)
    summary = tensor_summary(save(tmp_path, w=signs), "w")
    check(summary, signs.double().numpy())


@pytest.mark.parametrize(("value", "n_zero"), [(0.0, 1.0), (-0.0, 1.0), (0.1, 0.0)])
def test_equal_numbers_have_zero_deviation(tmp_path: Path, value: float, n_zero: float) -> None:
    summary = tensor_summary(save(tmp_path, w=torch.full((1000,), value)), "w")
    single = float(np.float32(value))
    assert (summary.min, summary.max, summary.std) == (single, single, 0.0)
    assert summary.mean == pytest.approx(single)
    assert summary.kurtosis is None
    assert summary.zeros == n_zero
    assert summary.outliers[0].deviations is None
    assert sum(summary.counts) == 1000
    assert summary.counts[BINS // 2 if value == 0 else BINS - 1] == 1000


@pytest.mark.parametrize(
    "values", [torch.zeros(0, 4), torch.full((3,), torch.nan), torch.full((2, 2), torch.inf)]
)
def test_without_finite_numbers_there_are_no_statistics(
    tmp_path: Path, values: torch.Tensor
) -> None:
    summary = tensor_summary(save(tmp_path, w=values), "w")
    assert summary.n == summary.n_nan + summary.n_inf == values.numel()
    assert summary.min is summary.max is summary.mean is summary.std is None
    assert summary.kurtosis is summary.zeros is None
    assert (summary.counts, summary.outliers) == ((0,) * BINS, ())


def test_a_scalar_has_an_empty_index(tmp_path: Path) -> None:
    summary = tensor_summary(save(tmp_path, w=torch.tensor(3.0)), "w")
    assert summary.outliers[0].index == ()
    assert summary.outliers[0].value == 3.0


def test_numbers_at_the_limits_of_float32(tmp_path: Path) -> None:
    ends = torch.tensor([3.4e38, -3.4e38, 1e-45, -1e-45, 0.0, 1.0])
    check(tensor_summary(save(tmp_path, w=ends), "w"), ends.double().numpy())


@pytest.mark.parametrize("name", ["", "v", "../w", "w\n"])
def test_an_unknown_name_is_refused(tmp_path: Path, name: str) -> None:
    checkpoint = save(tmp_path, w=torch.ones(3))
    with pytest.raises(InvalidRequest, match="the checkpoint has no tensor") as caught:
        tensor_summary(checkpoint, name)
    assert caught.value.param == "name"


def test_a_dtype_without_weights_is_refused(tmp_path: Path) -> None:
    checkpoint = save(tmp_path, ids=torch.arange(3))
    with pytest.raises(InvalidRequest, match="has dtype I64; expected one of F32, F16, BF16"):
        tensor_summary(checkpoint, "ids")


def test_memory_does_not_grow_with_the_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summaries, "CHUNK_NUMBERS", 1 << 14)
    checkpoint = save(tmp_path, small=torch.randn(1 << 15), large=torch.randn(1 << 21))

    def peak(name: str) -> int:
        tracemalloc.start()
        try:
            tensor_summary(checkpoint, name)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak("small")
    assert peak("large") < 1.5 * peak("small")


def test_every_tensor_of_a_trained_model() -> None:
    checkpoint = Checkpoint.open(tale().folder)
    for name in checkpoint.names():
        whole: Any = checkpoint.read_f32(name).astype(np.float64)
        check(tensor_summary(checkpoint, name), whole)
