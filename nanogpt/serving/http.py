"""Listening on the network: uvicorn in a thread, for as long as a with-block."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..config import check_int
from .app import app_of
from .refused import Refused
from .server import DRAIN, Server

HEAD = 2**16  # most bytes of a request's line and headers
HEAD_TIME = 30.0  # seconds in which they must arrive


def bind(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen on host and port; port 0 picks a free one. Raises ValueError, OSError."""
    check_int("port", port, 0, 65535)
    sockets: list[socket.socket] = []
    try:
        # A name such as localhost may have an address of IPv4 and one of IPv6, with one port.
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, *_, address in dict.fromkeys(found):
            where = (address[0], sockets[0].getsockname()[1] if sockets else port)
            # "::" is every address, of IPv4 too, where the system can do that with one socket.
            both = host == "::" and socket.has_dualstack_ipv6()
            listener = socket.create_server(where, family=family, backlog=2048, dualstack_ipv6=both)
            # Connections inherit it: send each token at once, rather than wait for more.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sockets.append(listener)
    except OSError as error:
        for one in sockets:
            one.close()
        resolved = not isinstance(error, socket.gaierror)
        reason = os.strerror(error.errno or 0) if resolved else error.strerror
        raise OSError(
            f"cannot listen at {host}, port {port} ({reason}): "
            f"choose another --host, or --port 0 for a free one"
        ) from error
    return sockets


class _Protocol(H11Protocol):
    """HTTP/1.1 by h11, which uvicorn also uses where httptools is missing.

    It costs a few microseconds more for each event than httptools, 8 instead of 2. But it declines
    every offer of another protocol, as Java's HttpClient sends one in its first request; httptools
    believes the offer, and the body is lost. It sends no chunks to clients of HTTP/1.0 and limits
    the length of headers. Added here: a time limit for a head to arrive, errors as JSON, and an end
    for responses that nobody reads.
    """

    _late: asyncio.TimerHandle | None = None  # closes a connection whose head does not arrive

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {**self.app_state, "abort": transport.abort}  # for `TextResponse`
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Start the time of a head when its first bytes are here; stop it when it is complete."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._unwatch()
        elif self._late is None:
            self._late = self.loop.call_later(HEAD_TIME, self.transport.close)

    def _unwatch(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP, or has too long headers; `msg` is the same for all of them."""
        # In the middle of a response an error cannot be sent any more.
        if self.conn.our_state is not h11.SEND_BODY:
            reason = sys.exc_info()[1]  # h11's error, which uvicorn handles by this call
            refusal = Refused(
                400,
                f"this is not a request of HTTP/1.1 with up to {HEAD:,} bytes of headers: "
                f"{reason!s:.100}",
            )
            body = json.dumps(refusal.body()).encode()
            head = (
                "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()


@contextmanager
def listening(
    server: Server,
    host: str = "127.0.0.1",
    port: int = 0,
    allow_hosts: Iterable[str] = (),
    allow_origins: Collection[str] = (),
) -> Iterator[str]:
    """A with-block in which the server runs, in a separate thread. Yields its URL.

        with listening(Server(model, tokenizer, backend=NativeBackend)) as url:
            urllib.request.urlopen(f"{url}/v1/models")

    Port 0 means any free port. Requests may use an IP address, localhost, `host` or one of
    `allow_hosts` as the Host. Web pages of `allow_origins` may call the server; "*" allows all. The
    model must not change meanwhile. Raises ValueError, OSError.
    """
    # 1. Start, and wait until it has started. Nothing of uvicorn's own is logged but errors.
    app = app_of(server, ["localhost", host, *allow_hosts], allow_origins)
    sockets = bind(host, port)
    address, port = sockets[0].getsockname()[:2]
    url = f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"
    http = uvicorn.Server(
        uvicorn.Config(
            app,
            http=_Protocol,
            h11_max_incomplete_event_size=HEAD,
            ws="none",
            lifespan="on",
            log_config=None,
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=60,  # seconds; clients keep connections for later requests
            timeout_graceful_shutdown=int(DRAIN)
            + 3,  # for clients that do not read: more than GRACE
        )
    )
    thread = threading.Thread(target=http.run, args=[sockets], name="server", daemon=True)
    thread.start()
    while not http.started and thread.is_alive():
        time.sleep(0.001)
    if not http.started:
        raise OSError(f"the server could not start at {url}: the error is logged above")
    try:
        # 2. It runs.
        yield url
    finally:
        # 3. Stop in the order of the data: no new requests, then the texts, then the connections,
        #    then the engine.
        with suppress(RuntimeError):  # the loop has already ended
            server.loop.call_soon_threadsafe(server.drain)
        http.should_exit = True
        thread.join()
