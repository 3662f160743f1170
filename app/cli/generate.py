"""`tokenglass generate`: one run, streamed to the terminal. The engine runs in this process."""

from __future__ import annotations

import secrets
from typing import Any

import click
import msgspec

from app.cli.errors import INTERRUPTED, errors
from app.cli.options import ENGINE_SETTINGS, settings_options
from app.cli.untrusted import echo_untrusted
from app.config import Settings
from app.engine.loading import load_engine
from app.engine_client import Tokenizer
from app.models.drafts import check_draft, find_draft
from app.models.loras import find_loras
from app.models.progress_line import fetch_with_line, find_with_line
from app.prompt.prompts import prompt_ids
from app.protocol.messages import Message
from gpu import SAMPLING_SETTINGS, Interventions, LoraStrength, Request, Run, check_lora


def sampling_options(function: Any) -> Any:
    """Add an option for each sampling setting."""
    for setting in reversed(SAMPLING_SETTINGS):
        if setting.name != "first_index":
            flag = f"--{setting.name.replace('_', '-')}"
            function = click.option(flag, type=setting.type, help=setting.declared.help)(function)
    return function


@click.command()
@click.argument("prompt")
@settings_options(ENGINE_SETTINGS)
@click.option("--chat", is_flag=True, help="Use PROMPT as a chat message and let the model answer.")
@click.option("--stop", multiple=True, help="Text that ends the run; may be repeated.")
@sampling_options
def generate(prompt: str, chat: bool, **values: Any) -> None:
    """Write a continuation of PROMPT to the terminal.

    Sampling settings default to those that the model's makers recommend. Adapters have strength 1.
    """
    settings = Settings(**{name: values.pop(name) for name in ENGINE_SETTINGS})
    params = {name: value for name, value in values.items() if value not in (None, ())}
    with errors():
        finished = write(settings, prompt, params, chat=chat)
    if not finished:
        raise click.exceptions.Exit(INTERRUPTED)


def write(settings: Settings, prompt: str, params: dict[str, Any], *, chat: bool) -> bool:
    """Write the text to standard output, then speed and seed to standard error.

    Return False if Ctrl+C ended the run. Raises EngineError; for an invalid request, before
    anything is written.
    """
    loras = find_loras(settings.lora)
    draft = find_draft(settings)
    model = find_with_line(settings, loras=loras, spare_bytes=-draft.n_bytes if draft else 0)
    if draft is not None:
        check_draft(draft, model.path, model.tokenizer)
    fetch_with_line(model)
    for lora, folder in loras.items():
        check_lora(lora, folder, model.path)
    ids = _prompt_ids(model.tokenizer, prompt, chat)
    engine = load_engine(
        settings, model.source, lambda done, message: None, loras=loras, draft=draft
    )
    try:
        params.setdefault("seed", secrets.randbits(32))
        sampling = msgspec.structs.replace(engine.info.defaults, **params)
        interventions = Interventions(loras=tuple(LoraStrength(lora, 1.0) for lora in loras))
        request = Request(ids, sampling, interventions=interventions)
        return _stream(engine.submit(request), sampling.seed)
    finally:
        engine.close()


def _prompt_ids(tokenizer: Tokenizer, prompt: str, chat: bool) -> list[int]:
    if chat and tokenizer.chat_template is not None:
        return prompt_ids(tokenizer, messages=[Message("user", prompt)])
    if chat:
        click.echo("this model has no chat template, so it continues the text instead", err=True)
    return prompt_ids(tokenizer, prompt)


def _stream(run: Run, seed: int | None) -> bool:
    n_tokens = 0
    try:
        for token in run:
            echo_untrusted(token.text, nl=False)
            n_tokens += 1
    except KeyboardInterrupt:
        run.cancel()
    click.echo()
    if run.done is None:
        return False
    speed = run.done.timings.predicted_per_second
    click.echo(
        f"{n_tokens} tokens, {speed:.1f} per second, seed {seed}, ended by {run.done.reason}",
        err=True,
    )
    return True
