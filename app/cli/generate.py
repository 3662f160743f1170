"""`tokenglass generate`: one run, written to the terminal as it comes. The engine is in this
process, since there is nobody else whom its end could hurt."""

from __future__ import annotations

import secrets
from typing import Any

import click
import msgspec

from app.config import Settings
from app.engines import Tokenizer
from app.loras import find_loras
from app.models import find_model
from app.progress_line import fetch_with_line
from app.prompts import prompt_ids
from app.protocol import Message
from app.server import load_engine
from gpu import Interventions, LoraStrength, Run, check_lora


def write(settings: Settings, prompt: str, params: dict[str, Any], *, chat: bool) -> bool:
    """Write the text to standard output, and seed and speed to standard error.

    False when Ctrl+C ended it; what was written stays. Raises `EngineError`s, before anything is
    written when the request is wrong.
    """
    loras = find_loras(settings.lora)
    model = find_model(settings, loras=loras)
    fetch_with_line(model)
    for lora, folder in loras.items():
        check_lora(lora, folder, model.path)
    ids = _prompt_ids(model.tokenizer, prompt, chat)
    engine = load_engine(
        settings,
        model.path,
        lambda done, message: None,
        name=model.name,
        loras=loras,
        tokenizer=model.engine_tokenizer,
    )
    try:
        params.setdefault("seed", secrets.randbits(32))
        wanted = msgspec.structs.replace(engine.info.defaults, **params)
        reach = Interventions(loras=tuple(LoraStrength(lora, 1.0) for lora in loras))
        return _stream(engine.generate(ids, wanted, reach=reach), wanted.seed)
    finally:
        engine.close()


def _prompt_ids(tokenizer: Tokenizer, prompt: str, chat: bool) -> list[int]:
    if chat and tokenizer.chat_template is not None:
        return prompt_ids(tokenizer, messages=[Message("user", prompt)])
    if chat:
        click.echo("this model has no chat template: it continues the text instead", err=True)
    return prompt_ids(tokenizer, prompt)


def _stream(run: Run, seed: int | None) -> bool:
    n_tokens = 0
    try:
        for token in run:
            click.echo(token.text, nl=False)
            n_tokens += 1
    except KeyboardInterrupt:
        run.cancel()
    click.echo()
    if run.done is None:
        return False
    speed = run.done.timings.predicted_per_second
    how = f"{speed:.1f} per second, seed {seed}, ended by {run.done.reason}"
    click.echo(f"{n_tokens} tokens, {how}", err=True)
    return True
