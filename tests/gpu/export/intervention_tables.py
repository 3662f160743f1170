"""Tables of interventions as bytes, by the engine's own code: what engines in other languages are
compared with."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from gpu.checkpoint.open_model import open_model
from gpu.config import ModelConfig
from gpu.export.recording import PROFILES, ShapeLoader
from gpu.interventions.active import InterventionSchedule
from gpu.interventions.messages import (
    HeadFactor,
    Ids,
    Interventions,
    LayerFactor,
    LoraStrength,
    Patch,
    Steer,
    encode_interventions,
)
from gpu.interventions.resolved import resolve
from gpu.load_options import LoadOptions
from gpu.lora.adapter import open_loras
from gpu.runners.loaded_model import LoadedModel
from gpu.step import Floats
from gpu.webgpu.buffers import Memory, Tensor
from gpu.webgpu.null_device import open_null_device
from tests.gpu.lora import random_loras
from tests.gpu.models import random_llama

MODEL = "odd36"
"""Its vectors end within a block of 32."""
N_SLOTS = 3
N_CASES = 60
N_PROMPT = 6
FACTORS = (0.0, 1.0, 0.1, -8.0, 1.7)
LORAS = ("tone", "rhyme", "off")
TEXTS = ("ab", "c", "defg", "ba", "xyz")

State = Callable[[Ids], Floats]


def reference(seed: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return random interventions with all that is needed to make tables of them, and what the
    engine's tables are after each.

    given  {model, limits, tensors, cases, states}: sizes; shape and initial bytes of each table;
           {slot, first, steered, position, wanted}: interventions, where they and their steers
           begin to act, and the position of the row that is computed; residual streams by ids
    held   {next, acts, tables}: the position of the next change, whether the model's own parts are
           changed and whether an adapter acts, and the bytes of each table in base64
    """
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    loaded = _loaded()
    config = loaded.config
    states: dict[Ids, Floats] = {}

    def last_state(ids: Ids) -> Floats:
        if ids not in states:
            shape = (config.n_layers + 1, config.hidden_size)
            states[ids] = numbers.standard_normal(shape).astype(np.float32)
        return states[ids]

    tensors = {
        name: {"shape": tensor.shape, "initial": _base64(tensor)}
        for name, tensor in _tables(loaded).items()
    }
    cases = [_case(rng, config) for _ in range(N_CASES)]
    held = [_held(case, loaded, last_state) for case in cases]
    sizes = {name: getattr(config, name) for name in ("n_layers", "n_heads", "hidden_size")}
    given = {
        "model": {**sizes, "loras": [{"name": name} for name in LORAS]},
        "limits": {"slots": N_SLOTS - 1},
        "tensors": tensors,
        "cases": [case | {"wanted": msgspec.to_builtins(case["wanted"])} for case in cases],
        "states": {",".join(map(str, ids)): state.tolist() for ids, state in states.items()},
    }
    return given, held


def _loaded() -> LoadedModel:
    """Return the model with its tables and adapters on a device that is not there."""
    folder = random_llama.folder(MODEL)
    config, checkpoint = open_model(folder)
    adapter = random_loras.of_model(folder, "attention")
    options = LoadOptions(dtype="f32", slots=N_SLOTS - 1, loras=dict.fromkeys(LORAS, adapter))
    load = ShapeLoader(checkpoint, Memory(open_null_device(PROFILES["portable"])), options.dtype)
    return LoadedModel.make(config, options, load, open_loras(options.loras, config, checkpoint))


def _tables(loaded: LoadedModel) -> dict[str, Tensor]:
    return {**loaded.plans.intervention_buffers.tables(), **loaded.loras.tables()}


def _case(rng: random.Random, config: ModelConfig) -> dict[str, Any]:
    first = rng.randrange(N_PROMPT)
    return {
        "slot": rng.randrange(N_SLOTS),
        "first": first,
        "steered": rng.choice((first, N_PROMPT - 1)),
        "position": rng.randrange(N_PROMPT + 1),
        "wanted": _wanted(rng, config) if rng.random() < 0.9 else Interventions(),
    }


def _wanted(rng: random.Random, config: ModelConfig) -> Interventions:
    layers, heads = range(config.n_layers), range(config.n_heads)
    places = [(layer, head) for layer in layers for head in heads]
    patched = [(layer, position) for layer in layers for position in range(N_PROMPT)]

    def some(among: Any, most: int) -> list[Any]:
        return rng.sample(list(among), rng.randint(0, most))

    def patch(layer: int, position: int) -> Patch:
        prompt = rng.choice(TEXTS)
        return Patch(layer, position, prompt, rng.randrange(len(prompt)))

    return Interventions(
        heads=tuple(HeadFactor(*place, rng.choice(FACTORS)) for place in some(places, 4)),
        attention=tuple(LayerFactor(layer, rng.choice(FACTORS)) for layer in some(layers, 2)),
        mlp=tuple(LayerFactor(layer, rng.choice(FACTORS)) for layer in some(layers, 2)),
        steer=tuple(
            Steer(rng.choice(layers), rng.choice(TEXTS), rng.uniform(-2, 2), rng.choice(("", "q")))
            for _ in range(rng.randint(0, 4))
        ),
        patch=tuple(patch(*place) for place in some(patched, 6)),
        loras=tuple(LoraStrength(name, rng.choice(FACTORS)) for name in some(LORAS, 2)),
    )


def _held(case: dict[str, Any], loaded: LoadedModel, last_state: State) -> dict[str, Any]:
    encoded = encode_interventions(
        case["wanted"], loaded.config, lambda text: [*map(ord, text)], loras=LORAS
    )
    schedule = InterventionSchedule()
    resolve(encoded, last_state).add_to(schedule, case["first"], case["steered"])
    active = schedule.at(case["position"])
    loaded.plans.intervention_buffers.set(case["slot"], active)
    loaded.loras.set(case["slot"], active.loras)
    return {
        "next": schedule.next_change(case["position"], 99),
        "acts": [active.acts_on_base, active.acts_on_loras],
        "tables": {name: _base64(tensor) for name, tensor in _tables(loaded).items()},
    }


def _base64(tensor: Tensor) -> str:
    contents = tensor.buffer.contents
    data = np.zeros(tensor.n_bytes, np.uint8) if contents is None else contents
    return base64.b64encode(data[: tensor.n_bytes].tobytes()).decode()
