"""Report on this machine for an issue: versions, memory, adapters and how the engine uses them."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of

import click

from app import version
from app.cli.errors import errors
from app.models.free_memory import host_bytes
from gpu import AdapterInfo, DeviceError, devices, policy_choices, wgpu_versions

PACKAGES = ("numpy", "safetensors", "tokenizers", "torch")
GIB = 1 << 30


@click.command()
def doctor() -> None:
    """Report versions, memory, adapters and how the engine uses them, to paste into an issue."""
    with errors():
        for line in report():
            click.echo(line)


def report() -> Iterator[str]:
    """Yield the lines of the report."""
    yield f"tokenglass {version()}, Python {platform.python_version()}, {platform.platform()}"
    yield ", ".join(f"{name} {found}" for name, found in package_versions().items())
    host = host_bytes()
    yield f"free memory of the host: {'unknown' if host is None else f'{host / GIB:.1f} GiB'}"
    try:
        found = devices()
    except DeviceError as error:
        yield f"adapters cannot be listed: {error}"
        return
    if not found:
        yield "no adapter: install a Vulkan driver (Mesa's lavapipe runs on any CPU)"
    for number, adapter in enumerate(found):
        yield ""
        yield from adapter_lines(number, adapter)


def adapter_lines(number: int, adapter: AdapterInfo) -> Iterator[str]:
    """Yield the lines about one adapter."""
    kind = "software" if adapter.software else adapter.kind
    yield f"{number}  {adapter.name}  ({adapter.backend}, {kind}; {adapter.driver})"
    yield f"   features: {', '.join(adapter.features) or 'none of those the engine can use'}"
    if adapter.lacks:
        yield f"   lacks: {', '.join(adapter.lacks)}"
    if any(adapter.subgroup_sizes):
        least, most = adapter.subgroup_sizes
        yield f"   subgroups: {least} to {most} lanes"
    for name, limit in adapter.limits.items():
        yield f"   {name}: {limit:,}"
    for name, value, reason in policy_choices(adapter):
        yield f"   {name}: {value} ({reason})"


def package_versions() -> dict[str, str]:
    """Return the versions of the libraries that the engine uses."""
    return wgpu_versions() | {name: _version(name) for name in PACKAGES}


def _version(package: str) -> str:
    try:
        return version_of(package)
    except PackageNotFoundError:
        return "not installed"
