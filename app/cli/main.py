"""The command line: `tokenglass [serve]`, `run`, `generate`, `perplexity`, `reap`, `weights`,
`devices`, `version`.

Errors are one line. Exit code 2 is for what the user gave (flags, model folder), 1 for the rest.
Imports of the server and the engine are inside the commands: the engine's process imports this
module again, and `--help` should not load a GPU library.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import click

from app import version
from app.config import Dtype, KvDtype, Row, Settings, SettingsError, rows

if TYPE_CHECKING:
    from gpu import DeviceInfo, Probed

INTERRUPTED = 130
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
ENGINE_SETTINGS = (
    "model", "revision", "dtype", "kv_dtype", "backend", "adapter", "lora", "expert_slots",
    "products", "context", "kv_memory", "weight_cache",
)  # fmt: skip


class DefaultGroup(click.Group):
    """A group whose command may be left out: then it is `serve`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ("--help", "-h")):
            args = ["serve", *args]
        return super().parse_args(ctx, args)


def _click_type(row: Row) -> Any:
    if row.type is bool:
        return bool
    kinds = [kind for kind in get_args(row.type) if kind is not type(None)]
    for kind in (row.type, *kinds):
        if get_origin(kind) is Literal:
            return click.Choice(get_args(kind))
    if row.range is not None:
        return click.IntRange(*row.range)
    if row.type is Path or Path in kinds:
        return click.Path(path_type=Path)
    return str


def settings_options(names: tuple[str, ...] | None = None) -> Callable[[Any], Any]:
    """Options for the settings (those in `names`): flag, then environment, then default."""

    def decorate(function: Any) -> Any:
        for row in reversed(rows()):
            if names is None or row.name in names:
                multiple = get_origin(row.type) is tuple
                function = click.option(
                    f"{row.flag}/{row.no_flag}" if row.no_flag else row.flag,
                    type=_click_type(row),
                    default=row.default,
                    multiple=multiple,
                    envvar=row.env,
                    show_envvar=True,
                    show_default=row.default not in (None, ()),
                    help=row.help,
                )(function)
        return function

    return decorate


class Failure(click.ClickException):
    """Something went wrong; one line for the terminal, exit code 1."""


class BadInput(click.ClickException):
    """What the user gave cannot be used; one line for the terminal, exit code 2."""

    exit_code = 2


@contextmanager
def _errors() -> Iterator[None]:
    """Turn the errors that users can act on into one line and an exit code."""
    from app.limited_tokenizer import TextOverLimitError, TokenizerOverLimitError
    from gpu import EngineError, InvalidRequest, ModelError

    try:
        yield
    except SettingsError as error:
        raise click.UsageError(str(error)) from None
    except (TokenizerOverLimitError, TextOverLimitError) as error:
        raise Failure(str(error)) from None
    except (ModelError, InvalidRequest) as error:
        raise BadInput(str(error)) from None
    except EngineError as error:
        raise Failure(str(error)) from None
    except BrokenPipeError:  # the reader has enough; click ends quietly
        raise
    except OSError as error:
        raise Failure(f"the text cannot be written: {error.strerror or error}") from None


@click.group(cls=DefaultGroup, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Tokenglass: a language model you can see through.

    Without a command, serves the playground; `tokenglass serve --help` lists its settings.
    """


window_option = click.option(
    "--window", type=click.IntRange(8), default=512, show_default=True,
    help="Tokens that are read together.",
)  # fmt: skip


@main.command()
@settings_options()
def serve(**values: Any) -> None:
    """Serve the playground and the API."""
    _serve(Settings(**values))


@main.command(name="run")
@click.argument("name")
@settings_options(tuple(row.name for row in rows() if row.name != "model"))
def run_model(name: str, **values: Any) -> None:
    """Serve the model NAME: a folder, or OWNER/MODEL of the Hugging Face hub, such as
    HuggingFaceTB/SmolLM2-135M-Instruct; of a repository of GGUF files OWNER/MODEL:Q4_K_M, or
    OWNER/MODEL:FILE.

    What is not in the local cache of the hub is fetched first, after the model's config and its
    memory have been judged.
    """
    _serve(Settings(model=name, **values))


def _serve(settings: Settings) -> None:
    from app.server import PortError
    from app.server import serve as run

    with _errors():
        settings.checked()
        logging.basicConfig(
            level=settings.log_level.upper(),
            format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        )
        if settings.log_level == "info":  # which the hub's client has for every request
            logging.getLogger("httpx2").setLevel(logging.WARNING)
        try:
            failure = run(settings, click.echo)
        except PortError as error:
            raise Failure(str(error)) from None
    if failure is not None:
        raise Failure(failure)


@main.command()
@click.argument("prompt")
@settings_options(ENGINE_SETTINGS)
@click.option("--chat", is_flag=True, help="Take PROMPT as a message and let the model answer.")
@click.option("--temperature", type=float, help="0 is greedy.")
@click.option("--top-k", type=int, help="Keep the k most likely tokens; 0 keeps all.")
@click.option("--top-p", type=float, help="Keep the likeliest tokens up to this probability.")
@click.option("--min-p", type=float, help="Drop tokens less likely than this × the likeliest.")
@click.option("--repetition-penalty", type=float, help="1 changes nothing.")
@click.option("--seed", type=int, help="The same seed gives the same text.")
@click.option("--max-tokens", type=int, help="Tokens to write at most.")
@click.option("--stop", multiple=True, help="Text that ends the run; may be repeated.")
def generate(prompt: str, chat: bool, **values: Any) -> None:
    """Write a continuation of PROMPT to the terminal.

    Sampling settings that are left out are those the model's makers recommend; adapters act as
    they were trained.
    """
    from app.terminal import write

    settings = Settings(**{name: values.pop(name) for name in ENGINE_SETTINGS})
    params = {name: value for name, value in values.items() if value not in (None, ())}
    with _errors():
        whole = write(settings, prompt, params, chat=chat)
    if not whole:
        raise click.exceptions.Exit(INTERRUPTED)


@main.command()
@settings_options(("model", "revision", "backend", "adapter", "expert_slots", "products"))
@click.option(
    "--text", "file", required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option(
    "--dtype", "dtypes", multiple=True, type=click.Choice(get_args(Dtype)),
    help="Measure weights stored so beside f32; may be repeated.",
)  # fmt: skip
@click.option(
    "--kv-dtype", "kv_dtypes", multiple=True, type=click.Choice(get_args(KvDtype)),
    help="Measure a KV cache stored so beside f16, with weights in f16; may be repeated.",
)  # fmt: skip
@window_option
@click.option(
    "--tokens", type=click.IntRange(2), default=2048, show_default=True,
    help="Tokens of the text at most; their logits wait in a temporary file.",
)  # fmt: skip
def perplexity(
    file: Path,
    dtypes: tuple[str, ...],
    kv_dtypes: tuple[str, ...],
    window: int,
    tokens: int,
    **values: Any,
) -> None:
    """Measure what each storage type of the weights and of the KV cache costs on a text:
    perplexity, divergence of the logits from those of f32 weights or an f16 cache, and how often
    the likeliest token is the same; of caches also the bytes of a token, and all of this by how
    many tokens came before (0 to 127, 128 to 511, … with a --window as long). Without --dtype and
    --kv-dtype all are measured.

    With --products bytes, rows of q8 and q4 are measured with activations rounded to bytes.

    The text (UTF-8) is read in windows that do not overlap.
    """
    from app.perplexity import default_kv_dtypes, lines

    text = _read_text(file)
    with _errors():
        settings = Settings(**values)
        if not dtypes and not kv_dtypes:
            dtypes, kv_dtypes = get_args(Dtype), default_kv_dtypes(settings)
        for line in lines(settings, text, dtypes, kv_dtypes, window, tokens):
            click.echo(line)


@main.command()
@settings_options(("model", "revision", "dtype", "backend", "adapter", "expert_slots"))
@click.option(
    "--text", "file", required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Experts are scored on this text (UTF-8): it should be like what the model will be for.",
)  # fmt: skip
@click.option(
    "--test", "test_file", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Perplexities are measured on this text; on that of --text if left out, which flatters.",
)  # fmt: skip
@click.option(
    "--share", type=click.FloatRange(0, 1), default=0.25, show_default=True,
    help="Of each layer's experts, those to prune.",
)  # fmt: skip
@click.option(
    "--out", required=True, type=click.Path(path_type=Path),
    help="Folder to write the smaller model to; must be new or empty.",
)  # fmt: skip
@window_option
@click.option(
    "--tokens", type=click.IntRange(2), default=8192, show_default=True,
    help="Tokens of each text at most.",
)  # fmt: skip
def reap(
    file: Path,
    test_file: Path | None,
    share: float,
    out: Path,
    window: int,
    tokens: int,
    **values: Any,
) -> None:
    """Prune the experts of a mixture that matter least on a text (REAP, arXiv 2510.13999), and
    write what stays as a smaller model.

    An expert's score is the mean of gate x length of its output over the tokens it was given. The
    weights are written as they were saved; --dtype is for scoring and for the perplexities.
    """
    from app.reap import Plan, lines

    text = _read_text(file)
    test = text if test_file is None else _read_text(test_file)
    with _errors():
        for line in lines(Settings(**values), Plan(text, test, share, out, window, tokens)):
            click.echo(line)


def _read_text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{file}: cannot be read as UTF-8 ({error})") from None


@main.command()
@click.option("--probe", is_flag=True, help="Measure which kernels are fastest, and remember it.")
@settings_options(("adapter",))
def devices(probe: bool, adapter: str | None) -> None:
    """List the GPUs that can run a model; their numbers are for --adapter.

    With --probe, their kernels are measured (a few seconds each) and a table is printed, at its end
    whether products with q8 and q4 weights are faster when their rows are rounded to bytes;
    --adapter limits that to one.
    """
    import gpu

    with _errors():
        found = gpu.devices()
        if not found:
            raise Failure(
                "no GPU was found; install a Vulkan driver (Mesa's lavapipe runs on any CPU), "
                "or use --backend torch"
            )
        if probe and adapter:
            _show_probed(adapter, gpu.probe_device(adapter))
            return
        for number, device in enumerate(found):
            if probe:
                _probe_or_say(str(number), device)
            else:
                _show_device(str(number), device)
                how = "measured" if gpu.is_tuned(device) else "default; --probe measures them"
                click.echo(f"   kernels: {how}")


@main.command()
@click.argument("model", required=False)
@settings_options(("revision", "dtype"))
def weights(model: str | None, revision: str | None, dtype: Dtype) -> None:
    """List the tensors of MODEL, a folder or OWNER/MODEL of the hub; of the bundled model if left
    out.

    Only headers are read, and no GPU is needed: sizes on the device are those that loading it with
    this --dtype would take.
    """
    from app.models import find_model
    from app.progress_line import fetch_with_line
    from app.weights_table import weight_lines
    from gpu import Inventory

    with _errors():
        found = find_model(Settings(model=model, revision=revision, dtype=dtype), must_fit=False)
        fetch_with_line(found)
        for line in weight_lines(Inventory.from_folder(found.path, dtype)):
            click.echo(line)


def _probe_or_say(which: str, device: DeviceInfo) -> None:
    """One of several: where it cannot be measured, the others still can."""
    from gpu import DeviceError, probe_device

    try:
        _show_probed(which, probe_device(which))
    except DeviceError as error:
        _show_device(which, device)
        click.echo(f"   cannot be measured: {error}")


def _show_device(which: str, device: DeviceInfo) -> None:
    kind = "software" if device.software else device.kind
    click.echo(f"{which}  {device.name}  ({device.backend}, {kind}; {device.driver})")
    if device.lacks:
        click.echo(f"   runs without {', '.join(device.lacks)}")


def _show_probed(which: str, probed: Probed) -> None:
    _show_device(which, probed.device)
    width = max(len(row.name) for row in (*probed.rows, *probed.products))
    click.echo(f"   {'kernels':{width}}  decode Gweights/s  prefill GFLOP/s")
    for row in (*probed.rows, *probed.products):
        prefill = "–" if row.prefill_gflops is None else f"{row.prefill_gflops:.1f}"
        figures = f"{row.decode_gweights:17.2f}  {prefill:>15}"
        click.echo(f"   {row.name:{width}}  {figures}{'  chosen' if row.chosen else ''}")
    for fault in probed.faults:
        click.echo(f"   left out: {fault}")
    if probed.n_left:
        click.echo(f"   {probed.n_left} more were not reached in time")
    if not probed.kept:
        click.echo("   not remembered: the cache folder (TOKENGLASS_CACHE) cannot be written")


@main.command(name="version")
def show_version() -> None:
    """Show the version."""
    click.echo(f"tokenglass {version()}")
