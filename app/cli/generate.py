"""`tokenglass generate`: one run, streamed to the terminal. The engine runs in this process."""

from __future__ import annotations

import secrets
from typing import Any

import click
import msgspec

from app.config import Settings
from app.engine.loading import load_engine
from app.engine_client import Tokenizer
from app.models.drafts import check_draft, find_draft
from app.models.loras import find_loras
from app.models.progress_line import fetch_with_line, find_with_line
from app.prompt.prompts import prompt_ids
from app.protocol.messages import Message
from gpu import Interventions, LoraStrength, Request, Run, check_lora


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
            click.echo(token.text, nl=False)
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
