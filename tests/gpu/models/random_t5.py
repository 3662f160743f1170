"""Encoder-decoders with random weights in folders as transformers saves them, and what
transformers' models make of texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM

from gpu.step import Floats

SIZES: dict[str, Any] = {
    "vocab_size": 101,
    "d_model": 60,
    "d_kv": 12,
    "d_ff": 77,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
"""Heads that are narrower together than the stream, and a decoder of fewer layers."""
V1_1: dict[str, Any] = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}


def write(folder: Path, *, model_type: str = "t5", **sizes: Any) -> Path:
    """Write a folder. Untied embeddings get an output head of their own."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **{**SIZES, **sizes})
    model = AutoModelForSeq2SeqLM.from_config(config)
    for parameter in model.parameters():  # gains too; peaked attention in places
        torch.nn.init.normal_(parameter, std=0.3)
    tensors = {name: value.clone() for name, value in model.state_dict().items()}
    if sizes.get("tie_word_embeddings", True):
        del tensors["lm_head.weight"]
    else:
        torch.nn.init.normal_(tensors["lm_head.weight"], std=0.3)
    for copy in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"):
        del tensors[copy]
    model.save_pretrained(folder, state_dict=tensors)
    return folder


@dataclass(frozen=True, slots=True)
class Wanted:
    """What transformers makes of a text and the first tokens that the decoder reads.

    logits (m, vocab_size), encoder (n_layers, n_heads, n, n), decoder (n_layers, n_heads, m, m),
    cross (n_layers, n_heads, m, n)
    """

    logits: Floats
    encoder: Floats
    decoder: Floats
    cross: Floats


def load(folder: Path) -> Any:
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, attn_implementation="eager")
    return model.eval()


@torch.no_grad()
def reference(folder: Path, ids: Sequence[int], decoded: Sequence[int]) -> Wanted:
    """Run transformers' model over a text and what the decoder reads."""
    found = load(folder)(
        input_ids=torch.tensor([list(ids)]),
        decoder_input_ids=torch.tensor([list(decoded)]),
        output_attentions=True,
        use_cache=False,
    )
    of = {
        name: torch.cat(getattr(found, f"{name}_attentions")).numpy()
        for name in ("encoder", "decoder", "cross")
    }
    return Wanted(found.logits[0].numpy(), **of)


@torch.no_grad()
def generated(folder: Path, ids: Sequence[int], n: int) -> list[int]:
    """Return what `generate()` writes greedily, without the start token."""
    found = load(folder).generate(
        torch.tensor([list(ids)]), max_new_tokens=n, do_sample=False, num_beams=1
    )
    written: list[int] = found[0, 1:].tolist()
    return written
