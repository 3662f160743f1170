"""`python -m gpu.bench.model.candidates`: predicted time of a token with each candidate of the
matmul tiles that autotuning may choose on a GPU, relative to the default.

The defaults of `gpu.webgpu.device_policy` follow this table until a device has been measured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace

from gpu.bench.model.predict import StepPrediction, predict
from gpu.bench.model.shape_plans import open_as_gpu
from gpu.bench.model.shape_prediction import trace_token
from gpu.bench.model.specs import SPECS
from gpu.webgpu.device import Device
from gpu.webgpu.tiling import Tuning, candidates

CASES = (("smol135", "f16"), ("llama1b", "f16"), ("llama8b", "q4"))
CONTEXT = 512

Times = dict[tuple[str, str, str], float]
"""Microseconds of a token by shape, dtype and GPU."""


def token_times(device: Device) -> Iterator[tuple[Tuning, Times]]:
    """Yield every candidate and the predicted times with it, the default first."""
    waves = sorted({spec.wave for spec in SPECS.values()})
    for tuning in candidates(device.tuning):
        tuned = replace(device, tuning=tuning)
        times: Times = {}
        for shape, dtype in CASES:
            for wave in waves:
                work = trace_token(tuned, shape, dtype, CONTEXT, wave)
                for name, spec in SPECS.items():
                    if spec.wave == wave:
                        step = StepPrediction([(predict(w, spec), n) for w, n in work])
                        times[shape, dtype, name] = step.us
        yield tuning, times


def lines(found: Mapping[Tuning, Times]) -> Iterator[str]:
    """Yield a Markdown table for each GPU: the candidates, the fastest first."""
    default, usual = next(iter(found.items()))
    for name, spec in SPECS.items():
        yield f"\n{spec.name}\n"
        yield "| tiles | " + " | ".join(f"{shape} {dtype}" for shape, dtype in CASES) + " |"
        yield "| --- |" + " ---: |" * len(CASES)
        ratios = {
            tuning: [times[*case, name] / usual[*case, name] for case in CASES]
            for tuning, times in found.items()
        }
        for tuning in sorted(ratios, key=lambda tuning: sum(ratios[tuning])):
            text = f"**{tuning}**" if tuning == default else str(tuning)
            yield f"| {text} | " + " | ".join(f"{r:.3f}" for r in ratios[tuning]) + " |"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gpu.bench.model.candidates")
    parser.add_argument("--adapter", help="runs the kernels; see `tokenglass devices`")
    args = parser.parse_args(argv)
    device = open_as_gpu(args.adapter)
    found: dict[Tuning, Times] = {}
    try:
        for tuning, times in token_times(device):
            found[tuning] = times
            print(f"{len(found)} {tuning}", file=sys.stderr)
    finally:
        device.close()
    print("\n".join(lines(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
