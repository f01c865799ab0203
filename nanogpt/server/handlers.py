"""HTTP: what each address answers, and how a body that is too long is turned away."""

from __future__ import annotations

import json
import time

from tornado.iostream import StreamClosedError
from tornado.web import Application, RequestHandler, stream_request_body

from .completions import Asked, Refused, Shapes, Writer, event
from .server import Answer, Gone, Server

LINGER = 2.0  # seconds for which the rest of a body that is too long is thrown away


@stream_request_body
class Handler(RequestHandler):
    """Errors in the interface's shape; bodies of limited length."""

    def initialize(self, server: Server):
        self.server, self.data, self.late, self.answer = server, bytearray(), False, None

    def set_default_headers(self):
        self.clear_header("Server")
        self.set_header("Content-Type", "application/json")

    async def prepare(self):
        length = self.request.headers.get("Content-Length", "")
        if length.isdigit() and int(length) > self.server.limits.body:
            await self._too_long()

    async def data_received(self, chunk: bytes):
        if not self.late:
            self.data += chunk
            if len(self.data) > self.server.limits.body:  # of a length that was not announced
                await self._too_long()

    async def _too_long(self):
        """Answer at once. A client that is still sending could not read it if we closed, too."""
        self.late, self.data = True, bytearray()
        why = Refused(413, f"a body has at most {self.server.limits.body:,} bytes")
        self.server.metrics.requests["invalid"] += 1
        self.set_header("Connection", "close")
        waits = self.request.headers.get("Expect")  # for leave to send
        if waits or self.request.method != "POST":
            await self.refuse(why)
            return
        self.request.connection.set_body_timeout(LINGER)
        data = json.dumps(why.body()).encode()
        self.set_status(413)
        self.set_header("Content-Length", str(len(data)))
        self.write(data)
        await self.flush()

    async def refuse(self, why: Refused):
        """An error as the answer, or as the last event of one that has begun."""
        if self._headers_written:
            await self.finish(event(why.body()))
            return
        self.set_status(why.status)
        if why.status in (429, 503):
            self.set_header("Retry-After", "1")
        await self.finish(why.body())

    def write_error(self, status_code: int, **more):
        error = more.get("exc_info", (None, None))[1]
        reason = self._reason if status_code < 500 else f"the server failed: {error!r}"
        path, method = self.request.path, self.request.method
        why = Refused(status_code, f"{method} {path[:100]}: {reason}")
        self.finish(why.body())

    def on_connection_close(self):
        super().on_connection_close()
        if self.answer:
            self.answer.end(Gone())


class Nothing(Handler):
    """Any other address."""

    async def prepare(self):
        paths = ", ".join(path for path, _ in ADDRESSES)
        await self.refuse(Refused(404, f"{self.request.path[:100]} is not here, but {paths}"))


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

    async def get(self):
        if trouble := self.server.trouble:
            await self.refuse(trouble)
        else:
            self.finish({"status": "ok"})


class Numbers(Handler):
    """The metrics."""

    def get(self):
        self.set_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.finish(self.server.metrics.text(self.server.thread.load))


class Completions(Handler):
    """A prompt continued: whole, or token by token as server-sent events."""

    async def post(self):
        if self.late:
            self.finish()
            self.request.connection.close()
            return
        self.counted, self.begun = False, time.perf_counter()
        try:
            asked = self.server.reader.read(bytes(self.data))
            self._note(asked, "received", self.begun)
            with self.server.admit(asked, self._close) as self.answer:
                await (self._stream if asked.stream else self._whole)(asked, self.answer)
            self._note(asked, "finished", time.perf_counter())
        except Refused as why:
            self._count(why.outcome)
            await self.refuse(why)
        except (Gone, StreamClosedError):
            self._count("timeout" if self._timed_out() else "aborted")
        finally:
            self._count("failed")

    def _count(self, outcome: str):
        """How the request ended: known before the client can have the last of its answer."""
        if not self.counted:
            self.counted = True
            self.server.metrics.requests[outcome] += 1

    async def _whole(self, asked: Asked, answer: Answer):
        writer, shapes = self._writer(asked), Shapes(self.server.name, asked)
        text = ""
        while not writer.reason:
            text += "".join(await self._pieces(writer, answer))
        data = json.dumps(shapes.choice(text, writer.reason) | shapes.usage(writer.n_new))
        self.set_header("Content-Length", str(len(data)))  # ASCII
        self._count("completed")
        await self._send(asked, data)
        self.finish()

    async def _stream(self, asked: Asked, answer: Answer):
        writer, shapes = self._writer(asked), Shapes(self.server.name, asked)
        self.set_header("Content-Type", "text/event-stream; charset=utf-8")
        self.set_header("Cache-Control", "no-cache")
        self.request.connection.stream.set_nodelay(True)  # a token does not wait for the next
        while not writer.reason:
            pieces = await self._pieces(writer, answer)
            last = len(pieces) - 1 if writer.reason else None
            events = [
                event(shapes.choice(piece, writer.reason if i == last else None))
                for i, piece in enumerate(pieces)
                if piece or i == last
            ]
            if writer.reason:
                self._count("completed")
            if events:
                await self._send(asked, "".join(events))
        if asked.usage:
            self.write(event({**shapes.head, "choices": [], **shapes.usage(writer.n_new)}))
        self.finish(event("[DONE]"))

    async def _pieces(self, writer: Writer, answer: Answer) -> list[str]:
        """What the tokens that have come add to the text, one piece each."""
        pieces = []
        for news in await answer.receive():
            if not writer.n_new:
                self.server.metrics.first_token(news.at - self.begun)
            pieces.append(writer.add(news.token, news.finished))
            if writer.reason:
                break
        return pieces

    async def _send(self, asked: Asked, text: str):
        """Write, and wait until the client's connection has taken it."""
        self.answer.sending = True
        self.write(text)
        await self.flush()
        self.answer.sending = False
        self._note(asked, "sent", time.perf_counter())

    def _writer(self, asked: Asked) -> Writer:
        return Writer(self.server.tokenizer.chars, asked.stop)

    def _note(self, asked: Asked, what: str, at: float):
        self.server.trace(asked.request.id, what, at)

    def _timed_out(self) -> bool:
        return self.answer is not None and isinstance(self.answer.error, Refused)

    def _close(self):
        self.request.connection.stream.close()


ADDRESSES = [
    ("/v1/completions", Completions),
    ("/v1/models", Models),
    ("/health", Health),
    ("/metrics", Numbers),
]


def application(server: Server) -> Application:
    """All addresses of a server."""
    parts = {"server": server}
    return Application(
        [(path, handler, parts) for path, handler in ADDRESSES],
        default_handler_class=Nothing,
        default_handler_args=parts,
        log_function=lambda handler: None,
    )
