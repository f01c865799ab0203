"""A server's addresses and its life: a port, a loop that answers, an end that leaves nothing."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from tornado.httpserver import HTTPServer
from tornado.iostream import StreamClosedError
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from ..config.checks import check_int
from .completions import Completion, Refused, event
from .server import Server

IDLE = 60.0  # seconds after which a connection that asks nothing is closed
BODY_SECONDS = 30.0  # for a body to arrive
BODY = 2**20  # bytes that are read as a request; more is refused
UNREAD = 2**24  # bytes of a body from which on it is refused at its first line
HEADERS = 2**14  # bytes


class Handler(RequestHandler):
    """Answers in JSON; errors in the interface's shape."""

    def initialize(self, server: Server):
        self.server = server

    def set_default_headers(self):
        self.clear_header("Server")
        self.set_header("Content-Type", "application/json")

    def refuse(self, why: Refused):
        """An error as the answer, or as the last event of one that has begun."""
        if self._headers_written:
            self.finish(event(why.body()))
            return
        self.set_status(why.status)
        if why.status in (429, 503):
            self.set_header("Retry-After", "1")
        self.finish(why.body())

    def write_error(self, status_code: int, **more):
        error = more.get("exc_info", (None, None))[1]
        reason = self._reason if status_code < 500 else f"the server failed: {error!r}"
        path, method = self.request.path, self.request.method
        if status_code >= 500:
            self.server.metrics.ended("failed")
        self.finish(Refused(status_code, f"{method} {path[:100]}: {reason}").body())


class Nothing(Handler):
    """Any other address."""

    def prepare(self):
        paths = ", ".join(ADDRESSES)
        self.refuse(Refused(404, f"{self.request.path[:100]} is not here, but {paths}"))


class Models(Handler):
    """The one model that is served."""

    def get(self):
        server = self.server
        model = {"id": server.name, "object": "model", "created": server.created}
        length = server.reader.longest
        model |= {"owned_by": "nanogpt", "max_model_len": length, "root": server.name}
        self.finish({"object": "list", "data": [model]})


class Health(Handler):
    """200 while requests are answered, else why not."""

    def get(self):
        if trouble := self.server.trouble:
            self.refuse(trouble)
        else:
            self.finish({"status": "ok"})


class Numbers(Handler):
    """The metrics."""

    def get(self):
        self.set_header("Content-Type", CONTENT_TYPE_LATEST)
        self.finish(generate_latest(self.server.metrics.registry))


class Completions(Handler):
    """A prompt continued: whole, or token by token as server-sent events."""

    completion: Completion | None = None

    async def post(self):
        server = self.server
        try:
            if len(self.request.body) > BODY:
                raise Refused(413, f"a body has at most {BODY:,} bytes")
            self.completion = completion = server.reader.read(self.request.body)
            server.trace(completion.request.id, "received", completion.begun)
            with server.admit(completion):
                last = await (self._stream if completion.stream else self._whole)(completion)
        except StreamClosedError:
            server.metrics.ended((self.completion.error or gone()).outcome)
        except Refused as why:
            server.metrics.ended(why.outcome)
            self.refuse(why)
        else:  # counted before the client can have all of it
            server.metrics.ended("completed")
            self.finish(last)

    async def _whole(self, completion: Completion) -> dict:
        text = ""
        while not completion.reason:
            text += "".join(await completion.receive())
        return completion.whole(text)

    async def _stream(self, completion: Completion) -> str:
        """Send the answer as it comes, but for its end."""
        self.set_header("Content-Type", "text/event-stream; charset=utf-8")
        self.set_header("Cache-Control", "no-cache")
        stream = self.request.connection.stream
        stream.set_nodelay(True)  # a token does not wait for the next
        while True:
            events = completion.events(await completion.receive())
            if completion.reason:
                return events
            if events:
                self.write(events)
                completion.close = stream.close  # who does not read is not waited for
                await self.flush()
                completion.close = None

    def on_connection_close(self):
        super().on_connection_close()
        if self.completion:
            self.completion.end(gone())


def gone() -> Refused:
    """Why the answer ends when nobody is there to read it."""
    return Refused(499, "the client has closed its connection")


ADDRESSES = {
    "/v1/completions": Completions,
    "/v1/models": Models,
    "/health": Health,
    "/metrics": Numbers,
}


def bind(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen there; port 0 takes a free one. Raises ValueError, OSError."""
    check_int("port", port, 0, 65535)
    try:
        return bind_sockets(port, host)
    except OSError as error:
        advice = f"cannot listen at {host}, port {port} ({error.strerror}): choose another --host"
        if error.errno == errno.EADDRINUSE:
            advice = f"port {port} of {host} is in use: choose another, or --port 0 for a free one"
        elif error.errno == errno.EACCES:
            advice = f"port {port} is not for this user: choose one from 1024 on"
        raise OSError(advice) from error


async def run(server: Server, sockets: list, ready: Callable[[Callable[[], None]], None]) -> None:
    """Answer until told to end; then finish what runs, and close everything.

    `ready(end)` is called when requests are taken. `end()` ends it, and again: at once; it must be
    called in this loop.
    """
    ending = asyncio.Event()

    def end():
        if ending.is_set():
            server.hurry()
        ending.set()

    parts = {"server": server}
    http = HTTPServer(
        Application(
            [(path, handler, parts) for path, handler in ADDRESSES.items()],
            default_handler_class=Nothing,
            default_handler_args=parts,
            log_function=lambda handler: None,
        ),
        idle_connection_timeout=IDLE,
        body_timeout=BODY_SECONDS,
        max_header_size=HEADERS,
        max_body_size=UNREAD,
        max_buffer_size=UNREAD,
    )
    server.start()
    http.add_sockets(sockets)
    try:
        ready(end)
        await ending.wait()
        http.stop()
        await server.drain()
    finally:
        http.stop()
        await http.close_all_connections()
        server.thread.stop()


@contextmanager
def serving(server: Server, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """The server's URL while the block runs; it answers in a thread of its own.

        with serving(Server(model, tokenizer, backend=NativeBackend)) as url:
            urllib.request.urlopen(f"{url}/v1/models")

    Port 0 is any free one. The model must not change meanwhile. Raises ValueError, OSError.
    """
    sockets, started = bind(host, port), Future()

    def target():
        async def main():
            loop = asyncio.get_running_loop()
            await run(server, sockets, lambda end: started.set_result((loop, end)))

        try:
            asyncio.run(main())
        except Exception as error:
            if started.done():
                raise
            started.set_exception(error)

    thread = threading.Thread(target=target, name="server", daemon=True)
    thread.start()
    loop, end = started.result()
    host, port = sockets[0].getsockname()[:2]
    try:
        yield f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    finally:
        loop.call_soon_threadsafe(end)
        try:
            thread.join()
        except KeyboardInterrupt:  # again: at once
            loop.call_soon_threadsafe(end)
            thread.join()
