"""Listening on the network: uvicorn in a thread, for as long as a with-block."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress

import uvicorn

from ..config import check_int
from .app import app_of
from .server import DRAIN, Server


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
            # An event takes 8 microseconds, 2 with httptools. But h11 declines the offer of another
            # protocol, such as the one in the first request of Java's HttpClient (Kludex/uvicorn
            # issue 2722): httptools believes the offer, and the body is lost.
            http="h11",
            ws="none",
            lifespan="on",
            log_config=None,
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=60,  # seconds; clients keep connections for later requests
            # For clients that do not read or do not send all of their body: more than GRACE.
            timeout_graceful_shutdown=int(DRAIN) + 3,
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
