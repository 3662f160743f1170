"""Install what a machine without a GPU needs to run the engine, if the user has the rights.

    python -m app.cli.software_device             a software Vulkan driver, if no adapter is found
    python -m app.cli.software_device --chromium  the same, and the browser for the tests

This works on Debian and Ubuntu, as root or with sudo without a password. Otherwise the command to
run is printed and the exit status is 1.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

import click

from gpu import devices

DRIVER_PACKAGES = ("mesa-vulkan-drivers", "libvulkan1")
BROWSERS = ("chromium-headless-shell", "chromium")
"""Programs on the path, best first. The first has no windows, which cost a tenth of a page test."""
BROWSER_PACKAGES = ("chromium-headless-shell",)


@click.command()
@click.option("--chromium", is_flag=True, help="Also install the browser for the tests.")
def main(chromium: bool) -> None:
    """Install the missing system packages, or print the command that does."""
    missing: list[str] = []
    if not devices():
        missing += DRIVER_PACKAGES
    if chromium and not browser():
        missing += BROWSER_PACKAGES
    if not missing:
        return
    prefix = privilege()
    command = install_command(missing)
    if prefix is None or shutil.which("apt-get") is None:
        click.echo(f"Tokenglass needs {' '.join(missing)}. On Debian and Ubuntu run:", err=True)
        click.echo(f"    sudo apt-get update && sudo {' '.join(command)}", err=True)
        sys.exit(1)
    click.echo(
        f"Installing {' '.join(missing)} (a software GPU driver{' and a browser' * chromium})"
    )
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for step in (["apt-get", "update", "-q"], command):
        done = subprocess.run([*prefix, *step], env=environment, stdout=subprocess.DEVNULL)
        if done.returncode:
            click.echo(f"`{' '.join(step)}` failed with status {done.returncode}", err=True)
            sys.exit(1)


def install_command(packages: Sequence[str]) -> list[str]:
    return ["apt-get", "install", "-y", "-q", "--no-install-recommends", *packages]


def privilege() -> list[str] | None:
    """Return the prefix of a command that needs root; None if there is no way to get root."""
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        return []
    if (
        shutil.which("sudo")
        and subprocess.run(["sudo", "-n", "true"], check=False, capture_output=True).returncode == 0
    ):
        return ["sudo", "-n"]
    return None


def browser() -> str | None:
    """Return the Chromium for the tests: TOKENGLASS_CHROMIUM, or one on the path, or None."""
    found = filter(None, map(shutil.which, BROWSERS))
    return os.environ.get("TOKENGLASS_CHROMIUM") or next(found, None)


if __name__ == "__main__":
    main()
