"""UMT5 (Chung et al. 2023): an mT5 whose layers have position biases of their own."""

from __future__ import annotations

from dataclasses import replace

from gpu.architectures.encoder_decoders import t5

ARCHITECTURE = replace(
    t5.ARCHITECTURE,
    model_type="umt5",
    read_config=t5.reader("gated-gelu"),
    tensors=t5.tensors(is_decoder=False, biased_layers="all"),
    decoder_tensors=t5.tensors(is_decoder=True, biased_layers="all"),
)
