"""Checks of matmul with everything that is fused into it, and of embeddings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from gpu import ops
from gpu.checkpoint.matrix import Matrix
from gpu.checkpoint.packing import FORMATS, pack, row_words, unpack
from gpu.checks.quantize_activations import quantized_numbers
from gpu.checks.rig import ROUNDING, Array, Rig, check_each, f64, greedy, normal, plain_rows
from gpu.reference import ops as reference
from gpu.step import FROM_GPU, Row

EPS = 1e-5
SLOPE = 1.2
"""Steepest slope of any activation."""


@dataclass(frozen=True, slots=True)
class MatmulCase:
    """One matmul. `rows`: of the step; `bucket`: rows of the plan. `n_gathered`: most rows that are
    gathered. `shards`: about how many pieces the weight is cut into. `scale`: of x, `factor`: of y.
    `activation` None: silu where the product is gated."""

    k: int
    n: int
    dtype: str = "f32"
    rows: int = 3
    bucket: int = 4
    norm: bool = False
    bias: bool = False
    residual: bool = False
    gated: bool = False
    gather: bool = False
    n_gathered: int = 5
    shards: int = 1
    scale: float = 1.0
    activation: str | None = None
    factor: float = 1.0
    cap: float | None = None
    seed: int = 0

    @property
    def act(self) -> str | None:
        return self.activation or ("silu" if self.gated else None)

    def __str__(self) -> str:
        flags = [f for f in FLAGS if getattr(self, f)]
        if self.shards > 1:
            flags.append(f"{self.shards}shards")
        if self.scale != 1:
            flags.append(f"×{self.scale:g}")
        flags += [f"{x}" for x in (self.activation, self.factor, self.cap) if x not in (None, 1)]
        return "-".join([f"{self.rows}of{self.bucket}x{self.k}x{self.n}", *flags])


FLAGS = ("norm", "bias", "residual", "gated", "gather")


@dataclass(frozen=True)
class MatmulNumbers:
    """Random numbers of a case. `gathered`: the rows that are multiplied if rows are gathered."""

    x: Array
    weight: Array
    dtype: str
    gain: Array
    bias: Array
    residual: Array
    gathered: Array

    @classmethod
    def of(cls, case: MatmulCase) -> MatmulNumbers:
        rng = np.random.default_rng(case.seed)
        width = case.n // 2 if case.gated else case.n
        n_out = min(case.rows, case.n_gathered) if case.gather else case.rows
        return cls(
            weight=normal(rng, case.n, case.k) / np.float32(np.sqrt(case.k)),
            dtype=case.dtype,
            x=normal(rng, case.rows, case.k) * np.float32(case.scale),
            gain=rng.uniform(0.5, 1.5, case.k).astype(np.float32),
            bias=normal(rng, case.n),
            residual=normal(rng, n_out, width) * 3,
            gathered=rng.permutation(case.rows)[:n_out],
        )

    @cached_property
    def stored(self) -> Array:
        """The weight after packing and unpacking, in double precision."""
        k = self.weight.shape[1]
        return unpack(self.dtype, pack(self.dtype, self.weight), k).astype(np.float64)


def check_matmul(rig: Rig, case: MatmulCase) -> None:
    """Compare a matmul with its twin. Int8 activations are read back and given to the twin: where a
    number lies between two of them, the last bit of a float32 decides which it becomes."""
    numbers = MatmulNumbers.of(case)
    got = run_matmul(rig, case, numbers)
    if rig.quantized_rows is None:
        rig.compare(f"matmul.{case.dtype}", case, got, *expected_matmul(case, numbers))
        return
    x = quantized_numbers(rig, case.dtype, case.rows, case.k)
    want, bound = expected_matmul(replace(case, norm=False), replace(numbers, x=x))
    bound = bound * minima_share(case.dtype, numbers.weight)
    rig.compare(f"matmul.bytes.{case.dtype}", case, got, want, bound)


def run_matmul(rig: Rig, case: MatmulCase, numbers: MatmulNumbers) -> Array:
    """Return the device's result."""
    gathered = numbers.gathered.tolist() if case.gather else []
    batch = rig.batch(plain_rows(case.rows), [greedy(row) for row in gathered], bucket=case.bucket)
    x, y = rig.input("x", numbers.x), rig.output(*numbers.residual.shape)
    rig.run_op(
        ops.matmul, batch, "matmul", x, _matrix(rig, case, numbers.weight), y.tensor,
        norm=ops.Norm(rig.gain(numbers.gain), EPS) if case.norm else None,
        bias=rig.memory.upload("bias", numbers.bias) if case.bias else None,
        residual=rig.input("residual", numbers.residual) if case.residual else None,
        activation=case.act,
        gated=case.gated,
        scale=case.factor,
        cap=case.cap,
        gather=case.gather,
    )  # fmt: skip
    return y.read()


def _matrix(rig: Rig, case: MatmulCase, weight: Array) -> Matrix:
    """Upload a weight; gate and up are tensors of their own."""
    row_bytes = 4 * row_words(case.dtype, case.k)
    limit = -(-case.n // case.shards) * row_bytes if case.shards > 1 else None
    if case.gated:
        loader = rig.loader({"gate": weight[0::2], "up": weight[1::2]}, case.dtype, limit)
        matrix = loader.gate_up("weight", "gate", "up", case.n // 2, case.k)
    else:
        matrix = rig.matrix(weight, case.dtype, limit)
    rig.expect("the weight is cut into shards", len(matrix.shards) >= case.shards)
    return matrix


def expected_matmul(case: MatmulCase, numbers: MatmulNumbers) -> tuple[Array, Array]:
    """Return the float64 result and the error bound of float32.

    A float32 dot product of random signs is off by about ROUNDING · ‖a‖ · ‖b‖; eight times that
    leaves room for the unlucky element of thousands. Products in float16, a lost chunk or a wrong
    mean are off by hundreds of times that.
    """
    x = numbers.x[numbers.gathered] if case.gather else numbers.x
    x, gain, bias, residual = f64(x, numbers.gain, numbers.bias, numbers.residual)
    epilogue = reference.Epilogue(
        activation=case.act,
        gated=case.gated,
        scale=case.factor,
        cap=case.cap,
        bias=bias if case.bias else None,
        residual=residual if case.residual else None,
    )
    if case.norm:
        x = reference.rms_norm(x, gain, EPS)
    before = x @ numbers.stored.T + bias * case.bias
    size = np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(numbers.stored, axis=1)
    bound = 8 * ROUNDING * (size + np.abs(bias) * case.bias)
    if case.norm:
        bound += (8 + np.sqrt(case.k)) * ROUNDING * np.abs(before)
    bound = activated_bound(case.act, before, bound, gated=case.gated)
    want = reference.matmul(x, numbers.stored, epilogue)
    if case.cap:
        bound = bound + 8 * ROUNDING * case.cap
    bound = case.factor * bound + ROUNDING * np.abs(want) * (case.factor != 1.0)
    if case.residual:
        bound = bound + 2 * ROUNDING * (np.abs(residual) + np.abs(want))
    return want, bound


def activated_bound(act: str | None, before: Array, bound: Array, *, gated: bool) -> Array:
    """Return the bound after an activation of `before`, which has the bound `bound`."""
    if act is None:
        return bound
    x, x_bound = (before[:, 0::2], bound[:, 0::2]) if gated else (before, bound)
    activated = np.abs(reference.ACTIVATIONS[act](x))
    own = (16 + 4 * np.abs(x)) * ROUNDING * activated + _approximation(act, x, activated)
    of_act: Array = SLOPE * x_bound + own
    if not gated:
        return of_act
    of_product: Array = of_act * np.abs(before[:, 1::2]) + bound[:, 1::2] * activated
    return of_product


def _approximation(act: str, x: Array, activated: Array) -> Array:
    """Return the bound of the error of GELU's polynomial: 1.5e-7 and its own rounding.
    The tanh form takes its argument's rounding into an exponential."""
    if act == "gelu":
        return np.abs(x) * 2e-7
    if act == "gelu_tanh":
        bound: Array = activated * 8 * ROUNDING * (np.abs(x) + np.abs(x) ** 3)
        return bound
    return np.zeros_like(x)


def minima_share(dtype: str, weight: Array) -> float:
    """Return the norm of q4's weights with codes and minima apart, relative to the weights': an
    int8 matmul sums the two separately."""
    k = weight.shape[1]
    packed = pack(dtype, weight)
    stored = unpack(dtype, packed, k)
    packed[:, : FORMATS[dtype].block_words * -(-k // 32)] = 0
    minima = unpack(dtype, packed, k)
    parts = np.linalg.norm(minima, axis=1) + np.linalg.norm(stored - minima, axis=1)
    return float((parts / np.linalg.norm(stored, axis=1)).max())


def with_q8_activations(rig: Rig) -> Rig:
    """Return a rig whose matmuls take int8 activations, as with `--activations q8`."""
    tuning = replace(rig.device.tuning, q8_activations=True)
    return rig.on(replace(rig.device, tuning=tuning))


# ---- embed -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EmbedCase:
    """An embedding (vocab, k) of `tokens`; see `MatmulCase`."""

    vocab: int
    k: int
    tokens: tuple[int, ...]
    dtype: str = "f32"
    shards: int = 1
    bucket: int = 8
    scale: float = 1.0


def check_embed(rig: Rig, case: EmbedCase) -> None:
    """Compare embeddings with the table. They are copied, so exact unless they are scaled."""
    vocab, k, dtype, n_slots = case.vocab, case.k, case.dtype, 4
    rng = np.random.default_rng(vocab + k)
    table, chosen = normal(rng, vocab, k), rng.integers(0, vocab, n_slots)
    limit = -(-vocab // case.shards) * 4 * row_words(dtype, k) if case.shards > 1 else None
    matrix = rig.matrix(table, dtype, limit)
    rig.expect("the table is cut into shards", len(matrix.shards) >= case.shards)
    slots = rng.integers(0, n_slots, len(case.tokens))
    rows = [Row(int(s), 0, t) for s, t in zip(slots, case.tokens, strict=True)]
    batch, x = rig.batch(rows, bucket=case.bucket), rig.output(len(rows), k)
    on_gpu = rig.memory.upload("chosen", chosen.astype(np.uint32))
    rig.run_op(ops.embed, batch, "embed", matrix, on_gpu, x.tensor, scale=case.scale)
    stored = f64(unpack(dtype, pack(dtype, table), k))
    want = case.scale * reference.embed(stored, np.array(case.tokens), slots, chosen)
    bound = 0.0 if case.scale == 1 else 2 * ROUNDING * np.abs(want)
    rig.compare(f"embed.{dtype}", case, x.read(), want, bound)


# ---- of a report -----------------------------------------------------------------------------

MATMULS = (
    MatmulCase(1, 1, rows=1, bucket=1),
    MatmulCase(33, 15, rows=1, bucket=1, norm=True),
    MatmulCase(74, 37, residual=True),
    MatmulCase(500, 17, rows=5, bucket=8, norm=True, bias=True),
    MatmulCase(64, 258, rows=1, bucket=1, norm=True, gated=True, bias=True),
    MatmulCase(97, 66, rows=13, bucket=16, norm=True, gated=True),
    MatmulCase(70, 66, rows=4, bias=True, activation="gelu_tanh"),
    MatmulCase(70, 66, rows=4, bias=True, activation="gelu"),
    MatmulCase(40, 36, rows=7, bucket=8, norm=True, gather=True),
    MatmulCase(300, 270, rows=101, bucket=128, norm=True, residual=True),
)
Q8_MATMULS = (
    MatmulCase(33, 34, rows=1, bucket=1),
    MatmulCase(251, 127, rows=5, bucket=8, norm=True),
    MatmulCase(70, 66, rows=60, bucket=64, bias=True, residual=True),
)
EMBEDS = tuple(
    EmbedCase(vocab, k, (0, vocab - 1, 3, 3, FROM_GPU), scale=scale)
    for vocab, k, scale in ((7, 13, 1.0), (29, 520, 1.0), (29, 50, 48**0.5))
)


def check_matmuls(rig: Rig, dtype: str) -> None:
    """Check `MATMULS`, and one of nearly as many rows as the device takes."""
    most = rig.memory.max_rows
    widest = MatmulCase(70, 1100, rows=most - 3, bucket=most, norm=True, residual=True)
    for case in (*MATMULS, widest):
        check_matmul(rig, replace(case, dtype=dtype))


def check_q8_matmul(rig: Rig, case: MatmulCase) -> None:
    """Check a matmul of int8 activations, as `--activations q8` does it."""
    check_matmul(with_q8_activations(rig), case)


CHECKS: dict[str, Callable[[Rig], None]] = {
    **{f"matmul {dtype}": partial(check_matmuls, dtype=dtype) for dtype in FORMATS},
    **{
        f"matmul {dtype} with int8 activations": check_each(
            check_q8_matmul, *(replace(case, dtype=dtype) for case in Q8_MATMULS)
        )
        for dtype in ("q8", "q4")
    },
    **{
        f"embed {dtype}": check_each(check_embed, *(replace(case, dtype=dtype) for case in EMBEDS))
        for dtype in sorted({format.vocabulary for format in FORMATS.values()})
    },
}
