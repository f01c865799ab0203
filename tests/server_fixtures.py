"""A server of a tiny model, an engine that steps when it is told to, and a client of few words."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from urllib.parse import urlsplit

from conftest import seeded, tiny_model

from nanogpt.data import CharTokenizer
from nanogpt.engines.generation import complete
from nanogpt.sampling import PLAIN
from nanogpt.serving.http import listening
from nanogpt.serving.server import Server

CHARS = CharTokenizer("abcdefghijkl\n")
JSON = {"Content-Type": "application/json"}
HEAD = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def expected(model, prompt: str, n: int, sampling=PLAIN, seed: int = 0, **settings) -> str:
    """The text that `generate` gives."""
    tokens = CHARS.encode(prompt)[None]
    text = complete(model, tokens, n, sampling, generator=seeded(seed), **settings)
    return CHARS.decode(text[0, len(prompt) :])


def post(url: str, **fields) -> tuple[int, dict]:
    """The status and the body of an answer that is not streamed."""
    return ask(url, "POST", "/v1/completions", json.dumps(fields))


def ask(url: str, method: str, path: str, body=None, headers=None) -> tuple[int, dict]:
    connection = HTTPConnection(urlsplit(url).netloc, timeout=20)
    try:
        connection.request(method, path, body, JSON | (headers or {}))
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or "{}")
    finally:
        connection.close()


def events(url: str, path: str = "/v1/completions", **fields) -> Iterator[dict]:
    """The events of a streamed answer, as they come. Raises ValueError at an error."""
    connection = HTTPConnection(urlsplit(url).netloc, timeout=20)
    try:
        body = json.dumps({**fields, "stream": True})
        connection.request("POST", path, body, JSON)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        assert "text/event-stream" in answer.headers["Content-Type"]
        for data in (line[6:] for line in answer if line.startswith(b"data: ")):
            if data == b"[DONE]\n":
                return
            event = json.loads(data)
            if "error" in event:
                raise ValueError(event["error"]["message"])
            yield event
        raise AssertionError("there was no end")
    finally:
        connection.close()


def stream(url: str, **fields) -> Iterator[str]:
    """The pieces of a streamed text, as they come."""
    choices = (choice for event in events(url, **fields) for choice in event["choices"])
    return (choice["text"] for choice in choices if choice["text"])


def send(url: str, buffer: int = 0, **fields) -> socket.socket:
    """A connection that has asked for a completion, and has read nothing yet.

    With `buffer` the system keeps about as many bytes for it and no more.
    """
    body = json.dumps(fields).encode()
    head = f"{HEAD}Content-Length: {len(body)}\r\n\r\n"
    connection = socket.socket()
    connection.settimeout(20)
    if buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    host, port = urlsplit(url).netloc.split(":")
    connection.connect((host, int(port)))
    connection.sendall(head.encode() + body)
    return connection


def until(condition, seconds: float = 20.0) -> None:
    """Wait until it holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.002)


class Counted(Server):
    """A server of a tiny model by default, and what can be seen of it."""

    def __init__(self, model=None, **settings):
        super().__init__(model or tiny_model(), CHARS, **settings)

    @property
    def drawn(self) -> int:
        """How many tokens its engine has drawn."""
        return self.metrics.registry.get_sample_value("nanogpt_generated_tokens_total")

    @property
    def free(self) -> bool:
        """Whether nobody holds a block."""
        return not any(self.engine.block_manager.ref_counts)


class Gated:
    """Lets an engine make so many steps, and counts how often it was asked to."""

    def __init__(self, engine):
        self.allowed = threading.Semaphore(0)
        self.calls = 0
        self.step = engine.step
        engine.step = self

    def __call__(self):
        self.calls += 1
        self.allowed.acquire()
        return self.step()

    def open(self, steps: int = 10_000) -> None:
        self.allowed.release(steps)


@contextmanager
def gated(**settings):
    """A server, its URL, and its gate: nothing is computed until it opens.

    At the end it opens by itself, but not before the last answer has ended: a step that nobody
    waits for is computed, and no answer is finished that the test wants to see broken off.
    """
    server = Counted(**settings)
    gate = Gated(server.engine)
    opens = threading.Thread(target=lambda: (until(lambda: not server.answers), gate.open()))
    with listening(server) as url:
        try:
            yield server, url, gate
        finally:
            opens.start()
    server.engine.audit()
