"""Errors that a notebook shows in one line."""

from __future__ import annotations


class InOneLine(Exception):
    """An error that a notebook shows without a traceback; its message says what to do."""

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]
