"""The engine: real checkpoints through WGSL. This is its public face.

from gpu import Engine, SamplingParams

engine = Engine.load("path/to/model")
run = engine.generate(engine.tokenizer.encode("Once upon a time"), SamplingParams(seed=7))
for token in run:
    print(token.text, end="")
"""

from collections.abc import Callable
from pathlib import Path

from gpu.checkpoint.inventory import Inventory, RopeTable, TensorEntry
from gpu.checkpoint.pruning import expect_empty, write_pruned
from gpu.checkpoint.tensor_summary import Outlier, TensorSummary
from gpu.config import MODEL_TYPES, GenerationDefaults, ModelConfig
from gpu.engine.engine import Engine
from gpu.engine.info import EngineInfo
from gpu.engine.run import Run
from gpu.errors import (
    ContextExceeded,
    DeviceError,
    EngineClosed,
    EngineError,
    InvalidRequest,
    ModelError,
    QueueFull,
)
from gpu.footprint import Footprint, Shapes
from gpu.gguf.outline import write_outline as write_gguf_outline
from gpu.gguf.split import part_of as gguf_part
from gpu.interventions import (
    NO_INTERVENTIONS,
    HeadFactor,
    Interventions,
    LayerFactor,
    LoraStrength,
    Patch,
    ReachedFrom,
    Steer,
    encode_interventions,
    expect_in_turn,
)
from gpu.kv.blocks import token_bytes_by_format
from gpu.lora.adapter import check_lora
from gpu.perplexity import Measured, Perplexity, perplexities
from gpu.perplexity import Window as TextWindow
from gpu.perplexity import perplexity as text_perplexity
from gpu.perplexity import windows as text_windows
from gpu.reap import ExpertScores, expert_scores, n_dropped
from gpu.runner import DeviceInfo, LoraInfo
from gpu.sampling import SamplingParams
from gpu.script import ChangeAt
from gpu.text.token_table import TextChunk, TextEncoding, TokenizerLike, TokenTable, table_of
from gpu.text.tokenizer import DecodeStream, Tokenizer, expect_unicode
from gpu.tuning.probed import Probed, ProbedRow

__all__ = [
    "MODEL_TYPES",
    "NO_INTERVENTIONS",
    "ChangeAt",
    "ContextExceeded",
    "DecodeStream",
    "DeviceError",
    "DeviceInfo",
    "Engine",
    "EngineClosed",
    "EngineError",
    "EngineInfo",
    "ExpertScores",
    "Footprint",
    "GenerationDefaults",
    "HeadFactor",
    "Interventions",
    "InvalidRequest",
    "Inventory",
    "LayerFactor",
    "LoraInfo",
    "LoraStrength",
    "Measured",
    "ModelConfig",
    "ModelError",
    "Outlier",
    "Patch",
    "Perplexity",
    "Probed",
    "ProbedRow",
    "QueueFull",
    "ReachedFrom",
    "RopeTable",
    "Run",
    "SamplingParams",
    "Shapes",
    "Steer",
    "TensorEntry",
    "TensorSummary",
    "TextChunk",
    "TextEncoding",
    "TextWindow",
    "TokenTable",
    "Tokenizer",
    "TokenizerLike",
    "check_lora",
    "devices",
    "encode_interventions",
    "expect_empty",
    "expect_in_turn",
    "expect_loadable",
    "expect_unicode",
    "expert_scores",
    "gguf_part",
    "is_tuned",
    "n_dropped",
    "perplexities",
    "probe_device",
    "table_of",
    "text_perplexity",
    "text_windows",
    "token_bytes_by_format",
    "write_gguf_outline",
    "write_pruned",
]


def devices() -> list[DeviceInfo]:
    """The adapters an engine can run on, best first; the position is what `adapter=` takes."""
    from gpu.webgpu.device import list_devices

    return list_devices()


def expect_loadable(
    path: str | Path, dtype: str, progress: Callable[[float, str], None] = lambda share, what: None
) -> None:
    """Raises ModelError for a model whose weights could not be loaded, without a device: tensors
    that are missing or of another shape, numbers that are none. Reads all of them."""
    from gpu.runners import dry_run

    dry_run.expect_loadable(path, dtype, progress)


def is_tuned(device: DeviceInfo) -> bool:
    """Was the best cut of products measured on this adapter, and is it used from now on?"""
    from gpu.tuning.probe import kept_tuning

    return kept_tuning(device) is not None


def probe_device(adapter: str | None = None) -> Probed:
    """Measure how products are best cut on an adapter and whether they should be of bytes, which
    takes some seconds, and remember it for engines that load with `probe`. Raises DeviceError when
    the adapter cannot be opened."""
    from gpu.tuning.probe import probe_adapter

    return probe_adapter(adapter)
