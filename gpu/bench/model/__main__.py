"""`python -m gpu.bench.model`: predict the speed of a shape on a described GPU."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from gpu.bench.model import __doc__ as purpose
from gpu.bench.model.predict import StepPrediction
from gpu.bench.model.shape_plans import SHAPES, open_as_gpu
from gpu.bench.model.shape_prediction import ShapePrediction, trace_shape
from gpu.bench.model.specs import SPECS
from gpu.checkpoint.packing import FORMATS
from gpu.errors import EngineError


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    spec = SPECS[args.device]
    try:
        q8 = args.activations == "q8"
        device = open_as_gpu(args.adapter, discrete=spec.discrete, q8_activations=q8)
        work = trace_shape(
            device, args.shape, args.dtype, args.context, args.prompt, spec.wave, args.streams
        )
    except EngineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("\n".join(lines(ShapePrediction.of(work, spec))))
    return 0


def lines(found: ShapePrediction) -> Iterator[str]:
    """Yield a prediction as text."""
    work, spec = found.work, found.spec
    kind = work.dtype if work.activations == "f32" else f"{work.dtype} × {work.activations}"
    yield f"{work.shape}, {kind}, on {spec.name}: predicted, not measured"
    yield ""
    yield f"A token after {work.context} others"
    yield from _table(found.token)
    yield (
        f"{found.token.us / 1e3:.2f} ms, {found.decode_tok_s:.0f} tok/s, "
        f"{found.bandwidth_share:.0%} of the bandwidth of memory"
    )
    if work.n_streams > 1:
        yield ""
        yield f"A token of each of {work.n_streams} streams after {work.context} others"
        yield from _table(found.streams)
        yield (
            f"{found.streams.us / 1e3:.2f} ms, {found.streams_tok_s:.0f} tok/s together, "
            f"{found.streams_gain:.1f} × one stream"
        )
    yield ""
    yield f"The last step of a prompt of {work.n_prompt} tokens"
    yield from _table(found.prompt[-1])
    yield (
        f"the whole prompt: {found.prompt_us / 1e3:.1f} ms, {found.prefill_tok_s:.0f} tok/s, "
        f"{found.f32_share:.0%} of the float32 peak"
    )


def _table(step: StepPrediction) -> Iterator[str]:
    yield f"{'':28}{'times':>6}{'workgroups':>12}{'µs each':>9}{'µs':>9}  limit"
    for label, shards in step.by_label().items():
        first, times = shards[0]
        us = StepPrediction(shards).us
        groups = sum(prediction.work.n_workgroups for prediction, _ in shards)
        limit = "launch" if first.launch > us / times / 2 else first.limit
        label = label.replace("layer00.", "layer.")
        yield f"{label:28}{times:6}{groups:12,}{us / times:9.1f}{us:9.1f}  {limit}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m gpu.bench.model", description=(purpose or "").split("\n")[0]
    )
    parser.add_argument("--shape", choices=SHAPES, default="llama8b")
    parser.add_argument("--dtype", choices=tuple(FORMATS), default="q4")
    parser.add_argument(
        "--activations",
        choices=("f32", "q8"),
        default="f32",
        help="input rows of q8 and q4 matmuls",
    )
    parser.add_argument("--device", choices=SPECS, default="rtx4090", help="the GPU to predict")
    parser.add_argument("--context", type=int, default=512, help="tokens before the one decoded")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prompt")
    parser.add_argument(
        "--streams", type=int, default=1, metavar="N", help="also predict N streams together"
    )
    parser.add_argument("--adapter", help="where the kernels run, see `tokenglass devices`")
    return parser


if __name__ == "__main__":
    sys.exit(main())
