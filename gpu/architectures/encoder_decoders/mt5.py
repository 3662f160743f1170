"""mT5 (Xue et al. 2021): T5 1.1 for a hundred languages. Its logits are never scaled."""

from __future__ import annotations

from dataclasses import replace

from gpu.architectures.encoder_decoders import t5

ARCHITECTURE = replace(
    t5.ARCHITECTURE, model_type="mt5", read_config=t5.reader("gated-gelu", scales_tied=False)
)
