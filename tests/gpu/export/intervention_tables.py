"""Tables of interventions as bytes, by the engine's own code: what engines in other languages are
compared with."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from gpu.config import ModelConfig
from gpu.export.recording import PROFILES
from gpu.interventions.active import InterventionSchedule
from gpu.interventions.messages import (
    HeadFactor,
    Ids,
    Interventions,
    LayerFactor,
    Patch,
    Steer,
    encode_interventions,
)
from gpu.interventions.resolved import resolve
from gpu.plans.intervention_buffers import InterventionBuffers
from gpu.step import Floats
from gpu.webgpu.buffers import Memory, Tensor
from gpu.webgpu.null_device import open_null_device
from tests.gpu.models import random_llama

MODEL = "odd36"
"""Its vectors end within a block of 32."""
N_SLOTS = 3
N_CASES = 60
N_PROMPT = 6
FACTORS = (0.0, 1.0, 0.1, -8.0, 1.7)
TEXTS = ("ab", "c", "defg", "ba", "xyz")

State = Callable[[Ids], Floats]


def reference(seed: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return random interventions with all that is needed to make tables of them, and what the
    engine's tables are after each.

    given  {model, limits, tensors, cases, states}: sizes; shape and initial bytes of each table;
           {slot, first, steered, position, wanted}: interventions, where they and their steers
           begin to act, and the position of the row that is computed; residual streams by ids
    held   {next, acts, tables}: the position of the next change, whether anything acts, and the
           bytes of each table in base64
    """
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    config = ModelConfig.from_folder(random_llama.folder(MODEL))
    states: dict[Ids, Floats] = {}

    def last_state(ids: Ids) -> Floats:
        if ids not in states:
            shape = (config.n_layers + 1, config.hidden_size)
            states[ids] = numbers.standard_normal(shape).astype(np.float32)
        return states[ids]

    buffers = InterventionBuffers(config, N_SLOTS, Memory(open_null_device(PROFILES["portable"])))
    tensors = {
        name: {"shape": tensor.shape, "initial": _base64(tensor)}
        for name, tensor in buffers.tables().items()
    }
    cases = [_case(rng, config) for _ in range(N_CASES)]
    held = [_held(case, config, buffers, last_state) for case in cases]
    given = {
        "model": {name: getattr(config, name) for name in ("n_layers", "n_heads", "hidden_size")},
        "limits": {"slots": N_SLOTS - 1},
        "tensors": tensors,
        "cases": [case | {"wanted": msgspec.to_builtins(case["wanted"])} for case in cases],
        "states": {",".join(map(str, ids)): state.tolist() for ids, state in states.items()},
    }
    return given, held


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
    )


def _held(
    case: dict[str, Any], config: ModelConfig, buffers: InterventionBuffers, last_state: State
) -> dict[str, Any]:
    encoded = encode_interventions(case["wanted"], config, lambda text: [*map(ord, text)])
    schedule = InterventionSchedule()
    resolve(encoded, last_state).add_to(schedule, case["first"], case["steered"])
    active = schedule.at(case["position"])
    buffers.set(case["slot"], active)
    return {
        "next": schedule.next_change(case["position"], 99),
        "acts": active.acts_on_base,
        "tables": {name: _base64(tensor) for name, tensor in buffers.tables().items()},
    }


def _base64(tensor: Tensor) -> str:
    contents = tensor.buffer.contents
    data = np.zeros(tensor.n_bytes, np.uint8) if contents is None else contents
    return base64.b64encode(data[: tensor.n_bytes].tobytes()).decode()
