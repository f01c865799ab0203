"""Listening sockets, and the connections that a server accepts from them."""

from __future__ import annotations

import asyncio
import errno
import socket
import sys
from collections.abc import Callable
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream
from tornado.netutil import bind_sockets

from ..config import check_int

_FULL = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}  # no more connections for now


def bind(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen on host and port; port 0 picks a free one. Raises ValueError, OSError."""
    check_int("port", port, 0, 65535)
    try:
        return bind_sockets(port, host)
    except OSError as error:
        raise OSError(
            f"cannot listen at {host}, port {port} ({error.strerror}): "
            f"choose another --host, or --port 0 for a free one"
        ) from error


class Connection(IOStream):
    """A client's connection. A client may shut down its sending side and still read the response.

    IOStream treats the end of the client's data as the end of the connection. That is right while a
    request is being read. Later, the client may only have finished sending, as `nc -N` does, or it
    may have disconnected: both look the same here. Then `half_closed` is set and `on_half_close` is
    called; the only way to tell the two apart is to send something.
    """

    half_closed = False
    on_half_close: Callable[[], object] | None = None

    def read_from_fd(self, buf: bytearray | memoryview) -> int | None:
        n = super().read_from_fd(buf)
        if n != 0 or self.reading():
            return n
        self.half_closed = True
        if self.on_half_close is not None:
            self.io_loop.add_callback(self.on_half_close)
        return None  # nothing to read now

    @property
    def broken(self) -> bool:
        """Whether the other side has rejected data sent to it."""
        return not self.closed() and self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0

    # A connection that is shut down counts as readable forever, so stop polling it for reading.

    def _add_io_state(self, state: int) -> None:
        if self.half_closed and not self.reading():
            state &= ~self.io_loop.READ
        if state:
            super()._add_io_state(state)

    def _handle_events(self, fd: Any, events: int) -> None:
        super()._handle_events(fd, events)
        idle = not self.closed() and not self.reading()
        if self.half_closed and idle and self._state and self._state & self.io_loop.READ:
            self._state &= ~self.io_loop.READ
            self.io_loop.update_handler(self.fileno(), self._state)


async def accept(listener: socket.socket, http: HTTPServer, buffer: int) -> None:
    """Accept connections as they arrive; they wait while the process is out of file descriptors.

    Each connection buffers at most `buffer` unread bytes.
    """
    loop = asyncio.get_running_loop()
    warned = False
    while True:
        try:
            connection, address = await loop.sock_accept(listener)
        except ConnectionError:  # the client has already disconnected
            continue
        except OSError as error:
            if error.errno not in _FULL:
                raise
            if not warned:
                cure = f"{error.strerror}; raise the limit with ulimit -n"
                print(f"new connections must wait until others close: {cure}", file=sys.stderr)
            warned = True
            await asyncio.sleep(0.1)
        else:
            http.handle_stream(Connection(connection, max_buffer_size=buffer), address)
