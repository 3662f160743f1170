"""Mixtures of experts (Shazeer et al. 2017; Fedus et al. 2022): which layers have one, and what
config.json says of it."""

from __future__ import annotations

from dataclasses import dataclass

from gpu.config.readers import Sizes
from gpu.json_object import JsonObject

MAX_EXPERTS = 1024
MAX_PER_TOKEN = 32
MAX_WIDTH = 2**20


@dataclass(frozen=True, slots=True)
class Experts:
    """The MLPs of a layer of which each token is given to a few.

    n             experts of a layer
    per_token     how many of them a token is given to
    width         intermediate size of each
    normalised    the weights of those chosen are divided by their sum. Weights are a softmax over
                  all experts, so this is the softmax over those chosen alone, the other order of
                  the two in which papers write it (Jiang et al. 2024)
    shared_width  intermediate size of an MLP that every token is given to besides, weighed by a
                  gate of its own; 0: there is none
    dense_layers  layers that have one MLP of the model's intermediate size instead
    """

    n: int
    per_token: int
    width: int
    normalised: bool
    shared_width: int = 0
    dense_layers: tuple[int, ...] = ()


def read_experts(
    config: JsonObject,
    *,
    n: int,
    per_token: int,
    width: str,
    default_width: int | None = None,
    normalised: bool | None = None,
    shared_width: int = 0,
) -> Experts:
    """`n`, `per_token`, `default_width`, `shared_width`: what holds where the file does not say;
    `width`: its key for the size of an expert; `normalised`: None where the file says it. The
    number of experts has two spellings, of which transformers writes now one, now the other."""
    key = "num_local_experts" if "num_local_experts" in config else "num_experts"
    n_experts = config.integer(key, 1, MAX_EXPERTS, n)
    return Experts(
        n=n_experts,
        per_token=config.integer(
            "num_experts_per_tok", 1, min(n_experts, MAX_PER_TOKEN), per_token
        ),
        width=config.integer(width, 1, MAX_WIDTH, default_width),
        normalised=config.boolean("norm_topk_prob", False) if normalised is None else normalised,
        shared_width=shared_width,
    )


def read_dense_layers(config: JsonObject, sizes: Sizes) -> tuple[int, ...]:
    """Those in `mlp_only_layers`, and all but every `decoder_sparse_step`-th."""
    interval = config.integer("decoder_sparse_step", 1, 1024, 1)
    named = config.get("mlp_only_layers") or []
    layers = range(sizes.n_layers)
    if not isinstance(named, list) or any(type(i) is not int or i not in layers for i in named):
        raise config.error("mlp_only_layers", f"a list of layers from 0 to {sizes.n_layers - 1}")
    return tuple(i for i in layers if i in named or (i + 1) % interval)
