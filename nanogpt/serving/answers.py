"""Responses with generated text: whole, or as server-sent events while tokens are sampled."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import ExitStack

import anyio
from fastapi import Response
from starlette.concurrency import run_in_threadpool
from starlette.types import Message, Receive, Scope, Send

from .completions import Completion, event, usage
from .requests import Refused
from .server import Server

GRACE = 1.0  # seconds in which a client must read its response after an error has ended it
_IGNORED = 200  # characters of the header that names ignored fields


class TextResponse(Response):
    """The response to one request: its texts, which the engine writes meanwhile.

    Its handler waits for news; the engine's side calls `_tell`. Both run in one event loop.
    """

    def __init__(self, server: Server, completions: Sequence[Completion]):
        super().__init__()
        self.server = server
        self.completions = completions
        self.shared = completions[0].shared
        self.streams = self.shared.body.stream
        self.begun = False  # whether the status has been sent
        self._events: list[str] = []  # not sent yet
        self._unfinished = len(completions)
        self._error: Refused | None = None
        self._patience = anyio.CancelScope()  # with clients that do not read; endless at first
        self._news = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # 1. From here on, watch whether the client is still there: nothing else can arrive.
        leaving = asyncio.ensure_future(receive())
        leaving.add_done_callback(self._left)
        try:
            # A client that does not read its response keeps this handler waiting, but not forever.
            with self._patience, ExitStack() as admitted:
                # 2. Admit every text of the request, or none.
                for completion in self.completions:
                    completion.tell = self._tell
                    admitted.enter_context(self.server.admit(completion))
                # 3. Send the texts. A stream begins with its first token, so that what goes wrong
                #    before has a status of its own.
                if self.streams:
                    await self._stream(send)
                else:
                    await self._whole(send)
        finally:
            leaving.remove_done_callback(self._left)
            leaving.cancel()

    def _left(self, leaving: asyncio.Future[Message]) -> None:
        self._end(Refused(499, "the client has closed its connection"))

    def _tell(self, completion: Completion) -> None:
        """Note a completion's new text, its end or its error."""
        if completion.error:
            self._end(completion.error)
            return
        if self.streams:
            self._events.append(completion.event())
        if completion.reason:
            self._unfinished -= 1
        if self.streams or not self._unfinished:
            self._news.set()

    def _end(self, error: Refused) -> None:
        """End the response early."""
        self._error = self._error or error
        self._patience.deadline = self.server.loop.time() + GRACE
        self._news.set()

    async def _stream(self, send: Send) -> None:
        """Send the events of each step together, until all texts have ended."""
        while True:
            await self._news.wait()
            self._news.clear()
            pieces = "".join(self._events)
            self._events.clear()
            if self._error:
                if not self.begun:
                    raise self._error
                await self._send(send, pieces + event(self._error.body()), more=False)
                return
            if not self._unfinished:
                await self._send(send, pieces + self._end_of_stream(), more=False)
                return
            if pieces:  # some tokens complete no character
                await self._send(send, pieces)

    async def _whole(self, send: Send) -> None:
        """Send one JSON object when all texts have ended."""
        await self._news.wait()
        if self._error:
            raise self._error
        # Log-probabilities of many texts take so much time that the event loop would miss tokens of
        # other responses.
        await self._send(send, await run_in_threadpool(self._json), more=False)

    def _json(self) -> str:
        """The object: its beginning, the choices, and the token counts.

        json.dumps holds Python's lock until it returns: a call for each choice takes turns with the
        event loop.
        """
        head = json.dumps(self.completions[0].head).removesuffix("}")
        choices = ", ".join(json.dumps(one.choice()) for one in self.completions)
        counts = json.dumps(usage(self.completions))
        return f'{head}, "choices": [{choices}], "usage": {counts}}}'

    def _end_of_stream(self) -> str:
        counts = ""
        if self.shared.body.usage_at_end:
            end = {**self.completions[0].head, "choices": [], "usage": usage(self.completions)}
            counts = event(end)
        return f"{counts}data: [DONE]\n\n"

    async def _send(self, send: Send, data: str, more: bool = True) -> None:
        if not self.begun:
            self.begun = True
            headers = self._headers_for(len(data))
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        # json.dumps writes ASCII: a byte is a character.
        await send({"type": "http.response.body", "body": data.encode(), "more_body": more})

    def _headers_for(self, length: int) -> list[tuple[bytes, bytes]]:
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % length)]
        if self.streams:
            headers = [
                (b"content-type", b"text/event-stream; charset=utf-8"),
                (b"cache-control", b"no-cache"),
            ]
        if self.shared.ignored:
            headers.append((b"x-ignored-fields", _names_for_header(self.shared.ignored)))
        return headers


def _names_for_header(names: Sequence[str]) -> bytes:
    """Names of fields as the value of a header, which is short and of few characters."""
    shown = ", ".join(names)[: _IGNORED + 1]
    safe = "".join(
        char if char.isascii() and (char.isalnum() or char in "_-., ") else "?" for char in shown
    )
    return (safe if len(safe) <= _IGNORED else f"{safe[:_IGNORED]}...").encode()
