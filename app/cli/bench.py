"""`tokenglass bench`: a report of this machine and one of its adapters, to send in an issue."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable
from pathlib import Path

import click

from app import version
from app.cli.doctor import package_versions
from app.cli.errors import INTERRUPTED, BadInput, errors
from app.cli.options import FiniteRange, settings_options
from app.models.free_memory import card_bytes, host_bytes
from gpu import AdapterInfo, DeviceError, devices
from gpu.bench.machine import (
    Machine,
    Report,
    ReportFileError,
    default_policy,
    engine_digest,
    make_report,
    page_path,
)


@click.command()
@click.option(
    "--report", "file", type=click.Path(path_type=Path), metavar="FILE",
    help="File of the report, JSON; a page to read gets the same name with .md. "
    "Default: named after the GPU, in this folder.",
)  # fmt: skip
@click.option(
    "--minutes", type=FiniteRange(0.5, 600), default=10, show_default=True,
    help="Time limit. What does not fit is left out, and the report says so.",
)  # fmt: skip
@settings_options(("adapter",))
def bench(file: Path | None, minutes: float, adapter: str | None) -> None:
    """Check and measure a GPU, and write a report to send in an issue.

    Every operation is compared with NumPy, tiny models of every architecture too; the same step is
    repeated 500 times; then come matrix products, attention, whole models with random weights, and
    other engines if they are installed. No model is needed and nothing is downloaded or sent.

    The file is written as it goes: Ctrl+C, a crash of the driver or the end of the time lose
    nothing, and the same command run again goes on where it ended.
    """
    with errors():
        try:
            path, report = report_machine(file, adapter, minutes, click.echo)
        except ReportFileError as error:
            raise BadInput(str(error)) from None
        except KeyboardInterrupt:
            where = "" if file is None else f"; see {page_path(file)}"
            click.echo(f"stopped{where}; run the same command again to go on", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None
        for line in last_lines(path, report):
            click.echo(line)


def report_machine(
    path: Path | None, wanted: str | None, minutes: float, tell: Callable[[str], None]
) -> tuple[Path, Report]:
    """Make or continue the report of the adapter `wanted` (as --adapter takes it); return its file
    and what it says. Raises DeviceError if there is no such adapter, and ReportFileError."""
    number, adapter = choose(devices(), wanted)
    path = path or default_path(adapter)
    tell(f"{adapter.name} ({adapter.driver}), at most {minutes:g} minutes, to {path}")
    return path, make_report(path, describe(adapter), number, minutes, tell)


def choose(found: list[AdapterInfo], wanted: str | None) -> tuple[int, AdapterInfo]:
    """Return the adapter with this number or part of a name, or the best, and its number."""
    if not found:
        raise DeviceError(
            "no adapter was found; install a Vulkan driver (Mesa's lavapipe runs on any CPU)"
        )
    if not wanted:
        return 0, found[0]
    if wanted.isdecimal() and int(wanted) < len(found):
        return int(wanted), found[int(wanted)]
    for number, adapter in enumerate(found):
        if wanted.lower() in f"{adapter.name} {adapter.driver}".lower():
            return number, adapter
    listing = "; ".join(f"{number}: {adapter.name}" for number, adapter in enumerate(found))
    raise DeviceError(f"no adapter matches {wanted!r}; there are: {listing}")


def describe(adapter: AdapterInfo) -> Machine:
    """Return what `tokenglass doctor` says of this machine and the adapter, as data."""
    return Machine(
        tokenglass=version(),
        engine=engine_digest(),
        python=platform.python_version(),
        platform=platform.platform(),
        versions=package_versions(),
        host_bytes=host_bytes(),
        card_bytes=card_bytes(adapter),
        adapter=adapter,
        policy=default_policy(adapter),
    )


def default_path(adapter: AdapterInfo) -> Path:
    """Return the file of an adapter's report in the current folder."""
    words = "-".join(re.findall(r"[a-z0-9]+", adapter.name.partition("(")[0].lower()))
    return Path(f"tokenglass-{words or 'report'}.json")


def last_lines(path: Path, report: Report) -> list[str]:
    """Return the closing lines: failures, how to go on, and how to send the report."""
    left, n_bad = report.left(), len(report.failures)
    count = "1 failure" if n_bad == 1 else f"{n_bad} failures"
    lines = [f"{count}, see {page_path(path)}" if n_bad else "no failures"]
    if left:
        lines.append(f"not finished: {', '.join(left)}; run the same command again to go on")
    lines.append(
        f"to send it: paste {page_path(path)} into an issue and attach {path} "
        "(it names your GPU, driver and system, nothing else)"
    )
    return lines
