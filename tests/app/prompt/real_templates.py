"""Chat templates of published models, one file each in chat_templates/.

They are test data and belong to their authors. Each is listed with its model and that model's
licence.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent / "chat_templates"

LLAMA_2, LLAMA_3 = "Llama 2 Community License", "Llama 3 Community License"
LLAMA_31, LLAMA_32 = "Llama 3.1 Community License", "Llama 3.2 Community License"
APACHE, MIT, GEMMA = "Apache 2.0", "MIT", "Gemma Terms of Use"
MISTRAL_RESEARCH = "Mistral Research License"


class Source(NamedTuple):
    """Origin of a template, and the special tokens with which that model renders it."""

    model: str
    licence: str
    bos_token: str | None
    eos_token: str

    @property
    def tokens(self) -> dict[str, str]:
        named = {"bos_token": self.bos_token, "eos_token": self.eos_token}
        return {name: token for name, token in named.items() if token is not None}


SOURCES = {
    "deepseek-r1-distill": Source(
        "deepseek-ai/DeepSeek-R1-Distill-Llama-8B",
        MIT,
        "<｜begin▁of▁sentence｜>",
        "<｜end▁of▁sentence｜>",
    ),
    "gemma": Source("google/gemma-7b-it", GEMMA, "<bos>", "<eos>"),
    "gemma-2": Source("google/gemma-2-2b-it", GEMMA, "<bos>", "<eos>"),
    "gemma-3": Source("google/gemma-3-4b-it", GEMMA, "<bos>", "<eos>"),
    "granite-3.0": Source(
        "ibm-granite/granite-3.0-8b-instruct", APACHE, "<|end_of_text|>", "<|end_of_text|>"
    ),
    "granite-3.3": Source(
        "ibm-granite/granite-3.3-2b-instruct", APACHE, "<|end_of_text|>", "<|end_of_text|>"
    ),
    "llama-2": Source("bofenghuang/vigogne-2-70b-chat", LLAMA_2, "<s>", "</s>"),
    "llama-3": Source(
        "meta-llama/Meta-Llama-3-8B-Instruct", LLAMA_3, "<|begin_of_text|>", "<|eot_id|>"
    ),
    "llama-3.1": Source(
        "meta-llama/Llama-3.1-8B-Instruct", LLAMA_31, "<|begin_of_text|>", "<|eot_id|>"
    ),
    "llama-3.2": Source(
        "meta-llama/Llama-3.2-3B-Instruct", LLAMA_32, "<|begin_of_text|>", "<|eot_id|>"
    ),
    "mistral-nemo": Source("mistralai/Mistral-Nemo-Instruct-2407", APACHE, "<s>", "</s>"),
    "mistral-v0.2": Source("mistralai/Mistral-7B-Instruct-v0.2", APACHE, "<s>", "</s>"),
    "mistral-v1": Source("mistralai/Mistral-7B-Instruct-v0.2", APACHE, "<s>", "</s>"),
    "mistral-v7": Source("mistralai/Mistral-Large-Instruct-2411", MISTRAL_RESEARCH, "<s>", "</s>"),
    "olmo-2": Source("allenai/OLMo-2-1124-7B-Instruct", APACHE, "<|endoftext|>", "<|endoftext|>"),
    "openchat-3.5": Source("openchat/openchat-3.5-0106", APACHE, "<s>", "<|end_of_turn|>"),
    "openhermes-2.5": Source("teknium/OpenHermes-2.5-Mistral-7B", APACHE, "<s>", "<|im_end|>"),
    "phi-3-mini": Source("microsoft/Phi-3-mini-4k-instruct", MIT, "<s>", "<|endoftext|>"),
    "phi-3.5-mini": Source("microsoft/Phi-3.5-mini-instruct", MIT, "<s>", "<|endoftext|>"),
    "phi-4": Source("microsoft/phi-4", MIT, "<|endoftext|>", "<|im_end|>"),
    "qwen-2": Source("Qwen/Qwen2-0.5B-Instruct", APACHE, None, "<|im_end|>"),
    "qwen-2.5": Source("Qwen/Qwen2.5-7B-Instruct", APACHE, None, "<|im_end|>"),
    "qwen-3": Source("Qwen/Qwen3-0.6B", APACHE, None, "<|im_end|>"),
    "smollm-2": Source("HuggingFaceTB/SmolLM2-135M-Instruct", APACHE, "<|im_start|>", "<|im_end|>"),
    "smollm-3": Source("HuggingFaceTB/SmolLM3-3B", APACHE, None, "<|im_end|>"),
    "vicuna-1.1": Source("lmsys/vicuna-13b-v1.1", "Llama License, non-commercial", "<s>", "</s>"),
    "zephyr": Source("TinyLlama/TinyLlama-1.1B-Chat-v1.0", APACHE, "<s>", "</s>"),
}
"""The last is HuggingFaceH4/zephyr-7b-beta's too; that of mistral-v0.2 is Mixtral 8x7B's."""


def template(name: str) -> str:
    return (FOLDER / f"{name}.jinja").read_text("utf-8")
