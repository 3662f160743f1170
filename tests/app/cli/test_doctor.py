"""The report of `tokenglass doctor` says what a reader of an issue has to ask for otherwise."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from app import version
from app.cli import doctor
from app.cli.main import main
from gpu import AdapterInfo, DeviceError, devices

CARD = AdapterInfo(
    "A card", "driver 1", "Metal", "discrete GPU", False, ("subgroup",), ("timestamp-query",),
    {"max-buffer-size": 4 << 30},
)  # fmt: skip


def test_every_adapter_is_described_as_the_engine_sees_it() -> None:
    result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == 0, result.output
    first = result.output.splitlines()[0]
    assert first.startswith(f"tokenglass {version()}, Python 3.")
    assert "wgpu-native" in result.output
    for adapter in devices():
        assert adapter.name in result.output
        for name, limit in adapter.limits.items():
            assert f"{name}: {limit:,}" in result.output


def test_a_gpu_is_described_with_reasons() -> None:
    lines = "\n".join(doctor.adapter_lines(3, CARD))
    assert lines.startswith("3  A card  (Metal, discrete GPU; driver 1)\n")
    assert "lacks: timestamp-query" in lines
    assert "max-buffer-size: 4,294,967,296" in lines
    assert "attention: coalesced, splits of 128 keys (a GPU)" in lines
    assert "attention of prompts: shared from 36 workgroups on (predicted faster" in lines
    assert "split_k 64" in lines


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (list, "no adapter: install a Vulkan driver"),
        (lambda: _raise(DeviceError("the loader is broken")), "cannot be listed: the loader"),
    ],
)
def test_a_machine_without_adapters_gets_a_report_too(
    monkeypatch: pytest.MonkeyPatch, found: object, line: str
) -> None:
    monkeypatch.setattr(doctor, "devices", found)
    assert line in "\n".join(doctor.report())


def _raise(error: Exception) -> None:
    raise error
