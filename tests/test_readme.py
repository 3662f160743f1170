"""Commands and code of the README do what it says, with the bundled model and a real engine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving import CHECKOUT, ROOT, serving
from tests.test_mutants import MUTANTS

README = (ROOT / "README.md").read_text("utf-8")


def block(language: str, beginning: str) -> str:
    """Return the fenced code of the README that has a line beginning with `start`."""
    found = re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    (one,) = [code for code in found if re.search(rf"^{re.escape(beginning)}", code, re.MULTILINE)]
    return str(one)


def printed(*command: object) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_python_example_generates_a_text(tmp_path: Path) -> None:
    """In any folder."""
    code = block("python", "from gpu import")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) > 20


def test_the_generate_command_writes_a_story_for_the_prompt() -> None:
    line = re.search(r'^tokenglass generate (--chat) "(.*)"$', block("sh", "tokenglass run"), re.M)
    assert line is not None
    text = printed(*CHECKOUT, "generate", line[1], line[2], "--seed", 7)
    assert "fox" in text
    assert "lantern" in text


def test_the_figures_are_those_of_the_documents() -> None:
    """They cannot stay behind when a table is measured again."""
    speed = (ROOT / "docs/benchmarks.md").read_text("utf-8")
    row = re.search(r"^\| tale \| f16 \| \S+ \| (\d+) \| (\d+) \| .* \| ([\d.]+) \|$", speed, re.M)
    assert row is not None
    assert f"{row[1]} tokens a second in f16, {float(row[3]):.1f} times PyTorch" in README
    assert f"{row[2]} tokens a second with every layer's statistics" in README
    accuracy = (ROOT / "docs/models.md").read_text("utf-8")
    bound = re.search(r"^\| architecture \| models \| f32, ≤ (\S+) \|", accuracy, re.M)
    assert bound is not None
    assert f"by more than {bound[1]} of the largest" in README
    faults = re.search(r"(\d+) deliberate faults in shaders and page", README)
    assert faults is not None
    assert int(faults[1]) == len(MUTANTS)


@pytest.mark.slow
def test_the_export_command_writes_a_page(tmp_path: Path) -> None:
    line = re.search(r"^tokenglass (export .*) site && ", block("sh", "tokenglass export"), re.M)
    assert line is not None
    printed(*CHECKOUT, *line[1].split(), tmp_path / "site")
    assert (tmp_path / "site" / "index.html").is_file()
    n_bytes = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert n_bytes < 12_000_000, "the site of the bundled model is too large"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving() as address:
        yield address


def test_the_request_is_answered_and_its_seed_repeats_it(address: str) -> None:
    code = block("sh", "curl")
    route = re.search(r"^curl http://127\.0\.0\.1:8000/(\S+)", code)
    body = re.search(r"-d '(\{.*\})'", code)
    assert route is not None
    assert body is not None
    request = urllib.request.Request(
        f"{address}{route[1]}", body[1].encode(), {"Content-Type": "application/json"}
    )
    answers = []
    for _ in range(2):
        with urllib.request.urlopen(request, timeout=120) as answer:
            answers.append(json.load(answer))
    texts = [answer["choices"][0]["message"]["content"] for answer in answers]
    assert texts[0] == texts[1]
    assert 10 < answers[0]["usage"]["completion_tokens"] <= json.loads(body[1])["max_tokens"]
