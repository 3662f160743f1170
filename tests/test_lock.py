"""requirements.lock has every dependency of pyproject.toml, with hashes and without addresses."""

from __future__ import annotations

import re
import tomllib

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.serving import ROOT

LOCK = (ROOT / "requirements.lock").read_text("utf-8")


def test_every_dependency_is_locked_at_a_version_that_it_allows() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    locked = re.findall(r"^(\S+)==(\S+)", LOCK, re.MULTILINE)
    for dependency in map(Requirement, project["dependencies"]):
        name = canonicalize_name(dependency.name)
        versions = [version for other, version in locked if other == name]
        assert versions, f"{name} is missing: run `make lock`"
        for version in versions:
            assert version in dependency.specifier, f"{name} {version}: run `make lock`"


def test_every_package_has_a_hash_and_none_an_address() -> None:
    entries = LOCK.replace("\\\n", " ").splitlines()
    assert len(entries) > 20
    for entry in entries:
        assert re.match(r"[a-z0-9-]+==\S+ .*--hash=sha256:[0-9a-f]{64}", entry), entry
        assert "://" not in entry
