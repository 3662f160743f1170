"""Errors of commands: one line each, with the exit code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from app.config import SettingsError
from app.terminal import printable

INTERRUPTED = 130


class Failure(click.ClickException):
    """Error shown as one line, with exit code 1. It may quote a file or another server."""

    def format_message(self) -> str:
        return printable(self.message)


class BadInput(Failure):
    """Error in what the user gave, shown as one line, with exit code 2."""

    exit_code = 2


@contextmanager
def errors() -> Iterator[None]:
    """Turn errors that users can act on into one line and an exit code."""
    from app.prompt.limited_tokenizer import TextLimitError, TokenizerLimitError
    from gpu import ContextExceeded, EngineError, InvalidRequest, ModelError

    try:
        yield
    except SettingsError as error:
        raise click.UsageError(str(error)) from None
    except (TokenizerLimitError, TextLimitError) as error:
        raise Failure(str(error)) from None
    except (ModelError, InvalidRequest, ContextExceeded) as error:
        raise BadInput(str(error)) from None
    except EngineError as error:
        raise Failure(str(error)) from None
    except BrokenPipeError:  # the reader closed the pipe; click exits silently
        raise
    except OSError as error:
        raise Failure(f"cannot write the output: {error.strerror or error}") from None


def read_text(file: Path) -> str:
    """Return the text of a file, without a byte order mark. Raises BadInput."""
    try:
        return file.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{file}: cannot be read as UTF-8 text ({error})") from None


def read_bytes(file: Path) -> bytes:
    """Return the bytes of a file. Raises BadInput."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise BadInput(f"{file}: cannot be read ({error.strerror or error})") from None
