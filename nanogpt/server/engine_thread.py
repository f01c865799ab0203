"""The thread in which a batch engine lives. Other threads only send it requests and aborts."""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Hashable
from typing import NamedTuple

from ..serving.batch import BatchEngine
from ..serving.request import Output, Request


class News(NamedTuple):
    """What happened to a request: it was added, or got a token, or ended with an error."""

    name: Hashable  # the id of the request
    at: float  # time.perf_counter()
    token: int | None = None
    finished: bool = False
    error: Exception | None = None


class Load(NamedTuple):
    """How busy the engine is; `used` and `free` count blocks."""

    running: int
    waiting: int
    used: int
    free: int


class EngineThread:
    """Steps `engine` while a request waits or runs, and sleeps otherwise.

    `tell` is called in this thread with a list of News, once a step. After a step that raises,
    every request ends with that error and `failure` holds it. No other thread may use the engine
    until `stop` has returned.
    """

    def __init__(self, engine: BatchEngine, tell: Callable[[list[News]], None]):
        self.engine, self.tell = engine, tell
        self.failure: Exception | None = None
        self.load = self._load()
        self._inbox: deque[Request | Abort] = deque()
        self._wake, self._ending = threading.Condition(), False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, request: Request) -> None:
        """Add a request. What becomes of it, a refusal too, is told."""
        self._send(request)

    def abort(self, name: Hashable) -> None:
        """Stop a request and free its blocks; no matter if it has ended. No more is told of it."""
        self._send(Abort(name))

    def stop(self) -> None:
        """End the thread, after the step that runs. Requests that are left are dropped."""
        with self._wake:
            self._ending = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _send(self, word) -> None:
        with self._wake:
            self._inbox.append(word)
            self._wake.notify()

    def _run(self) -> None:
        while (words := self._receive()) is not None:
            news = []
            try:
                for word in words:
                    self._apply(word, news)
                if self.engine.busy:
                    news += [_token(output) for output in self.engine.step()]
            except Exception as error:
                traceback.print_exc()
                self._fail(error, words, news)
            self.load = self._load()
            if news:
                self.tell(news)
        for name in list(self.engine.alive):
            self.engine.abort(name)

    def _receive(self) -> list | None:
        """What was sent since the last step, at once while there is work; None at the end."""
        with self._wake:
            self._wake.wait_for(lambda: self._inbox or self._ending or self.engine.busy)
            words = list(self._inbox)
            self._inbox.clear()
            return None if self._ending else words

    def _apply(self, word: Request | Abort, news: list[News]) -> None:
        if isinstance(word, Abort):
            if word.name in self.engine.alive:
                self.engine.abort(word.name)
            return
        if self.failure:
            raise self.failure
        try:
            self.engine.add(word)
        except ValueError as error:
            news.append(News(word.id, time.perf_counter(), finished=True, error=error))
        else:
            news.append(News(word.id, time.perf_counter()))

    def _fail(self, error: Exception, words: list, news: list[News]) -> None:
        """Every request ends: those of the engine, and those that were about to be added."""
        self.failure, now = error, time.perf_counter()
        lost = dict.fromkeys([*self.engine.alive, *(w.id for w in words if isinstance(w, Request))])
        news[:] = [News(name, now, finished=True, error=error) for name in lost]
        for name in list(self.engine.alive):
            self.engine.abort(name)

    def _load(self) -> Load:
        scheduler, manager = self.engine.scheduler, self.engine.block_manager
        free = manager.available
        return Load(len(scheduler.running), len(scheduler.waiting), manager.n_blocks - free, free)


class Abort(NamedTuple):
    """Sent to the thread: stop the request of this name."""

    name: Hashable


def _token(output: Output) -> News:
    return News(output.request.id, time.perf_counter(), output.token, output.finished)
