"""Installing a software device on a machine without a GPU driver; nothing is really installed."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
from click.testing import CliRunner, Result

from app.cli import software_device
from gpu import DeviceInfo

FOUND = DeviceInfo("a GPU", "a driver", "Vulkan", "discrete GPU", software=False)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Commands that would have been run, as root, with apt-get and without an adapter."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(software_device, "devices", list)
    monkeypatch.setattr(software_device, "privilege", list)
    monkeypatch.setattr(software_device.shutil, "which", lambda name: f"/usr/bin/{name}")
    return commands


def invoke(*args: str) -> Result:
    return CliRunner().invoke(software_device.main, args, catch_exceptions=False)


def test_with_an_adapter_nothing_happens(
    ran: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(software_device, "devices", lambda: [FOUND])
    result = invoke()
    assert (result.exit_code, result.output, ran) == (0, "", [])


def test_without_one_the_driver_is_installed(ran: list[list[str]]) -> None:
    assert invoke().exit_code == 0
    assert ran[0][:2] == ["apt-get", "update"]
    assert ran[1][:2] == ["apt-get", "install"]
    assert ran[1][-2:] == ["mesa-vulkan-drivers", "libvulkan1"]


def test_sudo_goes_first(ran: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software_device, "privilege", lambda: ["sudo", "-n"])
    invoke()
    assert [command[:3] for command in ran] == [["sudo", "-n", "apt-get"]] * 2


@pytest.mark.parametrize("lacking", ["rights", "apt-get"])
def test_without_permission_the_exact_command_is_printed(
    ran: list[list[str]], monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    if lacking == "rights":
        monkeypatch.setattr(software_device, "privilege", lambda: None)
    else:
        monkeypatch.setattr(software_device.shutil, "which", lambda name: None)
    result = invoke()
    assert result.exit_code == 1
    assert "sudo apt-get install -y -q --no-install-recommends mesa-vulkan-drivers libvulkan1" in (
        result.stderr
    )
    assert ran == []


def test_a_failing_installation_is_named(
    ran: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 100)
    )
    result = invoke()
    assert result.exit_code == 1
    assert "`apt-get update -q` failed with status 100" in result.stderr


def test_the_tests_also_need_a_browser(
    ran: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(software_device, "devices", lambda: [FOUND])
    monkeypatch.setattr(software_device, "browser", lambda: None)
    assert invoke("--chromium").exit_code == 0
    assert ran[-1][-1] == "chromium-headless-shell"
    assert invoke().output == ""
