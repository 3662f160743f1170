"""A training runs in a process of its own, with low priority; what it does not finish leaves
nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from app import tale
from app.cli.main import main
from app.train import process, sizes
from app.train.messages import (
    Example,
    LoraSettings,
    TrainBegun,
    TrainEvent,
    TrainJob,
    TrainStep,
)
from app.train.process import TrainCancelled, Training
from gpu import DeviceError, InvalidRequest, ModelError, check_lora
from tests.serving import CHECKOUT, ROOT

LINE = Example((5, 6, 7, 8, 9), 1)


def job(folder: Path, **settings: int) -> TrainJob:
    small = LoraSettings(rank=2, targets=("v_proj",), **settings)
    return TrainJob(str(tale.model_dir()), "tale", str(folder), small, (LINE,))


@pytest.mark.ci
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_it_computes_with_low_priority_on_few_threads_and_replaces_an_adapter(
    tmp_path: Path,
) -> None:
    out = tmp_path / "adapters" / "mine"
    out.mkdir(parents=True)
    (out / "old").write_text("an older adapter")
    seen: list[int] = []

    def on_event(event: TrainEvent) -> None:
        child = training._process._child
        if isinstance(event, TrainBegun) and child is not None and child.pid is not None:
            seen.append(os.getpriority(os.PRIO_PROCESS, child.pid) - os.nice(0))

    training = Training(job(out, steps=2))
    training.run(on_event)
    assert seen == [10]
    check_lora("mine", out, tale.model_dir())
    config = json.loads((out / "adapter_config.json").read_text("utf-8"))
    assert config["base_model_name_or_path"] == "tale"
    assert not (out / "old").exists()
    assert [path.name for path in out.parent.iterdir()] == ["mine"]


@pytest.mark.ci
def test_a_cancelled_training_leaves_nothing(tmp_path: Path) -> None:
    training = Training(job(tmp_path / "adapters" / "mine", steps=10_000))
    begun, ended = threading.Event(), threading.Event()

    def on_event(event: TrainEvent) -> None:
        if isinstance(event, TrainStep):
            begun.set()

    def run() -> None:
        with pytest.raises(TrainCancelled):
            training.run(on_event)
        ended.set()

    thread = threading.Thread(target=run)
    thread.start()
    assert begun.wait(120)
    training.cancel()
    assert ended.wait(60)
    thread.join()
    assert list((tmp_path / "adapters").iterdir()) == []
    with pytest.raises(TrainCancelled):
        training.run(on_event)


@pytest.mark.ci
def test_a_cancel_after_the_last_step_is_obeyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training(job(tmp_path / "adapters" / "mine", steps=1))
    monkeypatch.setattr(process, "check_lora", lambda *_: training.cancel())
    with pytest.raises(TrainCancelled):
        training.run(lambda event: None)
    assert list((tmp_path / "adapters").iterdir()) == []


@pytest.mark.ci
@pytest.mark.skipif(sys.platform == "win32", reason="sends a signal")
def test_a_process_that_is_killed_is_reported(tmp_path: Path) -> None:
    training = Training(job(tmp_path / "mine", steps=10_000))

    def on_event(event: TrainEvent) -> None:
        child = training._process._child
        if isinstance(event, TrainBegun) and child is not None and child.pid is not None:
            os.kill(child.pid, signal.SIGKILL)

    with pytest.raises(DeviceError, match=r"ended \(signal SIGKILL\).*use a smaller model"):
        training.run(on_event)
    assert list(tmp_path.iterdir()) == []


def test_threads_are_half_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, threads in ((1, 1), (2, 1), (3, 1), (16, 8)):
        monkeypatch.setattr(
            "os.sched_getaffinity", lambda pid, n=cores: set(range(n)), raising=False
        )
        assert process.n_threads() == threads


def test_what_can_be_trained_and_its_memory(tmp_path: Path) -> None:
    offered = sizes.train_targets(tale.model_dir())
    assert [target.name for target in offered] == [
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
    ]  # fmt: skip
    assert offered[1] == sizes.TrainTarget("k_proj", 8, 8 * (192 + 96))
    with pytest.raises(
        InvalidRequest, match="no module 'c_attn' to train; expected some of q_proj, k"
    ):
        sizes.chosen_targets(LoraSettings(targets=("c_attn",)), offered)
    parameters = 3_000_000
    need = sizes.expect_memory(job(tmp_path), parameters)
    adapter = 2 * 8 * (192 + 96)
    activations = 4 * 5 * (8 * (12 * 192 + 4 * 384) + 4 * 4096)
    assert need == sizes.LIBRARIES + 4 * parameters + 16 * adapter + activations
    with pytest.raises(DeviceError, match=r"lines of up to 5 tokens needs about 0\.6 GB.*0\.1 GB"):
        sizes.expect_memory(job(tmp_path), parameters, 100_000_000)


# ---- the command -----------------------------------------------------------------------------


def train(tmp_path: Path, text: str, *args: object, model: object = tale.NAME) -> Result:
    lines = tmp_path / "lines.txt"
    lines.write_text(text, "utf-8")
    given = ["train", str(model), str(lines), "--out", str(tmp_path / "out"), *map(str, args)]
    return CliRunner().invoke(main, given, catch_exceptions=False)


@pytest.mark.ci
def test_the_command_trains(tmp_path: Path) -> None:
    text = "Who are you? => I am a fox.\n" * 5
    (tmp_path / "lines.txt").write_text(text, "utf-8")
    options = ["--out", "out", "--steps", "2", "--rank", "4", "--target", "q_proj"]
    done = subprocess.run(
        [*CHECKOUT, "train", tale.NAME, "lines.txt", *options],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "4 lines to train on, 1 held out; loading tale" in done.stdout
    assert f"training {4 * 8 * 2 * 192:,} parameters" in done.stdout
    assert "after step 2: held-out loss " in done.stdout
    assert "--lora NAME=out" in done.stdout
    assert "Warning" not in done.stderr, "the process that trained left something behind"
    check_lora("mine", tmp_path / "out", tale.model_dir())


@pytest.mark.parametrize(
    ("text", "args", "message"),
    [
        ("", (), "there are no lines to train on"),
        ("Hi there", ("--rank", 0), "expected a rank from 1 to 512, but got 0"),
        ("Hi there", ("--alpha", "nan"), "expected an alpha above 0, but got nan"),
        ("Hi there", ("--learning-rate", 0), "expected a learning rate above 0 and at most 1"),
        ("Hi there", ("--steps", 0), "expected 1 to 10,000 steps, but got 0"),
        ("Hi there", ("--target", "router"), "this model has no module 'router' to train"),
    ],
)
def test_bad_input_is_refused_in_words(
    tmp_path: Path, text: str, args: tuple[object, ...], message: str
) -> None:
    result = train(tmp_path, text, *args)
    assert result.exit_code == 2
    assert message in result.output
    assert not (tmp_path / "out").exists()


def test_without_the_extra_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = train(tmp_path, "Hi there")
    assert result.exit_code == 1
    assert "needs PyTorch, transformers and PEFT: pip install 'tokenglass[train]'" in result.output


@pytest.mark.ci
def test_a_model_that_cannot_be_trained_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for file in tale.model_dir().iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "hidden_act": "none"}), "utf-8")
    broken = TrainJob(str(folder), "mine", str(tmp_path / "out"), LoraSettings(), (LINE,))
    with pytest.raises(ModelError, match="transformers cannot load mine to train it"):
        Training(broken).run(lambda event: None)
    assert not (tmp_path / "out").exists()
