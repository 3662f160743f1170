"""Mixtures of experts (Shazeer et al. 2017; Fedus et al. 2022), as config.json describes them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpu.architectures.common.readers import Sizes
from gpu.files.json_object import JsonObject

MAX_EXPERTS = 1024
MAX_EXPERTS_PER_TOKEN = 32
MAX_WIDTH = 2**20


@dataclass(frozen=True, slots=True)
class MoeConfig:
    """A mixture of experts.

    n_experts          experts of a layer
    experts_per_token  experts that each token uses
    intermediate_size  of one expert
    norm_topk_prob     the gates of the chosen experts are divided by their sum. Gates are a softmax
                       over all experts, so the result is a softmax over the chosen ones alone, as
                       Jiang et al. 2024 write it
    shared_intermediate_size
                       intermediate size of the shared expert, which every token uses and which has
                       a gate of its own; 0: there is none
    dense_layers       layers that have one MLP of the model's intermediate size instead
    """

    n_experts: int
    experts_per_token: int
    intermediate_size: int
    norm_topk_prob: bool
    shared_intermediate_size: int = 0
    dense_layers: tuple[int, ...] = ()


def read_moe(
    config: JsonObject,
    *,
    n: int,
    experts_per_token: int,
    size_key: str,
    default_size: int | None = None,
    norm_topk_prob: bool | None = None,
    shared_intermediate_size: int = 0,
) -> MoeConfig:
    """Read a mixture. `n`, `experts_per_token`, `default_size`: defaults; `size_key`: the key of an
    expert's size; `norm_topk_prob`: None if the file says it. The number of experts has two
    spellings, as transformers writes both."""
    key = "num_local_experts" if "num_local_experts" in config else "num_experts"
    found = config.integer(key, 1, MAX_EXPERTS, n)
    return MoeConfig(
        n_experts=found,
        experts_per_token=config.integer(
            "num_experts_per_tok", 1, min(found, MAX_EXPERTS_PER_TOKEN), experts_per_token
        ),
        intermediate_size=config.integer(size_key, 1, MAX_WIDTH, default_size),
        norm_topk_prob=config.boolean("norm_topk_prob", False)
        if norm_topk_prob is None
        else norm_topk_prob,
        shared_intermediate_size=shared_intermediate_size,
    )


def read_qwen_moe(
    config: JsonObject,
    sizes: Sizes,
    *,
    n: int,
    experts_per_token: int,
    default_size: int,
    shared_intermediate_size: int = 0,
) -> MoeConfig | None:
    """Read Qwen's mixtures; None if every layer is dense."""
    found = read_moe(
        config,
        n=n,
        experts_per_token=experts_per_token,
        size_key="moe_intermediate_size",
        default_size=default_size,
        shared_intermediate_size=shared_intermediate_size,
    )
    dense = read_dense_layers(config, sizes)
    return None if len(dense) == sizes.n_layers else replace(found, dense_layers=dense)


def read_dense_layers(config: JsonObject, sizes: Sizes) -> tuple[int, ...]:
    """Return the layers in `mlp_only_layers` and all but every `decoder_sparse_step`-th."""
    interval = config.integer("decoder_sparse_step", 1, 1024, 1)
    named = config.get("mlp_only_layers") or []
    layers = range(sizes.n_layers)
    if not isinstance(named, list) or any(type(i) is not int or i not in layers for i in named):
        raise config.error("mlp_only_layers", f"a list of layers from 0 to {sizes.n_layers - 1}")
    return tuple(i for i in layers if i in named or (i + 1) % interval)
