"""Registry of models: the class whose `forward` records the pass of each architecture. What is read
from its config and files is in `gpu/architectures/`."""

from __future__ import annotations

from gpu.architectures import ARCHITECTURES, ENCODERS
from gpu.models.bert import Bert
from gpu.models.decoder import Decoder
from gpu.models.encoder import EncoderModel
from gpu.models.gpt2 import Gpt2
from gpu.models.gpt_neox import GptNeoX
from gpu.models.llama import Llama
from gpu.models.modernbert import ModernBert

MODELS: dict[str, type[Decoder]] = {
    **dict.fromkeys(ARCHITECTURES, Llama),  # their weights and configs say in what they differ
    "gpt2": Gpt2,
    "gpt_neox": GptNeoX,
}

ENCODER_MODELS: dict[str, type[EncoderModel]] = {
    **dict.fromkeys(ENCODERS, Bert),
    "modernbert": ModernBert,
}
