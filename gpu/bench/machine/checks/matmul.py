"""Checks of matmul with everything that is fused into it, embeddings, and int8 activations.

A float32 dot product of random signs is off by about ROUNDING · ‖a‖ · ‖b‖; eight times that leaves
room for the unlucky element of thousands. Products in float16, a lost chunk or a wrong mean are off
by hundreds of times that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from gpu import ops
from gpu.bench.machine.rig import ROUNDING, Array, Rig, f64, normal, plain_rows, recording
from gpu.checkpoint.packing import FORMATS, pack, unpack
from gpu.ops.quantize_activations import BLOCK_WORDS, EVEN_ODD, quantized_row_words
from gpu.reference import ops as reference
from gpu.reference import quantize_activations as quantised
from gpu.step import FROM_GPU, Row, Sample
from gpu.webgpu.plan import Recorder

EPS = 1e-5
SLOPE = 1.2
"""Steepest slope of any activation."""


@dataclass(frozen=True, slots=True)
class MatmulCase:
    """A matmul of `rows` rows in a plan for `bucket`."""

    k: int
    n: int
    rows: int = 3
    bucket: int = 4
    norm: bool = False
    bias: bool = False
    residual: bool = False
    gated: bool = False
    gather: bool = False
    n_gathered: int = 5
    activation: str | None = None

    def __str__(self) -> str:
        flags = [f for f in ("norm", "bias", "residual", "gated", "gather") if getattr(self, f)]
        return " ".join([f"{self.rows} of {self.bucket} rows, {self.k}x{self.n}", *flags])

    @property
    def act(self) -> str | None:
        return self.activation or ("silu" if self.gated else None)


CASES = (
    MatmulCase(1, 1, 1, 1),
    MatmulCase(33, 15, 1, 1, norm=True),
    MatmulCase(74, 37, residual=True),
    MatmulCase(500, 17, 5, 8, norm=True, bias=True),
    MatmulCase(64, 258, 1, 1, norm=True, gated=True, bias=True),
    MatmulCase(97, 66, 13, 16, norm=True, gated=True),
    MatmulCase(70, 66, 4, 4, bias=True, activation="gelu_tanh"),
    MatmulCase(70, 66, 4, 4, bias=True, activation="gelu"),
    MatmulCase(40, 36, 7, 8, norm=True, gather=True),
    MatmulCase(300, 270, 101, 128, norm=True, residual=True),
)


def check_matmul(rig: Rig, dtype: str) -> None:
    most = rig.memory.max_rows
    for case in (*CASES, MatmulCase(70, 1100, most - 3, most, norm=True, residual=True)):
        check_case(rig, dtype, case)


def check_q8_activations(rig: Rig, dtype: str) -> None:
    """Multiply int8 rows, as `--activations q8` does. The bytes are read back: where a number lies
    between two of them, the last bit of a float32 decides which it becomes."""
    tuning = replace(rig.device.tuning, q8_activations=True)
    q8 = Rig(replace(rig.device, tuning=tuning), rig.kernels)
    q8.found = rig.found
    for case in (
        MatmulCase(33, 34, 1, 1),
        MatmulCase(251, 127, 5, 8, norm=True),
        MatmulCase(70, 66, 60, 64, bias=True, residual=True),
    ):
        check_case(q8, dtype, case)


def check_case(rig: Rig, dtype: str, case: MatmulCase) -> None:
    """Compare one matmul with weights stored as `dtype` with its twin."""
    rng = np.random.default_rng(case.k)
    weight = normal(rng, case.n, case.k) / np.float32(np.sqrt(case.k))
    width = case.n // 2 if case.gated else case.n
    gathered = rng.permutation(case.rows)[: case.n_gathered]
    n_out = len(gathered) if case.gather else case.rows
    x, gain = normal(rng, case.rows, case.k), rng.uniform(0.5, 1.5, case.k).astype(np.float32)
    bias, residual = normal(rng, case.n), normal(rng, n_out, width)
    samples = [greedy(int(row)) for row in gathered] if case.gather else []
    batch = rig.batch(plain_rows(case.rows), samples, bucket=case.bucket)
    matrix = rig.matrix(weight, dtype)
    given, norm, y = rig.input("x", x), ops.Norm(rig.gain(gain), EPS), rig.output(n_out, width)
    before = rig.input("residual", residual) if case.residual else None
    added = rig.memory.upload("bias", bias) if case.bias else None

    def record(rec: Recorder) -> None:
        ops.matmul(
            rec, batch, "matmul", given, matrix, y.tensor, norm=norm if case.norm else None,
            bias=added, residual=before, activation=case.act, gated=case.gated, gather=case.gather,
        )  # fmt: skip

    rig.run(record)
    rows: Array = x[gathered] if case.gather else x
    rows, gains, biases, before_ = f64(rows, gain, bias, residual)
    stored = unpack(dtype, pack(dtype, weight), case.k).astype(np.float64)
    slack = 1.0
    if rig.quantized_rows is not None:
        rows, case = _int8_rows(rig, dtype, case), replace(case, norm=False)
        slack = _minima_share(dtype, weight)
    if case.norm:
        rows = reference.rms_norm(rows, gains, EPS)
    epilogue = reference.Epilogue(
        activation=case.act,
        gated=case.gated,
        bias=biases if case.bias else None,
        residual=before_ if case.residual else None,
    )
    want = reference.matmul(rows, stored, epilogue)
    bound = slack * _bound(case, rows, stored, biases * case.bias)
    if case.residual:
        bound = bound + 2 * ROUNDING * (np.abs(before_) + np.abs(want))
    rig.compare(f"{dtype}, {case}", y.read(), want, bound)


def _bound(case: MatmulCase, rows: Array, stored: Array, bias: Array) -> Array:
    """Return the error bound of float32 without the residual's."""
    before = rows @ stored.T + bias
    size = np.linalg.norm(rows, axis=1)[:, None] * np.linalg.norm(stored, axis=1)
    bound: Array = 8 * ROUNDING * (size + np.abs(bias))
    if case.norm:
        bound += (8 + np.sqrt(case.k)) * ROUNDING * np.abs(before)
    if case.act is None:
        return bound
    activated = np.abs(reference.ACTIVATIONS[case.act](before))
    own = (16 + 4 * np.abs(before)) * ROUNDING * activated + 4e-7 * np.abs(before)
    bound *= SLOPE
    if not case.gated:
        bound += own
        return bound
    up, up_bound = np.abs(before[:, 1::2]), bound[:, 1::2] / SLOPE
    gated: Array = (bound[:, 0::2] + own[:, 0::2]) * up + up_bound * activated[:, 0::2]
    return gated


def _int8_rows(rig: Rig, dtype: str, case: MatmulCase) -> Array:
    """Return the int8 rows of the last matmul as numbers, (rows, k)."""
    assert rig.quantized_rows is not None
    n = quantized_row_words(case.k)
    words = rig.memory.read(rig.quantized_rows)[: case.rows * n].reshape(case.rows, n)
    q, scales, _ = _int8_parts(words)
    rows: Array = quantised.in_order(q * scales[..., None], case.k, even_odd=EVEN_ODD[dtype])
    return rows


def _int8_parts(words: Array) -> tuple[Array, Array, Array]:
    """Decode rows of gpu/shaders/quantize_activations.wgsl: bytes (n_rows, blocks, 2, 16), scales
    (n_rows, blocks, 2) and sums (n_rows, blocks)."""
    blocks = np.ascontiguousarray(words).reshape(len(words), -1, BLOCK_WORDS)
    q = np.ascontiguousarray(blocks[..., :8]).view(np.int8)
    rest = np.ascontiguousarray(blocks[..., 8:]).view(np.float32).astype(np.float64)
    return q.astype(np.float64).reshape(*q.shape[:2], 2, 16), rest[..., :2], rest[..., 2]


def _minima_share(dtype: str, weight: Array) -> float:
    """Return the norm of q4's weights with codes and minima apart, relative to the weights': an
    int8 matmul sums the two separately."""
    k = weight.shape[1]
    packed = pack(dtype, weight)
    stored = unpack(dtype, packed, k)
    packed[:, : FORMATS[dtype].block_words * -(-k // 32)] = 0
    minima = unpack(dtype, packed, k)
    parts = np.linalg.norm(minima, axis=1) + np.linalg.norm(stored - minima, axis=1)
    return float((parts / np.linalg.norm(stored, axis=1)).max())


def check_quantize_activations(rig: Rig) -> None:
    for k, scale, has_norm in ((1, 1.0, True), (64, 1e4, False), (97, 1.0, False), (500, 30, True)):
        for even_odd in (False, True):
            rng = np.random.default_rng(k)
            x = normal(rng, 6, k) * np.float32(scale)
            x[1, : k // 2] = 0
            gain = rng.uniform(0.5, 1.5, k).astype(np.float32)
            n_words = quantized_row_words(k)
            batch, y = rig.batch(plain_rows(6), bucket=6), rig.output(6, n_words, n_words)
            given, norm = rig.input("x", x), ops.Norm(rig.gain(gain), EPS) if has_norm else None
            rig.run(
                recording(
                    ops.quantize_activations, batch, "int8", given, k, y.tensor, norm=norm,
                    even_odd=even_odd,
                )
            )  # fmt: skip
            got, scales, sums = _int8_parts(y.read().view(np.uint32))
            exact = reference.rms_norm(f64(x), f64(gain), EPS) if has_norm else f64(x)
            want = quantised.halves(exact, even_odd=even_odd)
            right = quantised.scales(want)
            rig.compare(f"scales, {k}", scales, right, (8 + np.sqrt(k)) * ROUNDING * right)
            near = want / np.where(right > 0, right, 1)[..., None]
            rig.compare(f"bytes, {k}", got, near, 0.5 + 127 * 8 * ROUNDING)
            parts = scales * got.sum(-1)
            room = 4 * ROUNDING * np.abs(scales[..., None] * got).sum((-1, -2))
            rig.compare(f"sums, {k}", sums, parts.sum(-1), room)


def check_rms_norm_split(rig: Rig, widths: Sequence[int] = (1, 33, 576)) -> None:
    for k in widths:
        rng = np.random.default_rng(k)
        x, gain = normal(rng, 5, k) * 30, rng.uniform(0.5, 1.5, k).astype(np.float32)
        x[1] = 0
        rows, scales = rig.output(5, k), rig.output(1, 5, 8)
        parts = ops.RmsNormSplit(rows.tensor, replace(scales.tensor, shape=(8,)))
        batch, given = rig.batch(plain_rows(5), bucket=8), rig.input("x", x)
        norm = ops.Norm(rig.gain(gain), EPS)
        rig.run(recording(ops.rms_norm_split, batch, "norm", given, k, norm, parts))
        want, want_scales = reference.rms_norm_split(f64(x), f64(gain), EPS)
        rig.compare(f"rows of {k}", rows.read(), want, ROUNDING * np.abs(want))
        bound = (8 + np.sqrt(k)) * ROUNDING * want_scales
        rig.compare(f"scales of {k}", scales.read()[0], want_scales, bound)


def check_embed(rig: Rig, dtype: str) -> None:
    """Embeddings are copied, so they are exact unless they are scaled."""
    for vocab, k, scale in ((7, 13, 1.0), (29, 520, 1.0), (29, 50, 48**0.5)):
        rng = np.random.default_rng(k)
        table, tokens = normal(rng, vocab, k), [0, vocab - 1, 3, 3, FROM_GPU]
        chosen, slots = rng.integers(0, vocab, 4), rng.integers(0, 4, len(tokens))
        rows = [Row(int(s), 0, t) for s, t in zip(slots, tokens, strict=True)]
        batch, x = rig.batch(rows, bucket=8), rig.output(len(rows), k)
        on_gpu = rig.memory.upload("chosen", chosen.astype(np.uint32))
        matrix = rig.matrix(table, dtype)
        rig.run(recording(ops.embed, batch, "embed", matrix, on_gpu, x.tensor, scale=scale))
        stored = f64(unpack(dtype, pack(dtype, table), k))
        want = scale * reference.embed(stored, np.array(tokens), slots, chosen)
        bound = 0.0 if scale == 1 else 2 * ROUNDING * np.abs(want)
        rig.compare(f"{dtype}, {vocab}x{k}", x.read(), want, bound)


def greedy(row: int, slot: int = 0) -> Sample:
    """Return a greedy sample of a slot after `row`."""
    return Sample(row, slot, 0, 0, 0.0)


CHECKS: dict[str, Callable[[Rig], None]] = {
    **{f"matmul {dtype}": partial(check_matmul, dtype=dtype) for dtype in FORMATS},
    **{
        f"matmul {dtype} with int8 activations": partial(check_q8_activations, dtype=dtype)
        for dtype in ("q8", "q4")
    },
    **{
        f"embed {dtype}": partial(check_embed, dtype=dtype)
        for dtype in sorted({format.vocabulary for format in FORMATS.values()})
    },
    "quantize_activations": check_quantize_activations,
    "rms_norm_split": check_rms_norm_split,
}
