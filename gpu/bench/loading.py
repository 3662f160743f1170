"""`python -m gpu.bench.loading`: time of loading weights, next to one plain read of their file.

A checkpoint of random bfloat16 weights in the shape of a known model is written to a temporary
folder and loaded repeatedly from the page cache: opened, checked, converted or quantised, uploaded,
and waited for. Interleaved with that, the file's bytes are read into memory, the least that any
loader does. The device is already open and no plan is recorded. Quantised weights are also loaded
from the weight cache, as "q4 kept" (`gpu.checkpoint.weight_cache`). Reported is the least of
several repetitions, of seconds and of processor time (of all threads, including those of a software
device).
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpu.bench.arguments import count
from gpu.checkpoint.packing import FORMATS
from gpu.checkpoint.random_checkpoint import LLAMA_SHAPES, RandomCheckpoint
from gpu.checkpoint.reader import Checkpoint
from gpu.checkpoint.safetensors_files import WEIGHTS
from gpu.checkpoint.weight_cache import is_cacheable, open_weight_cache
from gpu.checkpoint.weights import WeightLoader
from gpu.checkpoint.writer import TensorToWrite, write_safetensors
from gpu.config import ModelConfig
from gpu.models.registry import MODELS
from gpu.webgpu.buffers import Memory
from gpu.webgpu.device import Device

CONTEXT = 2048
KEEP_BYTES = 1 << 40


@dataclass(frozen=True, slots=True)
class Elapsed:
    """Seconds by the clock (`wall`) and of processor time (`cpu`)."""

    wall: float
    cpu: float


def write_random(config: ModelConfig, folder: Path) -> int:
    """Write a model.safetensors of bfloat16 weights; return its size in bytes."""
    source = RandomCheckpoint(config)

    def entry(name: str) -> TensorToWrite:
        bits = source.read_f32(name).view(np.uint32)
        halves = ((bits + np.uint32(0x8000)) >> np.uint32(16)).astype(np.uint16)
        return TensorToWrite(name, "BF16", source.shape(name), [halves.reshape(-1).view(np.uint8)])

    path = folder / WEIGHTS
    write_safetensors(path, [entry(name) for name in source.names()])
    return path.stat().st_size


def load(device: Device, config: ModelConfig, folder: Path, dtype: str, keep_bytes: int) -> None:
    """Load the weights in `folder` as `dtype`, and wait until they are on the device."""
    memory, checkpoint = Memory(device), Checkpoint.open(folder)
    with open_weight_cache(checkpoint, config, dtype, keep_bytes) as weight_cache:
        with WeightLoader(checkpoint, memory, dtype, weight_cache=weight_cache) as load:
            model = MODELS[config.model_type](config, load, memory, CONTEXT)
        memory.read(model.norm.gain)


def measure_seconds(what: Callable[[], object]) -> Elapsed:
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    what()
    return Elapsed(time.perf_counter() - wall, time.process_time() - cpu)


def measure(shape: str, dtypes: list[str], adapter: str | None, repeat: int) -> dict[str, Any]:
    """Return the least times of everything measured, interleaved."""
    config, device = LLAMA_SHAPES[shape], Device.open(adapter)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["TOKENGLASS_CACHE"] = str(folder / "cache")
        n_bytes = write_random(config, folder)
        what: dict[str, Callable[[], object]] = {"read": (folder / WEIGHTS).read_bytes}
        for dtype in dtypes:
            what[dtype] = functools.partial(load, device, config, folder, dtype, 0)
            if is_cacheable(dtype):
                again = functools.partial(load, device, config, folder, dtype, KEEP_BYTES)
                again()
                what[f"{dtype} kept"] = again
        times: dict[str, list[Elapsed]] = {key: [] for key in what}
        for _ in range(repeat):
            for key, do in what.items():
                times[key].append(measure_seconds(do))
    least = {
        key: Elapsed(min(t.wall for t in all), min(t.cpu for t in all))
        for key, all in times.items()
    }
    return {
        "shape": shape,
        "bytes": n_bytes,
        "device": device.info.name,
        "cores": os.cpu_count(),
        **{key: asdict(value) for key, value in least.items()},
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m gpu.bench.loading", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--shape", choices=LLAMA_SHAPES, default="smol135")
    parser.add_argument("--dtype", action="append", choices=tuple(FORMATS), help="default: all")
    parser.add_argument("--adapter", help="index or part of its name, see `tokenglass devices`")
    parser.add_argument("--repeat", type=count, default=5)
    args = parser.parse_args(argv)
    dtypes = args.dtype or list(FORMATS)
    found = measure(args.shape, dtypes, args.adapter, args.repeat)
    read = found["read"]
    for key, times in found.items():
        if not isinstance(times, dict):
            continue
        ratios = (times[kind] / read[kind] for kind in ("wall", "cpu"))
        print(
            f"{key:8} {1e3 * times['wall']:8.0f} ms {1e3 * times['cpu']:8.0f} ms of processors "
            "(× read: {:.2f}, {:.2f})".format(*ratios)
        )
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
