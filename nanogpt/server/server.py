"""A server without its sockets: the engine's thread, who is admitted, and what is counted."""

from __future__ import annotations

import asyncio
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import contextmanager, suppress
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Summary

from ..config.checks import check_int, check_positive
from ..data.tokenizer import CharTokenizer
from ..model.gpt import GPT
from ..serving.batch import BatchEngine
from ..serving.modules import ModuleBackend
from ..serving.request import Output
from .completions import KINDS, WRONG, Completion, Reader, Refused

BUDGET = 256  # tokens of a step


class EngineThread(threading.Thread):
    """Steps `engine` while a request waits or runs, and sleeps otherwise.

    `tell` is called in this thread with the outputs of each step. When something raises, the thread
    ends, `failure` holds the error, and `tell` is called once more. No other thread may change the
    engine until it has ended.
    """

    def __init__(self, engine: BatchEngine, tell: Callable[[list[Output]], None]):
        super().__init__(name="engine", daemon=True)
        self.engine, self.tell = engine, tell
        self.failure: Exception | None = None
        self._work: deque[Callable[[], None]] = deque()
        self._wake, self._ending = threading.Condition(), False

    def submit(self, work: Callable[[], None]) -> None:
        """Call this in the thread, before the next step."""
        with self._wake:
            self._work.append(work)
            self._wake.notify()

    def stop(self) -> None:
        """End the thread, after the step that runs. Requests that are left are dropped."""
        with self._wake:
            self._ending = True
            self._wake.notify()
        if self.is_alive():
            self.join()

    def run(self) -> None:
        try:
            while self._wait():
                while self._work:
                    self._work.popleft()()
                if self.engine.busy:
                    self.tell(self.engine.step())
        except Exception as error:
            traceback.print_exc()
            self.failure = error
        for name in list(self.engine.alive):
            self.engine.abort(name)
        if self.failure:
            self.tell([])

    def _wait(self) -> bool:
        """Sleep while there is nothing to do. False at the end."""
        with self._wake:
            self._wake.wait_for(lambda: self._work or self._ending or self.engine.busy)
            return not self._ending


class Metrics:
    """What a server counts, and how busy its engine is, for Prometheus to read."""

    def __init__(self, engine: BatchEngine):
        self.registry = CollectorRegistry()

        def counted(kind, name: str, about: str, *labels: str):
            return kind(f"nanogpt_{name}", about, labels, registry=self.registry)

        self.requests = counted(Counter, "requests", "requests that ended, by how", "outcome")
        for outcome in {"completed", *(word for _, word in (WRONG, *KINDS.values()))}:
            self.requests.labels(outcome)  # from 0 on
        self.prompt_tokens = counted(Counter, "prompt_tokens", "tokens of prompts taken")
        self.tokens = counted(Counter, "generated_tokens", "tokens drawn")
        self.ttft = counted(Summary, "ttft_seconds", "from a request's body to its first token")
        scheduler, manager = engine.scheduler, engine.block_manager
        for name, about, value in (
            ("requests_running", "requests that hold blocks", lambda: len(scheduler.running)),
            ("requests_waiting", "requests that wait for blocks", lambda: len(scheduler.waiting)),
            ("blocks_free", "blocks that can be given", lambda: manager.available),
            ("blocks_used", "blocks held", lambda: manager.n_blocks - manager.available),
        ):
            counted(Gauge, name, about).set_function(value)

    def ended(self, outcome: str) -> None:
        """One more request has ended."""
        self.requests.labels(outcome).inc()


class Server:
    """One model, its engine in a thread of its own, and the answers that are being written.

    At most `running` requests hold blocks at a time and `waiting` wait beside them; the next one is
    refused. `timeout` are the seconds from a request's body to the end of its answer, `drain` those
    that are left to who is answered when the server ends. All but the engine lives in one event
    loop. `trace(id, what, at)` is called there when a request was "received" and for each "token";
    `at` is time.perf_counter(). Raises ValueError for a model that the backend does not compute.
    """

    def __init__(
        self,
        model: GPT,
        tokenizer: CharTokenizer,
        *,
        name: str = "nanogpt",
        backend=ModuleBackend,
        running: int = 64,
        waiting: int = 256,
        timeout: float = 60.0,
        drain: float = 10.0,
        trace: Callable[[str, str, float], None] = lambda name, what, at: None,
    ):
        check_int("running", running, 1, 4096)  # each needs memory
        check_int("waiting", waiting, 0)
        check_positive("timeout", timeout)
        check_positive("drain", drain)
        if len(tokenizer) != (size := model.config.vocab_size):
            raise ValueError(
                f"the tokenizer has {len(tokenizer)} characters and the model a vocabulary of "
                f"{size}: pass the model's own"
            )
        self.most, self.seconds, self.trace = running + waiting, drain, trace
        self.name, self.created = name, int(time.time())
        self.reader = Reader(tokenizer, name, model.config.block_size, timeout)
        self.engine = BatchEngine(model, backend=backend, max_running=running, budget=BUDGET)
        self.thread, self.metrics = EngineThread(self.engine, self._tell), Metrics(self.engine)
        self.answers: dict[Hashable, Completion] = {}
        self.draining, self.loop, self._idle = False, None, asyncio.Event()

    def start(self) -> None:
        """Begin to compute. Call it in the event loop."""
        self.loop = asyncio.get_running_loop()
        self.thread.start()

    @property
    def trouble(self) -> Refused | None:
        """Why nothing is answered now; None while all is well."""
        if self.thread.failure:
            why = f"{type(self.thread.failure).__name__}: {self.thread.failure}"
            return Refused(500, f"the engine failed ({why}): the server must be started again")
        return Refused(503, "the server is ending") if self.draining else None

    @contextmanager
    def admit(self, completion: Completion):
        """Its tokens are computed, until the block ends. Raises Refused."""
        if self.trouble:
            raise self.trouble
        if len(self.answers) >= self.most:
            raise Refused(429, f"{self.most} requests are served already: try again in a second")
        request = completion.request
        self.answers[request.id] = completion
        timer = self.loop.call_later(completion.timeout, completion.expire)
        self.metrics.prompt_tokens.inc(len(request.prompt))
        self.thread.submit(partial(self.engine.add, request))
        try:
            yield
        finally:
            timer.cancel()
            del self.answers[request.id]
            if not completion.complete:
                self.thread.submit(partial(self.engine.abort, request.id))
            if not self.answers:
                self._idle.set()

    async def drain(self) -> None:
        """Take no more requests, wait for those that run, and end what is left after a while."""
        self.draining = True
        for seconds in (self.seconds, 1.0):  # for their texts, then for their errors
            if self.answers:
                self._idle.clear()
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._idle.wait(), seconds)
            self.hurry()

    def hurry(self) -> None:
        """End every answer now, with an error."""
        self.draining = True
        for completion in list(self.answers.values()):
            completion.end(self.trouble)

    def _tell(self, outputs: list[Output]) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self.loop.call_soon_threadsafe(self._deliver, outputs, time.perf_counter())

    def _deliver(self, outputs: list[Output], at: float) -> None:
        """In the loop: what a step has drawn, or the engine's end."""
        self.metrics.tokens.inc(len(outputs))
        for output in outputs:
            self.trace(output.request.id, "token", at)
            if completion := self.answers.get(output.request.id):
                completion.take(output)
                if output.index == 0:
                    self.metrics.ttft.observe(at - completion.begun)
        if self.thread.failure:
            self.hurry()
