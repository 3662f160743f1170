"""What is running, for people."""

from __future__ import annotations

import msgspec

from gpu.kv.blocks import bytes_by_format
from gpu.runner import DeviceInfo, LoraInfo, Memory, Runner, RunnerLimits
from gpu.sampling import SamplingParams


class EngineInfo(msgspec.Struct, frozen=True):
    """`parameters`: weights, tied ones once. `defaults`: the sampling
    settings the model's makers recommend. `dispatches_per_token`: of a decode step. `eos_ids`: the
    tokens that end a text. `kv_dtype`: how keys and values are stored, of `kv_formats`, which are
    the bytes of a KV block of this model in every format. `loras`: the adapters that are
    loaded. `n_experts`: of each layer that has some. `conversion`: of a file with quantised
    weights, what its types are stored as, such as "Q4_K, Q6_K converted to q4". `products`: what
    products with q8 and q4 weights are given, "float" or "bytes"."""

    name: str
    dtype: str
    kv_dtype: str
    kv_formats: dict[str, int]
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    hidden_size: int
    vocab_size: int
    parameters: int
    device: DeviceInfo
    limits: RunnerLimits
    memory: Memory
    queue: int
    in_flight: int
    dispatches_per_token: int
    defaults: SamplingParams
    eos_ids: tuple[int, ...]
    loras: tuple[LoraInfo, ...] = ()
    n_experts: int = 0
    conversion: str = ""
    products: str = "float"


def describe(
    runner: Runner,
    *,
    name: str,
    dtype: str,
    kv_dtype: str,
    parameters: int,
    defaults: SamplingParams,
    queue: int,
    eos_ids: tuple[int, ...],
) -> EngineInfo:
    """Of what `runner` runs; the rest it does not know."""
    config = runner.config
    return EngineInfo(
        name=name,
        dtype=dtype,
        kv_dtype=kv_dtype,
        kv_formats=bytes_by_format(config),
        n_layers=config.n_layers,
        n_heads=config.n_heads,
        n_kv_heads=config.n_kv_heads,
        n_experts=config.experts.n if config.experts else 0,
        products=runner.products,
        head_dim=config.head_dim,
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        parameters=parameters,
        device=runner.device,
        limits=runner.limits,
        memory=runner.memory,
        queue=queue,
        in_flight=runner.in_flight,
        dispatches_per_token=runner.dispatches_per_token,
        defaults=defaults,
        eos_ids=eos_ids,
        loras=runner.loras,
        conversion=runner.conversion,
    )
