"""Report of a benchmark, as a table and as one JSON object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu.bench.contestants import Contestant, Figures, RunnerContestant, speedup
from gpu.bench.context import ContextResult, lines
from gpu.bench.work import kv_bytes, prefill_flops, weight_bytes
from gpu.info import DeviceInfo
from gpu.reference.divergence import Divergence
from gpu.runners.wgpu_runner import WgpuRunner
from gpu.webgpu.peaks import PEAK_FAULT, how_measured, measure_peaks, plausible

NOT_PEERS = ("tokenglass", "captured", "floor")


@dataclass(slots=True)
class Report:
    """Measurements of `own` and `others`.

    missing       requested peers that cannot run, with the reason
    peer_devices  the device that each peer reports
    """

    model: str
    dtype: str
    kv_dtype: str
    n_prompt: int
    n_tokens: int
    own: RunnerContestant
    others: Sequence[Contestant]
    peer_devices: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    contexts: list[ContextResult] = field(default_factory=list)
    quality: Divergence | None = None

    @property
    def runner(self) -> WgpuRunner:
        assert isinstance(self.own.runner, WgpuRunner)
        return self.own.runner

    def as_json(self) -> dict[str, Any]:
        figures, runner = self.own.figures, self.runner
        peers = [c for c in self.others if c.name not in NOT_PEERS]
        return {
            "model": self.model,
            "dtype": self.dtype,
            "kv_dtype": self.kv_dtype,
            "device": device_name(runner.device),
            "prompt": self.n_prompt,
            "tokens": self.n_tokens,
            "prefill_tok_s": _rounded(figures.median("prefill_tok_s"), 1),
            "decode_tok_s": _rounded(figures.median("decode_tok_s"), 2),
            "prefill_over_floor": self._over_floor("prefill_tok_s"),
            "decode_over_floor": self._over_floor("decode_tok_s"),
            **step_times(figures, runner, self.n_prompt + self.n_tokens // 2),
            **self._beside_peaks(),
            "contestants": {c.name: _speeds(c) for c in (self.own, *self.others)},
            "peers": self._ratios(peers)["decode"],
            "peers_prefill": self._ratios(peers)["prefill"],
            "peer_devices": self.peer_devices,
            "peers_missing": self.missing,
            "contexts": [at.as_json() for at in self.contexts],
            "kl": self.quality and self.quality.kl,
            "same_top": self.quality and self.quality.same_top,
        }

    def lines(self, result: dict[str, Any]) -> list[str]:
        """Return `result` of `as_json` as lines of text."""
        rows = [
            f"{result['device']}",
            f"{self.model}, {self.dtype}, KV cache {self.kv_dtype}, prompt {self.n_prompt}, "
            f"{self.n_tokens} tokens",
            "",
            f"{'':16}{'prefill tok/s':>14}{'decode tok/s':>14}",
        ]
        for c in (self.own, *self.others):
            prefill, decode = c.figures.median("prefill_tok_s"), c.figures.median("decode_tok_s")
            rows.append(
                f"{c.name:16}{_known(prefill):14.1f}{_known(decode):14.2f}"
                f"  {self.peer_devices.get(c.name, '')}".rstrip()
            )
        rows += [f"{name}: {reason}" for name, reason in self.missing.items()]
        rows += ["", *_step_lines(result)]
        if self.contexts:
            rows += ["", *lines(self.contexts)]
        if self.quality:
            rows += ["", f"against f32, on generated text: {self.quality}"]
        return rows

    def _beside_peaks(self) -> dict[str, Any]:
        """Return decoded bytes and prefill operations relative to the device's peaks."""
        runner, figures = self.runner, self.own.figures
        peaks = measure_peaks(runner.gpu)
        n_bytes = weight_bytes(runner) + kv_bytes(runner, self.n_prompt + self.n_tokens // 2)
        bytes_per_s = n_bytes * _known(figures.median("decode_tok_s"))
        flops = prefill_flops(runner, self.n_prompt)
        flops_per_s = flops / self.n_prompt * _known(figures.median("prefill_tok_s"))
        return {
            "bytes_per_token": n_bytes,
            "memory_gb_s": round(peaks.bytes_per_s / 1e9, 2),
            "memory_read_bytes": peaks.read_bytes,
            "bandwidth_share": _rounded(plausible(bytes_per_s / peaks.bytes_per_s), 3),
            "fma_gflop_s": round(peaks.flops_per_s / 1e9, 1),
            "prefill_fma_share": _rounded(plausible(flops_per_s / peaks.flops_per_s), 3),
        }

    def _over_floor(self, name: str) -> float | None:
        """Return the time relative to the floor's."""
        floors = [c for c in self.others if c.name == "floor"]
        if not floors:
            return None
        return round(speedup(floors[0].figures, self.own.figures, name), 3)

    def _ratios(self, others: Sequence[Contestant]) -> dict[str, dict[str, float]]:
        """Return our speed over each peer's, by name."""
        return {
            kind: {
                c.name: round(speedup(self.own.figures, c.figures, f"{kind}_tok_s"), 2)
                for c in others
            }
            for kind in ("decode", "prefill")
        }


def device_name(info: DeviceInfo) -> str:
    return f"{info.name}, {info.driver}, {info.backend}"


def step_times(figures: Figures, runner: WgpuRunner, context: int) -> dict[str, Any]:
    """Return the times of a decode step after `context` tokens, with the dispatches of its plan.

    Host time per dispatch is `host_us_per_dispatch` in Python (the step's buffer, then one call per
    command) and `host_finish_us_per_dispatch` in the native call that ends the command buffer. The
    submission counts in `wait_ms`, because some drivers block there until the device takes it.
    """
    dispatches = runner.plan_for(1, 1, capture=False, context=context).plan.dispatches
    n = len(dispatches)
    encode_ms, finish_ms = (_known(figures.median(name)) for name in ("encode_ms", "finish_ms"))
    return {
        "step_ms": round(1e3 / _known(figures.median("decode_tok_s")), 3),
        "encode_ms": round(encode_ms, 3),
        "host_us_per_dispatch": round((encode_ms - finish_ms) * 1e3 / n, 2),
        "host_finish_us_per_dispatch": round(finish_ms * 1e3 / n, 2),
        "gpu_ms": _rounded(figures.median("gpu_ms"), 3),
        "gpu_gap_share": _rounded(figures.median("gpu_gap_share"), 4),
        "wait_ms": _rounded(figures.median("wait_ms"), 3),
        "submit_ms": _rounded(figures.median("submit_ms"), 3),
        "readback_ms": _rounded(figures.median("read_ms"), 3),
        "dispatches_per_token": n,
        "dispatches_per_layer": sum(d.label.startswith("layer00.") for d in dispatches),
    }


def _step_lines(result: dict[str, Any]) -> list[str]:
    rows = [
        f"decode step {result['step_ms']} ms: encoding {result['encode_ms']} ms (a dispatch "
        f"{result['host_us_per_dispatch']} µs in Python, {result['host_finish_us_per_dispatch']} µs"
        f" in the native finish), GPU {result['gpu_ms']} ms, blocked on the GPU "
        f"{result['wait_ms']} ms ({result['submit_ms']} ms of them in the submission), readback "
        f"{result['readback_ms']} ms",
        f"{result['dispatches_per_token']} dispatches per token "
        f"({result['dispatches_per_layer']} a layer), {result['bytes_per_token'] / 1e6:.1f} MB "
        f"per token at {_share(result['bandwidth_share'])} the {result['memory_gb_s']} GB/s that "
        f"{how_measured(result['memory_read_bytes'])} reaches",
        f"prefill at {_share(result['prefill_fma_share'])} the {result['fma_gflop_s']} GFLOP/s "
        "that float32 multiply-adds in registers reach",
    ]
    if result["gpu_gap_share"] is not None:
        rows.append(f"between steps the GPU idles {result['gpu_gap_share']:.1%} of the time")
    if result["decode_over_floor"] is not None:
        rows.append(
            f"decode takes {result['decode_over_floor']} times its floor, prefill "
            f"{result['prefill_over_floor']} times"
        )
    return rows


def _share(share: float | None) -> str:
    """Return "40% of", or what is wrong if a share cannot be."""
    return f"more ({PEAK_FAULT}) than" if share is None else f"{share:.0%} of"


def _speeds(contestant: Contestant) -> dict[str, float]:
    names = ("prefill_tok_s", "decode_tok_s")
    return {name: round(_known(contestant.figures.median(name)), 2) for name in names}


def _known(value: float | None) -> float:
    assert value is not None, "every repetition notes this figure"
    return value


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
