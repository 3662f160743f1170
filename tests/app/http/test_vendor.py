"""The libraries in static/vendor are those that its README names, byte for byte as npm has them."""

from __future__ import annotations

import hashlib
import json
import re

import pytest

from app import assets
from tests.serving import ROOT

ROW = re.compile(r"\| (\S+) \| ([\d.]+) \| `(\S+)` \| `(\S+)` \| [^|]+ \| `([0-9a-f]{64})` \|")
NPM = ROOT / "tests/js"


def test_every_vendored_file_has_the_version_the_hash_and_the_licence_of_its_row() -> None:
    vendor = assets("static") / "vendor"
    rows = ROW.findall((vendor / "README.md").read_text("utf-8"))
    code = {path.relative_to(vendor).as_posix(): path for path in vendor.rglob("*.js")}
    assert {file for _, _, file, _, _ in rows} == code.keys()
    pinned = json.loads((NPM / "package.json").read_text("utf-8"))["dependencies"]
    assert {library.lower(): version for library, version, *_ in rows} == pinned
    for _, _, file, _, digest in rows:
        assert hashlib.sha256(code[file].read_bytes()).hexdigest() == digest, f"{file} was changed"
        assert (code[file].parent / "LICENSE").is_file(), file


def test_every_vendored_file_is_that_of_its_npm_package() -> None:
    if not (NPM / "node_modules/install.stamp").is_file():
        pytest.skip("`make lint-page` installs the packages to compare with; it needs Node.js")
    rows = ROW.findall((assets("static") / "vendor/README.md").read_text("utf-8"))
    for library, _, file, path, _ in rows:
        packed = NPM / "node_modules" / library.lower() / path
        assert (assets("static") / "vendor" / file).read_bytes() == packed.read_bytes(), file
