"""The file of a report, and the page made from it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from gpu.bench.machine.page import page
from gpu.bench.machine.results import FORMAT, Machine, Report
from gpu.errors import EngineError
from gpu.files.replace_file import replace_file

MAX_BYTES = 16 << 20
"""Largest file that is read, far above what is written."""
FOR_ALL = 0o644
"""Permissions of a report, which is made to be shown."""


class ReportFileError(EngineError):
    """The file of a report cannot be used; the message says why."""


def expect_usable(path: Path) -> None:
    """Raise ReportFileError for a path where no report can be kept."""
    if path.suffix == ".md":
        raise ReportFileError(f"{path}: the report is JSON; name it .json, its page gets .md")
    if path.is_dir():
        raise ReportFileError(f"{path} is a folder; give the name of a file")
    if not path.parent.is_dir():
        raise ReportFileError(f"{path}: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise ReportFileError(f"{path}: the folder {path.parent.resolve()} cannot be written")


def page_path(path: Path) -> Path:
    return path.with_suffix(".md")


def read(path: Path) -> Report | None:
    """Return the report in a file; None if there is no file. Raises ReportFileError for a file that
    is no report, which must not be replaced."""
    if not path.exists():
        return None
    try:
        if not path.is_file():  # opening a pipe would wait for its writer
            raise ValueError("it is not a file")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES:,} bytes")
        report = msgspec.json.decode(data, type=Report)
        if report.format != FORMAT:
            raise ValueError(f"its format is {report.format}, this version writes {FORMAT}")
    except (OSError, ValueError, RecursionError) as error:
        raise ReportFileError(
            f"{path} is there but is not a report that this version can continue ({error}); "
            "choose another name, or delete it"
        ) from None
    return report


def begin(path: Path, machine: Machine, began: str) -> tuple[Report, str]:
    """Return the report to continue, or a new one, and a sentence about which; "" for a first one.

    An earlier report of another machine or version is kept under another name. Raises
    ReportFileError for a file that is no report, and if another file has the name of the page.
    """
    found = read(path)
    if found is None:
        if page_path(path).exists():
            raise ReportFileError(
                f"{page_path(path)} is there, and the page of the report would replace it; choose "
                "another name, or delete it"
            )
        return Report(machine, began), ""
    if differs := machine.differs_from(found.machine):
        kept = _free_name(path)
        os.replace(path, kept)
        with contextlib.suppress(OSError):
            os.replace(page_path(path), page_path(kept))
        return Report(machine, began), f"starting anew: {differs}; the old report is {kept}"
    n = sum(len(part.done) for part in found.parts.values())
    found.machine = machine
    return found, f"continuing {path}, which has {n} results"


def write(path: Path, report: Report) -> None:
    """Write the report and its page; readers see the old files or the new ones. Raises
    ReportFileError."""
    try:
        replace_file(path, msgspec.json.format(msgspec.json.encode(report), indent=1), FOR_ALL)
        replace_file(page_path(path), page(report).encode(), FOR_ALL)
    except OSError as error:
        raise ReportFileError(f"{path} cannot be written: {error.strerror or error}") from None


def _free_name(path: Path) -> Path:
    """Return a name beside `path` that no file has."""
    number = 1
    while (found := path.with_name(f"{path.stem}.old{number}{path.suffix}")).exists():
        number += 1
    return found
