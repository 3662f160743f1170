"""Models of every architecture but Llama with random weights, and transformers' results for them.
`random_llama` varies the sizes; these vary the features.

config.json, tensor names and numbers are transformers' own.
"""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers

from gpu.checkpoint.packing import FORMATS, pack, unpack
from gpu.interventions.active import ActiveInterventions
from gpu.step import Floats
from tests.gpu.models.model_cases import CASES, COMMON, Case
from tests.gpu.ops import expert_cases
from tests.gpu.text import made_tokenizers

NAMES = tuple(CASES)
WITH_EXPERTS = tuple(expert_cases.CASES)


def first_of_each(cases: Mapping[str, Case]) -> tuple[str, ...]:
    """Return the first case of each architecture."""
    firsts: dict[str, str] = {}
    for name, case in cases.items():
        firsts.setdefault(case.config, name)
    return tuple(firsts.values())


ONE_OF_EACH = first_of_each(CASES)
"""One case of each architecture without experts."""
ONE_OF_EACH_MOE = first_of_each(expert_cases.CASES)
UNLIKE = ("mistral", "granite", "olmo2", "gemma2", "gpt2", "gpt_neox", "qwen2_moe", "mixtral")
"""Architectures whose dispatches differ."""

ENLARGED = ("q_proj", "k_proj", "qkv_proj", "c_attn", "query_key_value", "embed", "lm_head", "wte")
"""Weights that enlarge their input, so that attention is peaked in places and flat in others, and
logits differ clearly. The others keep its size."""
EXACT = ("wpe", "mlp.gate.weight", "shared_expert_gate")
"""Positions and routers, which stay in float32."""
VOCABULARY = ("embed_tokens", "lm_head", "wte", "embed_in", "embed_out")


@cache
def folder(name: str) -> Path:
    """Return the model folder of a case, written on first use and removed at exit."""
    path = Path(tempfile.mkdtemp(prefix=f"{name}-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return write(path, {**CASES, **expert_cases.CASES}[name])


def write(path: Path, case: Case) -> Path:
    """Write the model folder of a configuration."""
    config = getattr(transformers, case.config)(**{**COMMON, **case.settings})
    model = transformers.AutoModelForCausalLM.from_config(config)
    _randomise(model, torch.Generator().manual_seed(0))
    model.save_pretrained(path)
    special = {"bos_token": "<|begin|>", "eos_token": "<|im_end|>"}
    return made_tokenizers.save(path, made_tokenizers.byte_level(config.vocab_size), special)


def ids(n: int, seed: int = 0) -> list[int]:
    """Return random token ids of the vocabulary that all cases share."""
    rng = np.random.default_rng(seed)
    return [int(id) for id in rng.integers(0, COMMON["vocab_size"], n)]


@dataclass(frozen=True)
class Observed:
    """States and attention of one pass: the residual stream before each layer and after the last
    (n_layers + 1, n, hidden_size), and attention weights (n_layers, n_heads, n, n)."""

    states: Floats
    weights: Floats


class Reference:
    """transformers' model of a folder: float32, eager attention, on the CPU. `dtype`: its matrices
    are quantised to this storage type and back."""

    def __init__(self, path: Path, dtype: str = "f32") -> None:
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            path,
            dtype=torch.float32,
            attn_implementation="eager",
            experts_implementation="eager",
        ).eval()
        if dtype != "f32":
            _store(self.model, dtype)

    @torch.no_grad()
    def logits(self, ids: Sequence[int]) -> Floats:
        """Return the logits, float32 (len(ids), vocab_size)."""
        logits: Floats = self.model(torch.tensor([list(ids)])).logits[0].numpy()
        return logits

    @torch.no_grad()
    def observed(self, ids: Sequence[int]) -> Observed:
        states: list[torch.Tensor] = []
        layers = self._layers()

        def before(_module: Any, inputs: Any, named: Any) -> None:
            states.append(inputs[0][0] if inputs else named["hidden_states"][0])

        def after(_module: Any, _inputs: Any, output: Any) -> None:
            states.append((output[0] if isinstance(output, tuple) else output)[0])

        handles = [layers[0].register_forward_pre_hook(before, with_kwargs=True)]
        handles += [layer.register_forward_hook(after) for layer in layers]
        try:
            out = self.model(torch.tensor([list(ids)]), output_attentions=True)
        finally:
            for handle in handles:
                handle.remove()
        weights = torch.stack([weights[0] for weights in out.attentions])
        return Observed(torch.stack(states).numpy(), weights.numpy())

    @torch.no_grad()
    def last_hidden(self, ids: Sequence[int]) -> Floats:
        """Return the states that the output head reads, float32 (len(ids), hidden_size)."""
        states: Floats = self.model.base_model(torch.tensor([list(ids)])).last_hidden_state[0]
        return states.numpy()

    @torch.no_grad()
    def unembed(self, states: Floats) -> Floats:
        """Return the logits of states (n, hidden_size): final norm and output head."""
        inner, config = self.model.base_model, self.model.config
        names = ("norm", "ln_f", "final_layer_norm")
        norm = next(getattr(inner, name) for name in names if hasattr(inner, name))
        logits = self.model.get_output_embeddings()(norm(torch.from_numpy(states)))
        logits = logits / getattr(config, "logits_scaling", 1.0)
        cap = getattr(config, "final_logit_softcapping", None)
        capped: Floats = (cap * torch.tanh(logits / cap) if cap else logits).numpy()
        return capped

    @contextmanager
    def intervened(self, active: ActiveInterventions) -> Iterator[None]:
        """Apply the interventions on sublayers and on the stream before layers, by hooks."""
        handles = []
        for i, layer in enumerate(self._layers()):
            attention, mlp = _sublayers(layer)
            for module, factors in ((attention, active.attention), (mlp, active.mlp)):
                handles.append(module.register_forward_hook(_scaled(factors.get(i, 1.0))))
            if i in active.steer:
                handles.append(
                    layer.register_forward_pre_hook(_steered(active.steer[i]), with_kwargs=True)
                )
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _layers(self) -> Any:
        return _layers_of(self.model)


def _layers_of(model: Any) -> Any:
    inner = model.base_model
    return inner.h if hasattr(inner, "h") else inner.layers


@contextmanager
def masked(
    model: Any, first: int, keys: slice, layers: range, head: int | None = None
) -> Iterator[None]:
    """Mask attention from the tokens at `first` and after it to `keys` in these layers of
    transformers' model with eager attention, in one head or in all, by changing the mask of each
    layer: (1, 1, n, n), here (1, n_heads, n, n)."""
    n_heads = model.config.num_attention_heads
    heads = slice(None) if head is None else head

    def mask(_module: Any, inputs: Any, named: Any) -> Any:
        changed = named["attention_mask"].repeat(1, n_heads, 1, 1)
        changed[:, heads, first:, keys] = -torch.inf
        return inputs, {**named, "attention_mask": changed}

    handles = []
    for i in layers:
        attention = _attention(_layers_of(model)[i])
        handles.append(attention.register_forward_pre_hook(mask, with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _sublayers(layer: Any) -> tuple[Any, Any]:
    """Return the modules whose outputs are the updates of attention and MLP."""
    if hasattr(layer, "post_feedforward_layernorm"):
        return layer.post_attention_layernorm, layer.post_feedforward_layernorm
    return _attention(layer), layer.mlp


def _attention(layer: Any) -> Any:
    names = ("self_attn", "attn", "attention")
    return next(getattr(layer, name) for name in names if hasattr(layer, name))


def _scaled(factor: float) -> Callable[..., Any]:
    def scale(_module: Any, _inputs: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (output[0] * factor, *output[1:])
        return output * factor

    return scale


def _steered(vector: npt.NDArray[np.float32]) -> Callable[..., Any]:
    def steer(_module: Any, inputs: Any, named: Any) -> Any:
        if inputs:
            return (inputs[0] + torch.from_numpy(vector), *inputs[1:]), named
        states = named["hidden_states"] + torch.from_numpy(vector)
        return inputs, {**named, "hidden_states": states}

    return steer


@lru_cache(maxsize=4)
def reference(name: str, dtype: str = "f32") -> Reference:
    return Reference(folder(name), dtype)


@torch.no_grad()
def _randomise(model: Any, generator: torch.Generator) -> None:
    is_norm_plus_one = model.config.model_type.startswith("gemma")
    for name, weight in model.named_parameters():
        if weight.dim() >= 2:
            n_inputs = weight.shape[0] if _is_transposed(model, name) else weight.shape[-1]
            gain = 2.0 if any(part in name for part in ENLARGED) else 1.0
            weight.normal_(0.0, gain / n_inputs**0.5, generator=generator)
        elif name.endswith("bias"):
            weight.normal_(0.0, 0.3, generator=generator)
        elif is_norm_plus_one:
            weight.uniform_(-0.5, 0.5, generator=generator)
        else:
            weight.uniform_(0.5, 1.5, generator=generator)


def _is_transposed(model: Any, name: str) -> bool:
    """Return whether a matrix is saved as inputs × outputs, as in GPT-2."""
    return model.config.model_type == "gpt2" and ".c_" in name


@torch.no_grad()
def _store(model: Any, dtype: str) -> None:
    """Round every matrix as the engine stores it."""
    for name, weight in model.named_parameters():
        if weight.dim() < 2 or any(part in name for part in EXACT):
            continue
        is_vocabulary = any(part in name for part in VOCABULARY)
        stored = FORMATS[dtype].vocabulary if is_vocabulary else dtype
        transposed = _is_transposed(model, name)
        rows = (weight.T if transposed else weight.flatten(0, -2)).contiguous().numpy()
        back = torch.from_numpy(unpack(stored, pack(stored, rows), rows.shape[1]))
        weight.copy_(back.T if transposed else back.view_as(weight))


def settings_of(name: str) -> dict[str, Any]:
    """Read the config.json of a case, as transformers wrote it."""
    found: dict[str, Any] = json.loads((folder(name) / "config.json").read_text())
    return found
