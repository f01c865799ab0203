"""Requests that are not served: the error that says why, in OpenAI's format."""

from __future__ import annotations

import json
from typing import Any


class Refused(Exception):
    """A rejected request: `status` is the HTTP status, `param` the field that is to blame.

    `code` is OpenAI's name for what happened, for programs to read, if it has one.
    """

    def __init__(
        self, status: int, message: str, param: str | None = None, code: str | None = None
    ):
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        """The error in OpenAI's format."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        error = {"type": kind, "param": self.param, "code": self.code}
        return {"error": {"message": str(self)[:1000], **error}}


def show(value: object, most: int = 60) -> str:
    """A value as one line of JSON, truncated to `most` characters."""
    try:
        text = json.dumps(value)
    except RecursionError:  # json can read deeper nesting than it can write
        text = "a value that is nested too deeply"
    return text if len(text) <= most else f"{text[:most]}…"
