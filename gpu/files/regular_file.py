"""Reading of a model's files: regular ones only, and none outside its folder.

Opening a pipe waits for its writer, and a device may never end. A link that came with a model, as
tar and git keep them, could name any file of its user, which would then be shown or exported.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from gpu.errors import ModelError

KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def is_there(path: Path) -> bool:
    """Return whether anything exists at `path`, including a symlink loop, which `Path.exists` does
    not report."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def expect_inside(path: Path) -> None:
    """Raise ModelError if `path` is a link that leaves its folder, other than to the blobs of the
    hub's cache, where snapshots are folders of links: those of its repository, or those that
    repositories share."""
    if not path.is_symlink():
        return
    folder, target = Path(os.path.realpath(path.parent)), Path(os.path.realpath(path))
    of_hub = [parent.parent / "blobs" for parent in folder.parents if parent.name == "snapshots"]
    shared = [
        blobs.parent.parent / "blobs"
        for blobs in of_hub
        if blobs.parent.name.startswith("models--")
    ]
    if not any(target.is_relative_to(root) for root in (folder, *of_hub, *shared)):
        raise ModelError(
            f"{path}: is a link to {target}, outside of its folder; expected a file: copy it "
            "there, or name the folder that it is in"
        )


def open_regular(path: Path, may_link: bool = False) -> BinaryIO:
    """Open a file for reading. Raises ModelError if it is missing, not a regular file, or
    unreadable, and what `expect_inside` raises unless it `may_link` anywhere."""
    try:
        _expect_regular(path, path.stat())
        if not may_link:
            expect_inside(path)
        flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
        file = open(os.open(path, flags), "rb")  # noqa: SIM115 - the caller closes it
        try:
            _expect_regular(path, os.fstat(file.fileno()))  # it may have been replaced
        except BaseException:
            file.close()
            raise
        return file
    except FileNotFoundError:
        raise ModelError(f"{path}: not found; download all the files of the model") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror or error})") from None


def read_regular(path: Path, most: int) -> bytes:
    """Return a file's bytes. Raises ModelError as `open_regular` does, and for more than `most`
    bytes."""
    with open_regular(path) as file:
        n_bytes = os.fstat(file.fileno()).st_size
        try:
            data = file.read(most + 1) if n_bytes <= most else b""
        except OSError as error:
            raise ModelError(f"{path}: cannot be read ({error.strerror or error})") from None
    if max(n_bytes, len(data)) > most:
        raise ModelError(f"{path}: has {max(n_bytes, len(data))} bytes; expected at most {most}")
    return data


def _expect_regular(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        raise ModelError(f"{path}: cannot be read: it is {kind}; expected a regular file")
