"""Terminals that cannot show every character."""

import io
import sys

from nanogpt.cli import tolerate_any_text


def test_a_terminal_of_another_encoding_shows_question_marks(monkeypatch):
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii"))
    tolerate_any_text()
    print("sha256 86c4e6aa9db7…", flush=True)
    assert shown.getvalue() == b"sha256 86c4e6aa9db7?\n"
