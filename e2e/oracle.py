"""Reference for the page's numbers: the bundled model in `transformers`, in double precision."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import LlamaForCausalLM

from app import tale

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Layer:
    """One layer at the last token of a text.

    residual   norm of the residual stream after the layer
    attention  norm of the output of attention
    mlp        norm of the output of the MLP
    entropy    mean entropy of the heads' attention, in bits
    """

    residual: float
    attention: float
    mlp: float
    entropy: float


@functools.cache
def model() -> LlamaForCausalLM:
    options: dict[str, Any] = {"dtype": torch.float64, "attn_implementation": "eager"}
    loaded: LlamaForCausalLM = LlamaForCausalLM.from_pretrained(tale.model_dir(), **options)
    return loaded.eval()


def logits(ids: Sequence[int]) -> Doubles:
    """Return the logits (len(ids), vocab_size) after every token."""
    with torch.inference_mode():
        return np.asarray(model()(torch.tensor([list(ids)])).logits[0].numpy())


def layers(ids: Sequence[int]) -> list[Layer]:
    """Return every layer at the last of `ids`."""
    norms: dict[str, list[float]] = {"residual": [], "attention": [], "mlp": []}

    def keep(name: str) -> Callable[..., None]:
        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            tensor = output[0] if isinstance(output, tuple) else output
            norms[name].append(float(tensor[0, -1].norm()))

        return hook

    handles = []
    for layer in model().model.layers:
        handles.append(layer.self_attn.o_proj.register_forward_hook(keep("attention")))
        handles.append(layer.mlp.register_forward_hook(keep("mlp")))
        handles.append(layer.register_forward_hook(keep("residual")))
    try:
        with torch.inference_mode():
            out = model()(torch.tensor([list(ids)]), output_attentions=True)
    finally:
        for handle in handles:
            handle.remove()
    weights = [np.asarray(layer[0, :, -1].numpy()) for layer in out.attentions]
    return [
        Layer(residual, attention, mlp, float(entropy(of_heads).mean()))
        for residual, attention, mlp, of_heads in zip(*norms.values(), weights, strict=True)
    ]


def entropy(shares: Doubles) -> Doubles:
    """Return the entropy of each row, in bits."""
    logs = np.log2(np.where(shares > 0, shares, 1.0))
    return np.asarray(-(shares * logs).sum(axis=-1))
