"""A full or read-only disk gives one clear error line, or makes no difference."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.tale import model_dir

FULL = Path("/dev/full")
NOWHERE = "/dev/null/nowhere"


def generate(stdout: int | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "app", "generate", "Once", "--max-tokens", "5", "--seed", "1"]
    with open(os.devnull if isinstance(stdout, int) else stdout, "w") as target:
        return subprocess.run(
            [*command, "--model", str(model_dir())],
            stdout=stdout if isinstance(stdout, int) else target,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            cwd=Path(__file__).parent.parent,
            env={**os.environ, "TOKENGLASS_CACHE": os.devnull, **environment},
        )


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
def test_a_full_disk_gives_one_error_line() -> None:
    done = generate(FULL)
    assert done.returncode == 1
    assert done.stderr == "Error: cannot write the output: No space left on device\n"


@pytest.mark.slow
def test_without_a_writable_cache_the_text_is_the_same() -> None:
    usual = generate(subprocess.PIPE)
    nowhere = generate(
        subprocess.PIPE,
        HOME=NOWHERE,
        TMPDIR=NOWHERE,
        XDG_CACHE_HOME=NOWHERE,
        XDG_RUNTIME_DIR=NOWHERE,
        MESA_SHADER_CACHE_DIR=NOWHERE,
    )
    assert nowhere.returncode == 0, nowhere.stderr
    assert nowhere.stdout == usual.stdout
    assert usual.stdout.strip()
