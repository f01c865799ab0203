"""A server's life: a port, a loop that answers, and an end at which nothing is left."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets

from ..config.checks import check_int
from ..data.tokenizer import CharTokenizer
from ..model.gpt import GPT
from .handlers import application
from .server import Server

IDLE = 60.0  # seconds after which a connection that asks nothing is closed
BODY = 30.0  # seconds for a body to arrive
HEADERS = 2**14  # bytes


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


@contextmanager
def bound(host: str, port: int) -> Iterator[list[socket.socket]]:
    """What `bind` gives, closed with the block."""
    sockets = bind(host, port)
    try:
        yield sockets
    finally:
        for each in sockets:
            each.close()


def address(sockets: list[socket.socket]) -> str:
    """The URL of what listens at these sockets."""
    host, port = sockets[0].getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


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

    http = HTTPServer(
        application(server),
        idle_connection_timeout=IDLE,
        body_timeout=BODY,
        max_header_size=HEADERS,
        max_body_size=2**62,  # the handler has a limit of its own, and answers
        max_buffer_size=2**20,
        chunk_size=2**16,
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
def serving(server: Server, sockets: list[socket.socket] | None = None) -> Iterator[str]:
    """The server's URL while the block runs; it answers in a thread of its own. Raises OSError.

    It listens at `sockets`, which it closes; None: at a free port of this machine.
    """
    sockets, started = sockets or bind("127.0.0.1", 0), Future()

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
    try:
        yield address(sockets)
    finally:
        loop.call_soon_threadsafe(end)
        try:
            thread.join()
        except KeyboardInterrupt:  # again: at once
            loop.call_soon_threadsafe(end)
            thread.join()


@contextmanager
def running_server(model: GPT, tokenizer: CharTokenizer, **settings) -> Iterator[str]:
    """A server on a free port of this machine, as its URL, until the block ends.

        with running_server(model, tokenizer, backend=NativeBackend) as url:
            urllib.request.urlopen(f"{url}/v1/models")

    `settings` are those of Server. The model must not change meanwhile. Raises ValueError, OSError.
    """
    with serving(Server(model, tokenizer, **settings)) as url:
        yield url
