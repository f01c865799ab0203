"""A text, streamed from any server that has the completions part of OpenAI's interface."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit


def stream(url: str, *, limit: float = 60.0, **fields) -> Iterator[str]:
    """The pieces of one answer, as they come. `fields` are those of the request.

    `limit` is the longest silence, in seconds. Raises OSError when the server cannot be reached or
    breaks off, and ValueError with its own words when it refuses.
    """
    connection = HTTPConnection(urlsplit(url).netloc, timeout=limit)
    body, kind = json.dumps({**fields, "stream": True}), {"Content-Type": "application/json"}
    try:
        connection.request("POST", "/v1/completions", body, kind)
        answer = connection.getresponse()
        if answer.status != 200:
            said = answer.read(2000).decode("utf-8", "replace")
            raise ValueError(f"{url} answered {answer.status}: {said}")
        for line in answer:
            if line.startswith(b"data:") and (data := line[5:].strip()) != b"[DONE]":
                yield from _texts(json.loads(data))
    except HTTPException as error:
        raise OSError(f"{url} broke off: {error!r}") from error
    finally:
        connection.close()


def _texts(data: dict) -> list[str]:
    if error := data.get("error"):
        raise ValueError(f"the server ended its answer: {error}")
    return [choice["text"] for choice in data["choices"] if choice["text"]]


def status(url: str, path: str, limit: float = 2.0) -> int:
    """The status of a GET, 0 when nobody answers."""
    connection = HTTPConnection(urlsplit(url).netloc, timeout=limit)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, HTTPException):
        return 0
    finally:
        connection.close()
