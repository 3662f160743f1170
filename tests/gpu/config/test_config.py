"""Reading config.json and generation_config.json: every spelling, and every refusal by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import CONFIG_MAPPING

from gpu.architectures.common.rope import MAX_CONTEXT
from gpu.config import MODEL_TYPES, GenerationDefaults, ModelConfig, RopeConfig
from gpu.engine.backends import recommended_settings
from gpu.engine.engine import Engine
from gpu.errors import ModelError
from gpu.files.json_object import JsonObject
from gpu.load_options import LoadOptions
from gpu.sampling_params import SamplingParams
from tests.gpu.models import random_llama

BASE: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 172,
    "num_attention_heads": 8,
    "num_hidden_layers": 5,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}

YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 256}


def write(folder: Path, changes: dict[str, Any], generation: dict[str, Any] | None = None) -> Path:
    config = {key: value for key, value in {**BASE, **changes}.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


def read(folder: Path, **changes: Any) -> ModelConfig:
    return ModelConfig.from_folder(write(folder, changes))


def test_missing_fields_have_the_defaults_of_the_architecture(tmp_path: Path) -> None:
    assert read(tmp_path) == ModelConfig(
        model_type="llama",
        n_layers=5,
        n_heads=8,
        n_kv_heads=8,
        head_dim=8,
        hidden_size=64,
        intermediate_size=172,
        vocab_size=512,
        context=2048,
        norm_eps=1e-5,
        tie_embeddings=False,
        attention_bias=False,
        mlp_bias=False,
        rope=RopeConfig(theta=10000.0),
        eos_ids=(),
        bos_id=None,
        torch_dtype=None,
    )


def test_everything_given_is_read(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        num_key_value_heads=2,
        head_dim=20,
        tie_word_embeddings=True,
        attention_bias=True,
        mlp_bias=True,
        bos_token_id=1,
        eos_token_id=2,
        hidden_act="silu",
        dtype="bfloat16",
    )
    assert (config.n_kv_heads, config.head_dim) == (2, 20)
    assert config.tie_embeddings
    assert config.attention_bias
    assert config.mlp_bias
    assert (config.bos_id, config.eos_ids, config.torch_dtype) == (1, (2,), "bfloat16")


def test_null_counts_as_left_out(tmp_path: Path) -> None:
    nothing = dict.fromkeys(("head_dim", "num_key_value_heads", "rope_scaling", "eos_token_id"))
    assert read(tmp_path, **nothing) == read(tmp_path)


@pytest.mark.parametrize(
    ("changes", "rope"),
    [
        ({}, RopeConfig(10000.0)),
        ({"rope_theta": 5e5}, RopeConfig(5e5)),
        ({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, RopeConfig(5e5)),
        ({"rope_theta": 2e4, "rope_parameters": {"rope_type": "default"}}, RopeConfig(2e4)),
        ({"rope_scaling": {"type": "linear", "factor": 4}}, RopeConfig(1e4, "linear", 4.0)),
        (
            {"rope_theta": 5e5, "rope_scaling": LLAMA3},
            RopeConfig(5e5, "llama3", 8.0, 1.0, 4.0, 8192),
        ),
        (
            {"rope_parameters": {"rope_theta": 5e5, **LLAMA3, "factor": 32}},
            RopeConfig(5e5, "llama3", 32.0, 1.0, 4.0, 8192),
        ),
    ],
)
def test_old_and_new_rope_spellings(
    tmp_path: Path, changes: dict[str, Any], rope: RopeConfig
) -> None:
    assert read(tmp_path, **changes).rope == rope


def test_eos_ids_are_those_of_both_files_generation_first(tmp_path: Path) -> None:
    write(tmp_path, {"eos_token_id": 2}, {"eos_token_id": [7, 2, 9]})
    assert ModelConfig.from_folder(tmp_path).eos_ids == (7, 2, 9)
    write(tmp_path, {"eos_token_id": [4, 5]}, {})
    assert ModelConfig.from_folder(tmp_path).eos_ids == (4, 5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba' is not supported; supported: gemma2, "),
        ({"model_type": ...}, "model_type is missing"),
        ({"model_type": 3}, "model_type must be a string, but is 3"),
        ({"hidden_act": "gelu"}, "hidden_act must be one of silu, but is 'gelu'"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
        ({"num_attention_heads": "8"}, "num_attention_heads must be an integer .* but is '8'"),
        ({"num_attention_heads": 8.0}, "num_attention_heads must be an integer"),
        ({"num_attention_heads": True}, "num_attention_heads must be an integer"),
        ({"num_attention_heads": 0}, "num_attention_heads must be an integer from 1"),
        ({"num_hidden_layers": -1}, "num_hidden_layers must be an integer from 1"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be an integer from 1 to 1024"),
        ({"vocab_size": 10**400}, "vocab_size must be an integer"),
        ({"hidden_size": ...}, "hidden_size is missing"),
        ({"intermediate_size": None}, "intermediate_size is missing"),
        ({"max_position_embeddings": ...}, "max_position_embeddings is missing"),
        ({"rms_norm_eps": ...}, "rms_norm_eps is missing"),
        ({"rms_norm_eps": "tiny"}, "rms_norm_eps must be a number"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps must be a number"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps must be a number"),
        ({"num_key_value_heads": 3}, "num_key_value_heads must be a divisor"),
        ({"num_key_value_heads": 16}, "num_key_value_heads must be a divisor"),
        ({"head_dim": 10}, "head_dim 10 is not supported; it must be a multiple of 4"),
        ({"head_dim": 2048}, "head_dim must be an integer from 1 to 1024"),
        ({"hidden_size": 48}, "head_dim 6 is not supported"),
        ({"hidden_size": 100}, "hidden_size must be a multiple of num_attention_heads"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
        ({"attention_bias": 1}, "attention_bias must be true or false"),
        ({"eos_token_id": 512}, "eos_token_id must be an id from 0 to 511"),
        ({"eos_token_id": [2, -1]}, "eos_token_id must be an id"),
        ({"eos_token_id": "</s>"}, "eos_token_id must be an id"),
        ({"bos_token_id": 512}, "bos_token_id must be an integer from 0 to 511"),
        ({"rope_theta": 0}, "rope_theta must be a number"),
        ({"rope_theta": -1e4}, "rope_theta must be a number"),
        ({"rope_scaling": [1]}, r"rope_scaling must be an object, but is \[1\]"),
        (
            {"rope_scaling": {"type": "ntk", "factor": 2}},
            "type must be one of default, linear, llama3, dynamic, yarn, longrope.* is 'ntk'",
        ),
        ({"rope_parameters": {"rope_type": "yarn"}}, "factor is missing"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "short_factor is missing; .* 4 numbers"),
        (
            {"rope_scaling": {"type": "su", "short_factor": [1.0] * 4, "long_factor": [1, 2, 3]}},
            r"long_factor must be a list of 4 numbers .* but is \[1, 2, 3\]",
        ),
        (
            {"rope_scaling": {"type": "su", "short_factor": [1, 0, 1, 1]}},
            "short_factor must be a list of 4 numbers above 0",
        ),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling: factor is missing"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "factor must be a number"),
        (
            {"rope_parameters": {**LLAMA3, "high_freq_factor": 1.0}},
            "high_freq_factor must be greater than low_freq_factor, which is 1, but is 1.0",
        ),
        (
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
            "partial_rotary_factor must be 1",
        ),
        (
            {"rope_parameters": {"rope_theta": 1e4}, "rope_scaling": {"type": "default"}},
            "both rope_parameters and rope_scaling",
        ),
    ],
)
def test_unsupported_configs_are_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        read(tmp_path, **changes)
    assert "config.json" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[]", r"expected a JSON object, but got \[\]"),
        (b"null", "expected a JSON object, but got null"),
        (b"\xff\xfe", "not valid JSON"),
        (b'{"model_type": "llama", "model_type": "llama"}', "'model_type' is given twice"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"vocab_size": 1' + b"0" * 5000 + b"}", "not valid JSON"),
    ],
)
def test_a_file_that_is_not_a_json_object_is_refused(
    tmp_path: Path, text: bytes, message: str
) -> None:
    (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(ModelError, match=message):
        ModelConfig.from_folder(tmp_path)


def test_missing_folder_file_or_a_folder_in_its_place(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="not a folder"):
        ModelConfig.from_folder(tmp_path / "nowhere")
    with pytest.raises(ModelError, match=r"config\.json: not found"):
        ModelConfig.from_folder(tmp_path)
    (tmp_path / "config.json").mkdir()
    with pytest.raises(ModelError, match="cannot be read"):
        ModelConfig.from_folder(tmp_path)


def test_an_error_stays_short_however_long_the_value(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        read(tmp_path, hidden_size="9" * 100_000)
    assert len(str(caught.value)) < 300 + len(str(tmp_path))


# ---- RoPE ------------------------------------------------------------------------------------


@pytest.mark.parametrize("head_dim", [8, 12, 64, 100, 128])
@pytest.mark.parametrize(
    "parameters",
    [
        {"rope_type": "default", "rope_theta": 10000.0},
        {"rope_type": "default", "rope_theta": 5e5},
        {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
        {"rope_theta": 5e5, **LLAMA3},
        {"rope_theta": 5e5, **LLAMA3, "factor": 32.0},
        {"rope_theta": 1e4, **LLAMA3, "original_max_position_embeddings": 64},
        {"rope_theta": 1e4, "rope_type": "dynamic", "factor": 4.0},
        {"rope_theta": 1e4, **YARN},
        {"rope_theta": 1e6, **YARN, "beta_fast": 8.0, "beta_slow": 2.0, "truncate": False},
        {"rope_theta": 1e4, **YARN, "attention_factor": 1.5},
        {"rope_theta": 1e4, **YARN, "mscale": 0.7, "mscale_all_dim": 1.2},
    ],
)
def test_inv_freq_equals_transformers(
    tmp_path: Path, head_dim: int, parameters: dict[str, Any]
) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    rope = read(tmp_path, head_dim=head_dim, rope_parameters=parameters).rope
    ours = rope.inv_freq(head_dim)
    theirs = LlamaRotaryEmbedding(
        LlamaConfig(
            hidden_size=8 * head_dim,
            num_attention_heads=8,
            head_dim=head_dim,
            max_position_embeddings=2048,
            rope_parameters=dict(parameters),
        )
    )
    assert ours.dtype == np.float64
    assert ours.shape == (head_dim // 2,)
    assert rope.attention_factor == pytest.approx(theirs.attention_scaling, rel=1e-12)
    # Theirs is float32: the power costs ln(theta) roundings, the blend magnifies one by `factor`.
    rounding = 2.0**-23
    rtol = rounding * (np.log(parameters["rope_theta"]) + parameters.get("factor", 1.0))
    np.testing.assert_allclose(ours, theirs.inv_freq.numpy(), rtol=rtol)


@pytest.mark.parametrize(
    ("scaling", "n_positions"),
    [
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}, 8192),
        ({"type": "yarn", "factor": 4.0}, 8192),
        (YARN, 2048),
        ({**YARN, "factor": 2.5}, 2048),
        ({"type": "yarn", "factor": 1e6}, MAX_CONTEXT),
        ({**LLAMA3, "original_max_position_embeddings": 2048}, 2048),
        ({"type": "linear", "factor": 4.0}, 2048),
    ],
)
def test_yarn_stretches_the_context(
    tmp_path: Path, scaling: dict[str, Any], n_positions: int
) -> None:
    """Qwen's makers have users add it to config.json, where max_position_embeddings stays as it
    was; vLLM multiplies the same two numbers."""
    assert read(tmp_path, rope_scaling=scaling).context == n_positions


@pytest.mark.parametrize("n_tokens", [64, 65])
def test_longrope_scales_by_the_context_it_runs_with(tmp_path: Path, n_tokens: int) -> None:
    import torch
    from transformers import Phi3Config
    from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

    short, long = [1.0, 1.25, 1.5, 3.0], [1.0, 4.0, 16.0, 40.0]
    given = {"rope_type": "longrope", "short_factor": short, "long_factor": long}
    sizes = {"hidden_size": 64, "num_attention_heads": 8, "max_position_embeddings": 2048}
    config = Phi3Config(**sizes, original_max_position_embeddings=64, rope_parameters=dict(given))
    theirs = Phi3RotaryEmbedding(config)
    position = torch.tensor([[n_tokens - 1]])
    cos, sin = theirs(torch.zeros(1), position)
    ours = read(tmp_path, rope_scaling=given, original_max_position_embeddings=64).rope
    angles = (n_tokens - 1) * ours.inv_freq(8, n_tokens)
    for got, want in ((np.cos(angles), cos), (np.sin(angles), sin)):
        np.testing.assert_allclose(got * ours.attention_factor, want[0, 0, :4].numpy(), atol=1e-5)


def test_llama3_keeps_short_wavelengths_and_scales_long_ones() -> None:
    plain = RopeConfig(5e5).inv_freq(128)
    scaled = RopeConfig(5e5, "llama3", 8.0, 1.0, 4.0, 8192).inv_freq(128)
    wavelength = 2 * np.pi / plain
    assert np.array_equal(scaled[wavelength < 2048], plain[wavelength < 2048])
    np.testing.assert_allclose(scaled[wavelength > 8192], plain[wavelength > 8192] / 8, rtol=1e-15)
    between = (wavelength > 2048) & (wavelength < 8192)
    assert between.any()
    assert np.all((scaled[between] < plain[between]) & (scaled[between] > plain[between] / 8))


# ---- recommended sampling settings -----------------------------------------------------------


def test_generation_defaults_with_and_without_do_sample(tmp_path: Path) -> None:
    assert GenerationDefaults.from_folder(tmp_path) == GenerationDefaults()
    settings = {"temperature": 0.6, "top_k": 50, "top_p": 0.9, "repetition_penalty": 1.1}
    write(tmp_path, {}, {**settings, "do_sample": True})
    assert GenerationDefaults.from_folder(tmp_path) == GenerationDefaults(0.6, 50, 0.9, None, 1.1)
    write(tmp_path, {}, {**settings, "top_k": -1, "do_sample": True})
    assert GenerationDefaults.from_folder(tmp_path).top_k == 0, "as in vLLM, −1 keeps all tokens"
    write(tmp_path, {}, settings)
    assert GenerationDefaults.from_folder(tmp_path) == GenerationDefaults(repetition_penalty=1.1)


def test_a_model_without_recommendations_gets_settings_with_which_it_writes_sense() -> None:
    card = GenerationDefaults(temperature=0.2, top_p=0.9)
    penalty_alone, own = GenerationDefaults(repetition_penalty=1.1), GenerationDefaults(top_k=50)
    assert recommended_settings(penalty_alone) == SamplingParams(
        temperature=0.7, top_p=0.95, min_p=0.05, repetition_penalty=1.1
    )
    assert recommended_settings(own) == SamplingParams(top_k=50)
    assert own.or_those_of(card) == own.or_those_of(None) == own
    assert penalty_alone.or_those_of(card) == card
    assert recommended_settings(card) == SamplingParams(temperature=0.2, top_p=0.9)


def test_an_engine_says_whether_its_settings_are_recommended() -> None:
    folder, options = random_llama.folder("tiny"), LoadOptions(backend="torch", slots=1)
    for card in (None, GenerationDefaults(temperature=0.2)):
        engine = Engine.load(folder, options, card=card)
        engine.close()
        assert engine.info.recommended == (card is not None)
        assert engine.info.defaults.temperature == (0.2 if card else 0.7)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": -1}, "temperature must be a number from 0 to 10"),
        ({"top_k": 0.5}, "top_k must be an integer"),
        ({"top_k": -2}, "top_k must be an integer"),
        ({"top_p": "high"}, "top_p must be a number"),
        ({"do_sample": "yes"}, "do_sample must be true or false"),
    ],
)
def test_generation_defaults_out_of_range(
    tmp_path: Path, values: dict[str, Any], message: str
) -> None:
    write(tmp_path, {}, {"do_sample": True, **values})
    with pytest.raises(ModelError, match=message):
        GenerationDefaults.from_folder(tmp_path)


NAMED_IDS = ("bos_token_id", "eos_token_id")
"""Keys without a default here: no token is better than another model's."""
REQUIRED = (
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "vocab_size",
    *("n_embd", "n_head", "n_layer", "n_positions"),
)


@pytest.mark.parametrize("kind", MODEL_TYPES)
def test_a_key_that_is_left_out_has_the_value_of_transformers_class(kind: str) -> None:
    """Or it is refused as missing, as the sizes are."""
    made = CONFIG_MAPPING[kind]
    base = json.loads(made().to_json_string(use_diff=False))
    if hasattr(made, "use_sliding_window"):
        base |= {"use_sliding_window": True, "sliding_window": 9}
    base.pop("layer_types", None)  # follows from other keys
    n_compared = 0
    for key in base.keys() - {"model_type", *NAMED_IDS}:
        default = getattr(made, key, ...)
        if not isinstance(default, int | float | str | None):
            continue
        without = {name: value for name, value in base.items() if name != key}
        if key in REQUIRED or (key, kind) == ("rms_norm_eps", "llama"):
            with pytest.raises(ModelError, match="is missing"):
                checked(without)
            continue
        assert checked(without) == checked({**base, key: default}), key
        n_compared += 1
    assert n_compared >= 10


def checked(config: dict[str, Any]) -> ModelConfig:
    return ModelConfig.of(JsonObject("config.json", config), JsonObject("generation", {}))


WINDOWS = {"left out": {}, "null": {"sliding_window": None}, "given": {"sliding_window": 9}}
WITH_WINDOWS = [kind for kind in MODEL_TYPES if hasattr(CONFIG_MAPPING[kind], "sliding_window")]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("kind", WITH_WINDOWS)
def test_windows_are_those_of_transformers(kind: str, window: str) -> None:
    sizes = {"num_hidden_layers": 6, "max_position_embeddings": 8192, "max_window_layers": 3}
    for switched in ({}, {"use_sliding_window": True}):
        config = {"model_type": kind, **sizes, **switched, **WINDOWS[window]}
        theirs = CONFIG_MAPPING[kind](**config)
        kinds = getattr(theirs, "layer_types", None) or ["sliding_attention"] * 6
        size = theirs.sliding_window or None
        windows = [size if each == "sliding_attention" else None for each in kinds]
        base = json.loads(CONFIG_MAPPING[kind]().to_json_string(use_diff=False))
        for key in ("layer_types", "sliding_window", "use_sliding_window", "no_rope_layers"):
            base.pop(key, None)
        assert checked(base | config).sliding_windows == (tuple(windows) if any(windows) else ())


def test_there_are_architectures_with_windows() -> None:
    assert {"mistral", "qwen2", "gemma2", "phi3", "smollm3"} <= set(WITH_WINDOWS)


def test_an_encoder_is_not_run_as_a_model_that_writes(tmp_path: Path) -> None:
    folder = write(tmp_path, {"model_type": "bert", "layer_norm_eps": 1e-12})
    with pytest.raises(ModelError, match=r"is an encoder, .* --embedding-model"):
        ModelConfig.from_folder(folder)
    assert ModelConfig.of_encoder(folder).attention_bias
    for other in ("distilbert", "llama"):
        write(tmp_path, {"model_type": other})
        with pytest.raises(
            ModelError, match=rf"'{other}' is not supported; supported: bert, modernbert, mpnet, "
        ):
            ModelConfig.of_encoder(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"global_rope_theta": 5e3, "local_rope_theta": 300.0, "local_attention": 9},
        {"global_attn_every_n_layers": 2},
        {"layer_types": ["sliding_attention", "full_attention"] * 2 + ["sliding_attention"]},
    ],
    ids=["published", "numbers", "pattern", "layers"],
)
def test_layers_of_modernbert_are_those_of_transformers(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    """As published, and as transformers saves it again."""
    given = {"model_type": "modernbert", "num_hidden_layers": 5, "hidden_size": 24}
    given |= {"num_attention_heads": 2, "vocab_size": 50368, "intermediate_size": 30}
    given |= {"max_position_embeddings": 64} | changes
    theirs = CONFIG_MAPPING["modernbert"](**given)
    saved = json.loads(theirs.to_json_string(use_diff=False))
    for config in (given, saved):
        (tmp_path / "config.json").write_text(json.dumps(config))
        found = ModelConfig.of_encoder(tmp_path)
        for i, kind in enumerate(theirs.layer_types):
            rope = found.rope_of(i)
            assert rope is not None
            assert rope.theta == theirs.rope_parameters[kind]["rope_theta"]
            near = theirs.sliding_window + 1 if kind == "sliding_attention" else None
            assert found.sliding_window_of(i) == near
