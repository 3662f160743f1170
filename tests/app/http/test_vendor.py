"""The libraries in static/vendor are those that its README names."""

from __future__ import annotations

import hashlib
import re

from app import assets

ROW = re.compile(r"\| (\S+) \| ([\d.]+) \| `(\S+)` \| `\S+` \| [^|]+ \| `([0-9a-f]{64})` \|")


def test_every_vendored_file_has_the_hash_and_the_licence_of_its_row() -> None:
    vendor = assets("static") / "vendor"
    rows = ROW.findall((vendor / "README.md").read_text("utf-8"))
    listed = {file: digest for _, _, file, digest in rows}
    code = {path.relative_to(vendor).as_posix(): path for path in vendor.rglob("*.js")}
    assert listed.keys() == code.keys()
    for name, path in code.items():
        data = path.read_bytes()
        assert hashlib.sha256(data).hexdigest() == listed[name], f"{name} was changed"
        assert (path.parent / "LICENSE").is_file(), name
    for library, version, file, _ in rows:
        beside = code[file].parent / "package.json"
        says = beside if beside.is_file() else code[file]
        head = says.read_text("utf-8")[:400]
        assert library.lower() in head.lower(), f"{file} is of {library}"
        assert version in head, f"{file} is of version {version}"
