"""`tokenglass plan`: what a model would take, from its config alone."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from app import tale
from app.cli.main import main
from app.cli.plan import amount, duration
from gpu import Sizing
from tests.app.models.fake_hub import FakeHub, Repo

LLAMA = "meta-llama/Llama-3.1-70B"


def run(*args: str) -> Result:
    return CliRunner().invoke(main, ["plan", *args])


def sized(*args: str) -> Sizing:
    done = run(*args, "--json")
    assert done.exit_code == 0, done.output
    return msgspec.json.decode(done.output, type=Sizing)


def test_the_article_in_one_line() -> None:
    done = run(LLAMA, "--context", "2", "--dtype", "f16", "--device", "H100", "--device", "a1")
    assert done.exit_code == 0, done.output
    assert "70,553,706,496 parameters" in done.output
    assert "20 tokens/s for each need 2.78 TB/s" in done.output
    (h100,) = (line for line in done.output.splitlines() if line.split()[:2] == ["H100", "no"])
    assert "24.1" in h100
    assert "2 of them, layer by layer" in h100
    assert "in host memory" in h100


def test_json_has_the_same_in_bytes_and_seconds() -> None:
    found = sized("tale", "--users", "3", "--context", "512", "--rate", "5", "--kv-dtype", "q8")
    assert found.model == tale.NAME
    assert (found.users, found.context, found.rate, found.kv.dtype) == (3, 512, 5, "q8")
    assert [bounds.device.name for bounds in found.devices][:2] == ["H100", "A100"]
    assert all(bounds.fits for bounds in found.devices)
    assert found.bytes_per_s == 5 * found.decode.n_bytes


def test_a_device_of_ones_own() -> None:
    (own,) = sized(
        LLAMA, "--bandwidth", "1000", "--memory", "48", "--flops", "80", "--bus", "32"
    ).devices
    assert own.device.bytes_per_s == 1e12
    assert not own.fits
    assert own.offload is not None
    assert own.offload.decode.seconds == own.offload.step_bytes / 32e9
    (bare,) = sized("tale", "--bandwidth", "10").devices
    assert bare.users is None
    assert bare.first_token is None


def test_the_gpu_of_this_machine_is_measured() -> None:
    (this,) = sized("tale", "--device", "this").devices
    assert this.device.bytes_per_s > 0
    assert this.device.flops_per_s
    assert this.device.source.startswith("measured")


def test_a_model_of_the_hub_is_planned_from_its_config(hub: FakeHub) -> None:
    config = (tale.model_dir() / "config.json").read_bytes()
    hub.repos["someone/story"] = Repo({"config.json": config, "model.safetensors": b"never read"})
    assert sized("someone/story").parameters == sized("tale").parameters
    assert not hub.fetched("model.safetensors")


def test_a_well_known_model_needs_no_hub(hub: FakeHub) -> None:
    assert sized("Qwen/Qwen3-30B-A3B").active_parameters < 4e9
    assert not hub.asked


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("tale", "--device", "H9"), "expected one of H100"),
        (("tale", "--device", "RTX"), "but got 'RTX'"),
        (("tale", "--memory", "3"), "needs --bandwidth"),
        (("tale", "--memory", "0"), "not in the range"),
        (("tale", "--bandwidth", "nan"), "nan is not a finite number"),
        (("tale", "--bandwidth", "inf"), "not in the range"),
        (("tale", "--bandwidth", "1e300"), "not in the range"),
        (("tale", "--bandwidth", "5", "--memory", "nan"), "nan is not a finite number"),
        (("tale", "--bandwidth", "5", "--flops", "nan"), "nan is not a finite number"),
        (("tale", "--context", "100000"), "which the model supports"),
        (("nothing-of-the-kind",), "there is no folder or file"),
    ],
)
def test_what_makes_no_sense_is_refused(args: tuple[str, ...], says: str) -> None:
    done = run(*args)
    assert done.exit_code == 2
    assert says in done.output


def test_a_mixture_and_a_window_are_explained(tmp_path: Path) -> None:
    mixture, windowed = run("mistralai/Mixtral-8x7B-v0.1"), run("gemma-3-270m", "--context", "8192")
    assert "46,702,792,704 parameters, of which a token uses 12,879,925,248" in mixture.output
    assert "without the sliding window of 512 tokens in 15 of 18 layers" in windowed.output


def test_figures_have_three_digits() -> None:
    assert [amount(n, "B") for n in (0, 999, 1000, 99950, 1e6, 2.776e12)] == [
        "0 B", "999 B", "1.00 kB", "100 kB", "1.00 MB", "2.78 TB",
    ]  # fmt: skip
    assert [duration(s) for s in (1.5, 0.0123, 4.2e-5)] == ["1.50 s", "12.3 ms", "42 µs"]
