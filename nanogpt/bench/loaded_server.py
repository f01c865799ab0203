"""A server under load, ours or another: requests are sent over HTTP when they arrive."""

from __future__ import annotations

import json
import string
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import Any

from ..serving.sequence import Request
from ..verify.server import RemoteServer
from .replies import Replies, Reply
from .tables import number_of

CHARS = "\n !$&',-.3:;?" + string.ascii_uppercase + string.ascii_lowercase  # Tiny Shakespeare's
_PATIENCE = 600.0  # seconds without a byte from a server, after which a request has failed


class LoadedServer(RemoteServer):
    """A server with /v1/completions. Calling it with greedy requests returns the complete replies.

    Each request is sent when it arrives, whether or not others have been answered. `errors` counts
    failed requests by reason. A reply's token is the index of its character in `chars`, or -1. A
    server with another vocabulary gets prompts of a few characters of its own text. Raises
    ValueError, ConnectionError.
    """

    def __init__(self, url: str, chars: str = CHARS):
        super().__init__(url)
        self.chars = chars if self.reads(chars) else self.letters
        self.errors: Counter[str] = Counter()

    def __call__(self, requests: list[Request]) -> Replies:
        replies: Replies = {}
        start = time.perf_counter()

        def serve(request: Request) -> None:
            time.sleep(max(0.0, start + request.arrival - time.perf_counter()))
            try:
                replies[request.id] = self._reply(request, start)
            except (OSError, HTTPException, ValueError) as error:
                self.errors[f"{type(error).__name__}: {error}"] += 1

        # A thread for each request, so that none waits for another; almost always it sleeps.
        with ThreadPoolExecutor(len(requests)) as clients:
            list(clients.map(serve, requests))
        if not replies:
            reason = list(self.errors)[-1]
            raise ConnectionError(f"{self.name}: no request was answered: {reason}")
        return replies

    def _reply(self, request: Request, start: float) -> Reply:
        """One streamed completion."""
        body = {
            "model": self.model,
            **self._prompt(request),
            "max_tokens": request.max_new_tokens,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        headers = {"Content-Type": "application/json"}
        url = f"{self.name}/v1/completions"
        asked = urllib.request.Request(url, json.dumps(body).encode(), headers)
        # While other requests are timed, chunks are only collected, with the times they came at.
        chunks: list[tuple[float, bytes]] = []
        try:
            with self._opener.open(asked, timeout=_PATIENCE) as response:
                while data := response.read1(2**16):
                    chunks.append((time.perf_counter() - start, data))
        except urllib.error.HTTPError as error:
            message = error.read(200).decode(errors="replace")
            raise ConnectionError(f"HTTP {error.code}: {message}") from None
        return self._read(chunks)

    def _prompt(self, request: Request) -> dict[str, Any]:
        """The prompt's fields of the request body."""
        n = len(self.chars)
        return {"prompt": "".join(self.chars[token % n] for token in request.prompt.tolist())}

    def _reply_of(self, text: str, n: int | None, moments: list[float]) -> Reply:
        """The reply for a text of n tokens, if the server counted them."""
        if n not in (None, len(text)):
            return Reply([None] * n, moments)
        return Reply([self.chars.find(char) for char in text], moments)

    def _read(self, chunks: list[tuple[float, bytes]]) -> Reply:
        """The reply's text, and the time of each event that had text.

        If the stream reports usage, that is the number of tokens. Raises ConnectionError.
        """
        text = ""
        moments = []
        end = None
        n = None
        for moment, event in _events(chunks):
            n = (event.get("usage") or {}).get("completion_tokens", n)
            for choice in event.get("choices", []):
                piece = choice.get("text")
                if piece:
                    text += piece
                    moments.append(moment)
                if choice.get("finish_reason") is not None:
                    end = moment
        if n and end is not None and not moments:  # control tokens have no text
            moments.append(end)
        if end is None or not moments:
            after = number_of(len(moments), "event")
            raise ConnectionError(f"the reply stopped after {after} and is incomplete")
        return self._reply_of(text, n, moments)


class LoadedTokenServer(LoadedServer):
    """A server of a pretrained model, which accepts token prompts and replies with text.

    It continues after an end token, so that every request gets all of its new tokens.
    """

    def _prompt(self, request: Request) -> dict[str, Any]:
        return {"prompt": request.prompt.tolist(), "ignore_eos": True}

    def _reply_of(self, text: str, n: int | None, moments: list[float]) -> Reply:
        """The reply for a text whose tokens are unknown; without usage each event counts as one."""
        return Reply([None] * (n or len(moments)), moments, text)


def _events(chunks: list[tuple[float, bytes]]) -> Iterator[tuple[float, dict[str, Any]]]:
    """The events up to [DONE]: JSON objects with their times. Raises ConnectionError."""
    rest = b""
    for moment, piece in chunks:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            data = line.removeprefix(b"data:").strip()
            if data == b"[DONE]":
                return
            if line.startswith(b"data:"):  # otherwise an empty line or a comment
                event = json.loads(data)
                if event.get("error"):
                    raise ConnectionError(f"the server sent {data.decode()[:200]}")
                yield moment, event
