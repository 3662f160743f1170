"""Which file runs which `model_type`. What each reads of config.json is in
`gpu.config.families`."""

from __future__ import annotations

from gpu.models.decoder import Decoder
from gpu.models.gemma2 import Gemma2
from gpu.models.gemma3 import Gemma3
from gpu.models.gpt2 import Gpt2
from gpu.models.gpt_neox import GptNeoX
from gpu.models.granite import Granite
from gpu.models.llama import Llama
from gpu.models.mistral import Mistral
from gpu.models.mixtral import Mixtral
from gpu.models.olmo2 import Olmo2
from gpu.models.olmoe import Olmoe
from gpu.models.phi3 import Phi3
from gpu.models.qwen2 import Qwen2
from gpu.models.qwen2_moe import Qwen2Moe
from gpu.models.qwen3 import Qwen3
from gpu.models.qwen3_moe import Qwen3Moe
from gpu.models.smollm3 import SmolLM3

MODELS: dict[str, type[Decoder]] = {
    "llama": Llama,
    "qwen2": Qwen2,
    "mistral": Mistral,
    "smollm3": SmolLM3,
    "granite": Granite,
    "qwen3": Qwen3,
    "olmo2": Olmo2,
    "phi3": Phi3,
    "gemma2": Gemma2,
    "gemma3_text": Gemma3,
    "mixtral": Mixtral,
    "qwen2_moe": Qwen2Moe,
    "qwen3_moe": Qwen3Moe,
    "olmoe": Olmoe,
    "gpt2": Gpt2,
    "gpt_neox": GptNeoX,
}
