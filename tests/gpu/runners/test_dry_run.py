"""The dry run of loading needs no device, however large the model is."""

from __future__ import annotations

import pytest

from gpu.checkpoint import uploader
from gpu.runners.dry_run import expect_loadable
from tests.gpu.models import random_llama


@pytest.mark.parametrize("dtype", ["q8", "q4"])
def test_what_a_device_would_quantise_is_read_without_one(
    monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    monkeypatch.setattr(uploader, "DEVICE_PACKS_FROM", 0)
    shares: list[float] = []
    expect_loadable(random_llama.folder("derived_head"), dtype, lambda f, _: shares.append(f))
    assert shares[-1] == 1.0
