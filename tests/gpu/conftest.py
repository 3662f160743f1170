"""Fixtures: the device, opened once per run, and trained models. A missing device is a failure: a
suite that checks the GPU's numbers must not pass without one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gpu.checkpoint import uploader
from gpu.checkpoint.packing import pack
from gpu.text.tokenizer import Tokenizer
from gpu.webgpu.device import Device
from gpu.webgpu.kernels import Kernels
from tests.golden import Trained, trained_models
from tests.gpu import other_devices
from tests.gpu.inexact import WAYS
from tests.gpu.ops.rig import Rig
from tests.gpu.shared_device import share, shared_device
from tests.gpu.text import made_tokenizers
from tests.gpu.text.tokenizer_families import FAMILIES


@pytest.fixture(scope="session", autouse=True)
def _one_device() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        share(patch)
        yield


@pytest.fixture(scope="session")
def device() -> Device:
    """The best adapter, opened as users get it: trusted shaders and raw replay, unless
    TOKENGLASS_CHECKED is set. The engines of tests have it too."""
    return shared_device()


@pytest.fixture(scope="session")
def checked_device() -> Device:
    """A device that checks every call and every load."""
    return Device.open(checked=True)


@pytest.fixture(scope="session")
def kernels(device: Device) -> Kernels:
    return Kernels(device)


def pytest_addoption(parser: pytest.Parser) -> None:
    help = "run every op again with the lanes of its workgroups in other orders"
    parser.addoption("--lane-orders", action="store_true", help=help)
    help = "trace the memory accesses of every op, and fail where lanes race"
    parser.addoption("--races", action="store_true", help=help)
    help = "let the device pose as one of another kind"
    parser.addoption("--pose", choices=other_devices.KINDS, help=help)
    help = "let kernels compute as badly as WGSL allows"
    parser.addoption("--inexact", choices=WAYS, help=help)
    help = "what memory holds where nothing was written"
    parser.addoption("--leftovers", choices=other_devices.LEFTOVERS, help=help)


def pytest_configure(config: pytest.Config) -> None:
    Rig.lane_orders = bool(config.getoption("lane_orders", default=False))
    Rig.races = bool(config.getoption("races", default=False))
    patch = pytest.MonkeyPatch()  # for the whole run
    if kind := config.getoption("pose", default=None):
        other_devices.pose(patch, kind)
    if way := config.getoption("inexact", default=None):
        other_devices.make_inexact(patch, way)
    if name := config.getoption("leftovers", default=None):
        Rig.leftover = other_devices.LEFTOVERS[name]
        other_devices.leave(patch, Rig.leftover)


@pytest.fixture(scope="session")
def rig(device: Device, kernels: Kernels) -> Rig:
    return Rig(device, kernels)


@pytest.fixture(
    scope="session",
    params=[
        pytest.param(model, id=model.name, marks=[pytest.mark.slow] if i else [])
        for i, model in enumerate(trained_models())
    ],
)
def trained(request: pytest.FixtureRequest) -> Trained:
    """A trained model with its golden texts: the bundled one and, for slow tests, stories260k if it
    is available."""
    model: Trained = request.param
    return model


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the chunks that the host quantises while weights are loaded."""
    names: list[str] = []

    def noted(dtype: str, rows: Any, name: str, out: Any) -> Any:
        names.append(name)
        return pack(dtype, rows, name, out)

    monkeypatch.setattr(uploader, "pack", noted)
    return names


@pytest.fixture(scope="module", params=FAMILIES)
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Tokenizer:
    """One tokenizer of each family."""
    make, config = FAMILIES[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    return Tokenizer.load(made_tokenizers.save(folder, make(), config))
