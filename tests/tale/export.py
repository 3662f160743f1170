"""Export the network in Hugging Face layout: config, f16 safetensors, generation defaults."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.tale.corpus import ENDOFTEXT, IM_END
from tests.tale.model import Tale, TaleConfig


def hf_config(config: TaleConfig) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden,
        "intermediate_size": config.intermediate,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.n_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": config.max_positions,
        "rms_norm_eps": config.norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": IM_END,
        "pad_token_id": ENDOFTEXT,
        "dtype": "float16",
    }


def generation_config() -> dict[str, object]:
    return {
        "do_sample": True,
        "temperature": 0.8,
        "top_p": 0.95,
        "max_new_tokens": 320,
        "eos_token_id": [IM_END, ENDOFTEXT],
        "pad_token_id": ENDOFTEXT,
    }


def export(model: Tale, folder: Path) -> None:
    """Write the three files atomically, so that a reader never sees half a file."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"model.{name}": value.detach().to(torch.float16).contiguous()
        for name, value in model.state_dict().items()
    }
    partial = folder / "model.safetensors.partial"
    save_file(tensors, partial, metadata={"format": "pt"})
    partial.chmod(0o644)  # safetensors writes for the owner alone
    os.replace(partial, folder / "model.safetensors")
    for name, content in (
        ("config.json", hf_config(model.config)),
        ("generation_config.json", generation_config()),
    ):
        partial = folder / f"{name}.partial"
        partial.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        os.replace(partial, folder / name)


def read_config(folder: Path) -> TaleConfig:
    raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return TaleConfig(
        vocab_size=raw["vocab_size"],
        n_layers=raw["num_hidden_layers"],
        hidden=raw["hidden_size"],
        n_heads=raw["num_attention_heads"],
        n_kv_heads=raw["num_key_value_heads"],
        head_dim=raw["head_dim"],
        intermediate=raw["intermediate_size"],
        max_positions=raw["max_position_embeddings"],
        rope_theta=raw["rope_parameters"]["rope_theta"],
        norm_eps=raw["rms_norm_eps"],
    )


def load(folder: Path) -> Tale:
    """Load the exported model, with its f16 weights converted to f32."""
    model = Tale(read_config(folder))
    tensors = load_file(folder / "model.safetensors")
    model.load_state_dict({name.removeprefix("model."): t.float() for name, t in tensors.items()})
    return model.eval()
