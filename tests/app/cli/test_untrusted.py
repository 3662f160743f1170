"""Text of models and documents on a terminal, and in a file."""

from __future__ import annotations

import io
import sys

import pytest

from app.cli.errors import BadInput, Failure
from app.cli.serve import tell
from app.cli.untrusted import echo_untrusted

HOSTILE = "a\x1b[2Jb\x1b]0;title\x07\tc\r\nd\re\x9b31m\x7fé 火\n"


class Terminal(io.StringIO):
    """Standard output of a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_no_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(newline="")
    monkeypatch.setattr(sys, "stdout", terminal)
    echo_untrusted(HOSTILE, nl=False)
    assert terminal.getvalue() == "a�[2Jb�]0;title�\tc\nd�e�31m�é 火\n"


def test_a_file_gets_the_text_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO(newline="")
    monkeypatch.setattr(sys, "stdout", file)
    echo_untrusted(HOSTILE)
    assert file.getvalue() == HOSTILE + "\n"


def test_an_error_has_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    """It may quote the names of an upstream's models, or what a file says."""
    for error in (Failure, BadInput):
        error("it has: m\x1b]0;title\x07").show()
        assert capsys.readouterr().err == "Error: it has: m�]0;title�\n"


def test_a_line_of_the_server_is_one_line_without_control_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tell("Ready: m\x1b[2J\nTokenglass is at http://elsewhere/")
    assert capsys.readouterr().out == "Ready: m�[2J�Tokenglass is at http://elsewhere/\n"
