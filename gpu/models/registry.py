"""The forward pass of each architecture: gpu/models/NAME.py for gpu/architectures/NAME.py."""

from __future__ import annotations

from importlib import import_module

from gpu.architectures import ARCHITECTURES
from gpu.models.decoder import Decoder


def find_model(name: str) -> type[Decoder]:
    """Return the one model that gpu/models/NAME.py defines."""
    module = import_module(f"gpu.models.{name}")
    (model,) = (
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Decoder)
        and value.__module__ == module.__name__
    )
    return model


MODELS = {name: find_model(name) for name in ARCHITECTURES}
