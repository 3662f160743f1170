"""Public interface of the engine, which runs real checkpoints in WGSL.

from gpu import Engine, SamplingParams

engine = Engine.load("path/to/model")
run = engine.generate(engine.tokenizer.encode("Once upon a time"), SamplingParams(seed=7))
for token in run:
    print(token.text, end="")
"""

from collections.abc import Callable
from pathlib import Path

from gpu.analysis.footprint import Footprint, Shapes
from gpu.analysis.perplexity import Perplexity, PerplexityResult, TextSpan, perplexities, text_spans
from gpu.analysis.perplexity import perplexity as text_perplexity
from gpu.analysis.reap import ExpertScores, expert_scores, n_dropped
from gpu.analysis.sizing.bounds import Bound, DeviceBounds
from gpu.analysis.sizing.devices import DEVICES as KNOWN_DEVICES
from gpu.analysis.sizing.devices import GB, TFLOPS, DeviceSpec
from gpu.analysis.sizing.model_shape import ModelShape
from gpu.analysis.sizing.sizing import DEFAULT_RATE, Sizing, Workload, size_model
from gpu.checkpoint.auto_dtype import AUTO as AUTO_DTYPE
from gpu.checkpoint.auto_dtype import DtypeChoice, choose_dtype
from gpu.checkpoint.inventory import Inventory, RopeTable, TensorEntry
from gpu.checkpoint.pruning import expect_empty, write_pruned
from gpu.checkpoint.tensor_summary import Outlier, TensorSummary
from gpu.config import MODEL_TYPES, GenerationDefaults, ModelConfig
from gpu.config.sentence_transformers import SentenceConfig
from gpu.engine.backends import import_backend, recommended_settings
from gpu.engine.engine import Engine
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
from gpu.export.manifest import ExportedFile, ExportedModel, PlansOfShapes, RecordShapes
from gpu.files.cache_folder import cache_folder
from gpu.files.regular_file import expect_inside
from gpu.files.replace_file import replace_file
from gpu.gguf.split import parse_split_name as gguf_part
from gpu.gguf.stub import write_stub as write_gguf_stub
from gpu.grammar import CANNOT_FOLLOW, MAX_GRAMMAR_CHARS, Grammar
from gpu.info import (
    AdapterInfo,
    DeviceInfo,
    EmbeddingInfo,
    EncoderDecoderInfo,
    EngineInfo,
    EngineLimits,
    EngineStats,
    LoraInfo,
    MemoryInfo,
    ModelInfo,
)
from gpu.interventions.messages import (
    FACTORS,
    MAX_PATCHES,
    MAX_STEERS,
    NO_INTERVENTIONS,
    STRENGTHS,
    HeadFactor,
    Interventions,
    InterventionSpan,
    LayerFactor,
    LoraStrength,
    Patch,
    Steer,
)
from gpu.interventions.messages import MAX_TEXT_CHARS as MAX_INTERVENTION_CHARS
from gpu.interventions.messages import MAX_TEXT_TOKENS as MAX_INTERVENTION_TOKENS
from gpu.kv.blocks import BLOCK_TOKENS, token_bytes_by_format
from gpu.kv.context_shift import ATTENTION_SINKS
from gpu.kv.prefix_cache import BlockHashes
from gpu.load_options import LoadOptions
from gpu.lora.adapter import MAX_LORAS, check_lora
from gpu.lora.adapter import NAME as LORA_NAME
from gpu.lora.change import LoraChange, lora_changes
from gpu.lora.config import MAX_RANK as MAX_LORA_RANK
from gpu.lora.targets import LoraTarget, lora_targets_of
from gpu.pace import LEAST_PACE, MOST_PACE, PaceChange, RunPace
from gpu.pace import MOST_STEPS as MOST_PACED_STEPS
from gpu.places import ENDED_IN_PAUSE, Places
from gpu.request import Request
from gpu.sampling_params import (
    GREEDY_BELOW,
    MAX_BIAS,
    MAX_LOGIT_BIASES,
    MAX_STOP_CHARS,
    MAX_STOP_STRINGS,
    SamplingParams,
    SamplingSetting,
    SeedingScheme,
    TokenBias,
)
from gpu.sampling_params import SETTINGS as SAMPLING_SETTINGS
from gpu.scheduled_updates import ScheduledUpdate
from gpu.stage_hosts import ServesStage, StageAddress, StageHosts
from gpu.text.decode_stream import DecodeStream
from gpu.text.grammar_matcher import GrammarCompiler, GrammarMatcher
from gpu.text.grammar_vocabulary import GrammarVocabulary
from gpu.text.same_vocabulary import expect_same_vocabulary
from gpu.text.segmentation import Segmentation
from gpu.text.stop_strings import StopMatcher
from gpu.text.token_table import TextChunk, TextEncoding, TokenizerLike, TokenTable, token_table
from gpu.text.tokenizer import LONG_TEXT_CHARS, Tokenizer, expect_unicode
from gpu.tuning.policy_choices import PolicyChoice
from gpu.tuning.results import AutotuneResult, AutotuneRow
from gpu.watermark.detector import detect as detect_watermark
from gpu.watermark.greenlist import Greenlists, WatermarkConfig

__all__ = [
    "ATTENTION_SINKS",
    "AUTO_DTYPE",
    "BLOCK_TOKENS",
    "CANNOT_FOLLOW",
    "DEFAULT_RATE",
    "ENDED_IN_PAUSE",
    "FACTORS",
    "GB",
    "GREEDY_BELOW",
    "KNOWN_DEVICES",
    "LEAST_PACE",
    "LONG_TEXT_CHARS",
    "LORA_NAME",
    "MAX_BIAS",
    "MAX_GRAMMAR_CHARS",
    "MAX_INTERVENTION_CHARS",
    "MAX_INTERVENTION_TOKENS",
    "MAX_LOGIT_BIASES",
    "MAX_LORAS",
    "MAX_LORA_RANK",
    "MAX_PATCHES",
    "MAX_STEERS",
    "MAX_STOP_CHARS",
    "MAX_STOP_STRINGS",
    "MODEL_TYPES",
    "MOST_PACE",
    "MOST_PACED_STEPS",
    "NO_INTERVENTIONS",
    "SAMPLING_SETTINGS",
    "STRENGTHS",
    "TFLOPS",
    "AdapterInfo",
    "AutotuneResult",
    "AutotuneRow",
    "BlockHashes",
    "Bound",
    "ContextExceeded",
    "DecodeStream",
    "DeviceBounds",
    "DeviceError",
    "DeviceInfo",
    "DeviceSpec",
    "DtypeChoice",
    "EmbeddingInfo",
    "EncoderDecoderInfo",
    "Engine",
    "EngineClosed",
    "EngineError",
    "EngineInfo",
    "EngineLimits",
    "EngineStats",
    "ExpertScores",
    "ExportedFile",
    "ExportedModel",
    "Footprint",
    "GenerationDefaults",
    "Grammar",
    "GrammarCompiler",
    "GrammarMatcher",
    "GrammarVocabulary",
    "Greenlists",
    "HeadFactor",
    "InterventionSpan",
    "Interventions",
    "InvalidRequest",
    "Inventory",
    "LayerFactor",
    "LoadOptions",
    "LoraChange",
    "LoraInfo",
    "LoraStrength",
    "LoraTarget",
    "MemoryInfo",
    "ModelConfig",
    "ModelError",
    "ModelInfo",
    "ModelShape",
    "Outlier",
    "PaceChange",
    "Patch",
    "Perplexity",
    "PerplexityResult",
    "Places",
    "PlansOfShapes",
    "PolicyChoice",
    "QueueFull",
    "RecordShapes",
    "Request",
    "RopeTable",
    "Run",
    "RunPace",
    "SamplingParams",
    "SamplingSetting",
    "ScheduledUpdate",
    "SeedingScheme",
    "Segmentation",
    "SentenceConfig",
    "ServesStage",
    "Shapes",
    "Sizing",
    "StageAddress",
    "StageHosts",
    "Steer",
    "StopMatcher",
    "TensorEntry",
    "TensorSummary",
    "TextChunk",
    "TextEncoding",
    "TextSpan",
    "TokenBias",
    "TokenTable",
    "Tokenizer",
    "TokenizerLike",
    "WatermarkConfig",
    "Workload",
    "autotune_device",
    "cache_folder",
    "check_lora",
    "choose_dtype",
    "detect_watermark",
    "devices",
    "expect_empty",
    "expect_inside",
    "expect_loadable",
    "expect_same_vocabulary",
    "expect_unicode",
    "expert_scores",
    "export_model",
    "gguf_part",
    "import_backend",
    "is_tuned",
    "lora_changes",
    "lora_targets_of",
    "measured_device",
    "n_dropped",
    "perplexities",
    "policy_choices",
    "recommended_settings",
    "replace_file",
    "shapes_recorder",
    "size_model",
    "stage_server",
    "text_perplexity",
    "text_spans",
    "token_bytes_by_format",
    "token_table",
    "wgpu_versions",
    "write_gguf_stub",
    "write_pruned",
]


def devices() -> list[AdapterInfo]:
    """Return the adapters an engine can run on, best first; `adapter=` takes an index into them."""
    from gpu.webgpu.device import list_devices

    return list_devices()


def expect_loadable(
    path: str | Path, dtype: str, progress: Callable[[float, str], None] = lambda share, what: None
) -> None:
    """Read all weights of a model, without a device. Raises ModelError if they could not be loaded:
    tensors that are missing or of another shape, numbers that are not finite."""
    from gpu.runners import dry_run

    dry_run.expect_loadable(path, dtype, progress)


def export_model(
    path: str | Path,
    out: str | Path,
    options: LoadOptions,
    progress: Callable[[float, str], None] = lambda share, what: None,
) -> ExportedModel:
    """Write a model's plans and weights to the folder `out`, for engines in browsers; no device is
    needed. docs/plan-format.md has the files. Raises ModelError for options and models that cannot
    be exported and for an `out` that cannot be written, DeviceError for a model that exceeds what
    every browser gives."""
    from gpu.export import exporter

    return exporter.export_model(Path(path), Path(out), options, progress=progress)


def shapes_recorder() -> RecordShapes:
    """Return the function that records the plans of a model for a profile from its config.json, its
    generation_config.json and the shapes of its tensors. It raises as `export_model`. All that it
    needs is imported by this call."""
    from gpu.export.shapes import record_shapes

    return record_shapes


def is_tuned(device: AdapterInfo) -> bool:
    """Return whether a stored tuning of this adapter is used."""
    from gpu.tuning.autotune import stored_tuning

    return stored_tuning(device) is not None


def policy_choices(device: AdapterInfo) -> tuple[PolicyChoice, ...]:
    """Return how the engine uses this adapter, and why."""
    from gpu.tuning import policy_choices as words
    from gpu.tuning.autotune import stored_tuning

    return words.policy_choices(device, stored_tuning(device))


def wgpu_versions() -> dict[str, str]:
    """Return the versions of wgpu-py and of the wgpu-native library inside it."""
    from gpu.webgpu.device import wgpu_versions

    return wgpu_versions()


def measured_device(adapter: str | None, memory_bytes: int | None) -> DeviceSpec:
    """Return an adapter as a device to size models for, its rates measured, in a second.
    Raises DeviceError when it cannot be opened."""
    from gpu.webgpu.device import Device
    from gpu.webgpu.peaks import how_measured, measure_peaks

    device = Device.open(adapter, checked=False)
    try:
        peaks = measure_peaks(device)
    finally:
        device.close()
    return DeviceSpec(
        name=device.info.name,
        memory_bytes=memory_bytes,
        bytes_per_s=peaks.bytes_per_s,
        flops_per_s=peaks.flops_per_s,
        bus_bytes_per_s=peaks.bus_bytes_per_s or None,
        source=f"measured: {how_measured(peaks.read_bytes)}, and multiply-adds in f32",
        cache_bytes=peaks.cache_bytes or None,
        cache_bytes_per_s=peaks.cache_bytes_per_s or None,
    )


def autotune_device(
    adapter: str | None = None,
    progress: Callable[[float, str], None] = lambda fraction, message: None,
) -> AutotuneResult:
    """Measure which matmul kernels are fastest on an adapter, in some seconds, on a GPU in up to a
    minute, and store the result for engines that load with `autotune`. Raises DeviceError when the
    adapter cannot be opened."""
    from gpu.tuning.autotune import autotune_adapter

    return autotune_adapter(adapter, progress)


def stage_server(host: str, gpu: str | None = None) -> ServesStage:
    """Return what runs a stage of a model in this process for an engine in another one. It listens
    on the address `host`. `gpu`: the stage's GPU unless the engine's options name one; None: the
    best one."""
    from gpu.runners.stage_server import StageServer

    return StageServer(host, gpu)
