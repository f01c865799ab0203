"""Sockets that listen, and the connections that a server takes from them."""

from __future__ import annotations

import asyncio
import errno
import socket
import sys

from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream
from tornado.netutil import bind_sockets

from ..config import check_int

FULL = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}  # no connection more, for now


def bind(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen there; port 0 takes a free one. Raises ValueError, OSError."""
    check_int("port", port, 0, 65535)
    try:
        return bind_sockets(port, host)
    except OSError as error:
        problem = f"cannot listen at {host}, port {port} ({error.strerror})"
        raise OSError(f"{problem}: choose another --host, or --port 0 for a free one") from error


async def accept(listener: socket.socket, http: HTTPServer, buffer: int) -> None:
    """Take connections as they come; while no descriptor is left for one, they wait.

    Of each, at most `buffer` bytes are held that have not been read yet.
    """
    loop = asyncio.get_running_loop()
    warned = False
    while True:
        try:
            connection, address = await loop.sock_accept(listener)
        except ConnectionError:  # it has left already
            continue
        except OSError as error:
            if error.errno not in FULL:
                raise
            if not warned:
                cure = f"{error.strerror}; raise the limit with ulimit -n"
                print(f"new connections must wait until others close: {cure}", file=sys.stderr)
            warned = True
            await asyncio.sleep(0.1)
        else:
            http.handle_stream(IOStream(connection, max_buffer_size=buffer), address)
