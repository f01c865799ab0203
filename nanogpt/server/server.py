"""What a server has beside its sockets: the engine's thread, who is admitted, and every answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from ..config.checks import check_int, check_positive
from ..data.tokenizer import CharTokenizer
from ..model.gpt import GPT
from ..serving.batch import BatchEngine
from ..serving.modules import ModuleBackend
from .completions import Asked, Reader, Refused
from .engine_thread import EngineThread, News
from .metrics import Metrics


@dataclass(frozen=True)
class Limits:
    """What one server takes on. Raises ValueError for numbers that make no sense."""

    running: int = 64  # requests that hold blocks at a time, at most 4,096: each needs memory
    waiting: int = 256  # requests beyond them; the next one is refused
    budget: int = 256  # tokens of a step
    timeout: float = 60.0  # seconds from a request's body to the end of its answer
    body: int = 2**20  # bytes of a request's body
    drain: float = 10.0  # seconds that those have who are answered when the server ends

    def __post_init__(self):
        check_int("running", self.running, 1, 4096)
        for name in ("budget", "body"):
            check_int(name, getattr(self, name), 1)
        check_int("waiting", self.waiting, 0)
        check_positive("timeout", self.timeout)
        check_positive("drain", self.drain)


class Gone(Exception):
    """The client of a request has closed its connection."""


class Server:
    """One model, its engine in a thread of its own, and the answers that are being written.

    All but the engine lives in one event loop. `trace(id, what, at)` is called there for every
    step of a request: "received" (its whole body), "added" (to the engine's queue), "token" (once
    each), "sent" (once a write) and "finished"; `at` is time.perf_counter(). Raises ValueError for
    a model that the backend does not compute.
    """

    def __init__(
        self,
        model: GPT,
        tokenizer: CharTokenizer,
        *,
        name: str = "nanogpt",
        backend=ModuleBackend,
        limits: Limits | None = None,
        trace: Callable[[str, str, float], None] | None = None,
    ):
        self.limits = limits = limits or Limits()
        if len(tokenizer) != (size := model.config.vocab_size):
            raise ValueError(
                f"the tokenizer has {len(tokenizer)} characters and the model a vocabulary of "
                f"{size}: pass the model's own"
            )
        engine = BatchEngine(
            model, backend=backend, max_running=limits.running, budget=limits.budget
        )
        self.name, self.tokenizer, self.created = name, tokenizer, int(time.time())
        self.reader = Reader(tokenizer, name, model.config.block_size, limits.timeout)
        self.engine, self.thread = engine, EngineThread(engine, self._told)
        self.metrics, self.answers = Metrics(), {}
        self.draining, self._loop, self._idle = False, None, asyncio.Event()
        self.trace = trace or (lambda name, what, at: None)

    def start(self) -> None:
        """Begin to compute. Call it in the event loop."""
        self._loop = asyncio.get_running_loop()
        self.thread.start()

    @property
    def trouble(self) -> Refused | None:
        """Why nothing is answered now; None while all is well."""
        if self.thread.failure:
            why = f"{type(self.thread.failure).__name__}: {self.thread.failure}"
            return Refused(500, f"the engine failed ({why}): the server must be started again")
        return Refused(503, "the server is ending") if self.draining else None

    @contextmanager
    def admit(self, asked: Asked, close: Callable[[], None]):
        """An Answer for the request, which is aborted if the block ends before it. Raises Refused.

        `close` ends the connection of a client that does not read.
        """
        if self.trouble:
            raise self.trouble
        most = self.limits.running + self.limits.waiting
        if len(self.answers) >= most:
            raise Refused(429, f"{most} requests are served already: try again in a second")
        name = asked.request.id
        answer = self.answers[name] = Answer(close, asked.timeout)
        timer = self._loop.call_later(asked.timeout, answer.expire)
        self.metrics.prompt_tokens += len(asked.request.prompt)
        self.thread.submit(asked.request)
        try:
            yield answer
        finally:
            timer.cancel()
            del self.answers[name]
            if not answer.complete:
                self.thread.abort(name)
            if not self.answers:
                self._idle.set()

    async def drain(self) -> None:
        """Take no more requests, wait for those that run, and end what is left after a while."""
        self.draining = True
        if self.answers:
            self._idle.clear()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._idle.wait(), self.limits.drain)
        self.hurry()
        for _ in range(100):  # their errors are written
            if not self.answers:
                break
            await asyncio.sleep(0.01)

    def hurry(self) -> None:
        """End every answer now, with an error."""
        for answer in list(self.answers.values()):
            answer.end(Refused(503, "the server is ending"))

    def _told(self, news: list[News]) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._deliver, news)

    def _deliver(self, news: list[News]) -> None:
        for item in news:
            self.metrics.tokens += item.token is not None
            self.trace(item.name, "added" if item.token is None else "token", item.at)
            if answer := self.answers.get(item.name):
                answer.take(item)


class Answer:
    """The tokens of one request, as they come, and whatever ends it early.

    It holds at most the request's own max_tokens, however slowly its client reads.
    """

    def __init__(self, close: Callable[[], None], timeout: float):
        self.close, self.timeout, self.sending = close, timeout, False
        self.complete, self.error = False, None
        self.news: list[News] = []
        self._wake = asyncio.Event()

    def take(self, item: News) -> None:
        """The next news from the engine."""
        self.complete = item.finished
        if item.error:
            wrong = isinstance(item.error, ValueError)
            self.end(Refused(400 if wrong else 500, str(item.error)))
        elif item.token is not None:
            self.news.append(item)
            self._wake.set()

    def expire(self) -> None:
        """Its time is up."""
        self.end(Refused(504, f"the answer took longer than {self.timeout:g} s"))

    def end(self, error: Exception) -> None:
        """End it with an error. A client that holds it up loses its connection."""
        self.error = self.error or error
        self._wake.set()
        if self.sending:
            self.close()

    async def receive(self) -> list[News]:
        """The tokens that came since the last call, at least one. Raises what ended the answer."""
        await self._wake.wait()
        self._wake.clear()
        if self.error:
            raise self.error
        news, self.news = self.news, []
        return news
