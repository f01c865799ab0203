"""The server's engine, in a thread of its own: which requests are admitted, and how it ends."""

from __future__ import annotations

import asyncio
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from queue import SimpleQueue

import prometheus_client as prometheus

from ..config import check_int, check_positive
from ..model import LanguageModel
from ..pretrained.padding import without_spare_tokens
from .backend import BackendType
from .batch import BatchEngine
from .completions import Completion
from .modules import ModuleBackend
from .parser import RequestParser
from .requests import Json, Refused
from .sequence import Output
from .texts import Tokenizer

BUDGET = 256  # tokens in a step
DRAIN = 10.0  # seconds for responses in progress when the server shuts down


class Metrics:
    """Prometheus metrics: counts of the server, and how busy its engine is."""

    def __init__(self, engine: BatchEngine):
        # Otherwise there is a time beside each counter, which nobody reads.
        prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = prometheus.CollectorRegistry()
        shared: Json = {"namespace": "nanogpt", "registry": self.registry}
        self.answers = prometheus.Counter("answers", "by HTTP status", ["status"], **shared)
        self.tokens = prometheus.Counter("generated_tokens", "tokens drawn", **shared)
        self.ttft = prometheus.Summary("ttft_seconds", "from body to first token", **shared)
        running = prometheus.Gauge("requests_running", "requests running now", **shared)
        running.set_function(lambda: len(engine.scheduler.running))
        waiting = prometheus.Gauge("requests_waiting", "requests waiting now", **shared)
        waiting.set_function(lambda: len(engine.scheduler.waiting))


class Server:
    """One model, its engine in a separate thread, and the responses in progress.

    The model is called `name`; a client that asks for it by one of `aliases`, or by any other name,
    gets its answer too.
    At most `running` requests hold blocks at a time, and up to `waiting` more wait; any further
    request is refused. `timeout` is the time in seconds from a request's body to the end of its
    response. Everything but the engine runs in one event loop. An error in one request ends its
    response. If a step of the engine or the loop fails, `failure` holds the error, and everything
    ends. The loop calls `trace(id, kind, at)` when a request was "received" and for each "token",
    for notebook 10's figure; `id` is the response's id, `at` is time.perf_counter().
    A text is limited by the model's context and by the engine's blocks, which take half of the
    available memory. Raises ValueError for a model that the backend does not support, and for a
    tokenizer that does not belong to the model.
    """

    loop: asyncio.AbstractEventLoop  # set by `start`

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: Tokenizer,
        *,
        name: str = "nanogpt",
        aliases: Iterable[str] = (),
        backend: BackendType = ModuleBackend,
        running: int = 64,
        waiting: int = 256,
        timeout: float = 60.0,
        trace: Callable[[str, str, float], None] = lambda name, kind, at: None,
    ):
        check_int("running", running, 1, 4096)  # each needs memory
        check_int("waiting", waiting, 0)
        check_positive("timeout", timeout)
        model = without_spare_tokens(model, tokenizer)
        self.most = running + waiting
        self.timeout = timeout
        self.trace = trace
        self.created = int(time.time())
        self.engine = BatchEngine(model, backend=backend, max_running=running, budget=BUDGET)
        longest = min(model.config.block_size, self.engine.positions)
        self.parser = RequestParser(tokenizer, name, longest, self.most, aliases)
        self.metrics = Metrics(self.engine)
        self.answers: dict[Hashable, Completion] = {}  # by the request's id
        self.draining = False
        self.failure: Exception | None = None
        # Calls for the engine's thread to make before the next step; None ends it.
        self.work: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self.thread = threading.Thread(target=self._run_engine, name="engine", daemon=True)

    @property
    def trouble(self) -> Refused | None:
        """Why requests are currently refused; None if the server is healthy."""
        if self.failure:
            cause = f"{type(self.failure).__name__}: {self.failure}"
            return Refused(500, f"the server failed ({cause}): restart it")
        return Refused(503, "the server is shutting down") if self.draining else None

    @contextmanager
    def admit(self, completion: Completion) -> Iterator[None]:
        """A with-block during which the completion's tokens are computed. Raises Refused."""
        # 1. Refuse at once what would only wait: a client can try again, or ask another server.
        if self.trouble:
            raise self.trouble
        if len(self.answers) >= self.most:
            busy = f"already serving {self.most} requests: try again in a second"
            raise Refused(429, busy, code="rate_limit_exceeded")
        # 2. Hand it to the engine's thread, which alone touches the engine: no locks are needed.
        request = completion.request
        self.trace(completion.head["id"], "received", completion.begun)
        self.answers[request.id] = completion
        late = Refused(504, f"the answer took longer than {self.timeout:g} s")
        timer = self.loop.call_later(self.timeout, completion.end, late)
        self.work.put(partial(self._add, completion))
        # 3. Its tokens arrive in `_deliver` while the with-block waits. However it ends (the text,
        #    an error, a client that leaves), nothing of it stays behind.
        try:
            yield
        finally:
            timer.cancel()
            del self.answers[request.id]
            self.work.put(partial(self.engine.abort, request.id))  # no effect if it has ended

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the engine's thread; responses are those of this event loop."""
        self.loop = loop
        self.thread.start()

    def drain(self) -> None:
        """In the loop: stop admitting requests, and leave those in progress DRAIN seconds."""
        self.draining = True
        self.loop.call_later(DRAIN, self.hurry)

    def stop(self) -> None:
        """End the engine's thread, when no response is in progress any more."""
        self.work.put(None)
        self.thread.join()

    def hurry(self) -> None:
        """End every response now, with an error."""
        for completion in list(self.answers.values()):
            if self.trouble:
                completion.end(self.trouble)

    def _run_engine(self) -> None:
        """In the engine's thread: run steps while requests wait or run, sleep otherwise."""
        try:
            # Requests enter and leave between two steps, never in one.
            while self._has_step():
                self._tell(self.engine.step())
        except Exception as error:
            # The state of the engine is unknown: end everything, rather than send wrong tokens.
            traceback.print_exc()
            self.failure = error
            for name in list(self.engine.alive):
                self.engine.abort(name)
            self._tell([])

    def _add(self, completion: Completion) -> None:
        """In the engine's thread: queue the request. An error ends only this response."""
        try:
            self.engine.add(completion.request)
        except Exception as error:
            if not isinstance(error, ValueError):  # a ValueError is the request's fault
                traceback.print_exc()
            status = 400 if isinstance(error, ValueError) else 500
            refused = Refused(status, f"the engine rejected this request: {error}")
            with suppress(RuntimeError):  # the loop has ended
                self.loop.call_soon_threadsafe(completion.end, refused)

    def _has_step(self) -> bool:
        """Make the calls in `work`, and wait until there is a step to run. False at shutdown."""
        while not self.engine.busy or not self.work.empty():
            call = self.work.get()
            if call is None:
                return False
            call()
        return True

    def _tell(self, outputs: list[Output]) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self.loop.call_soon_threadsafe(self._deliver, outputs, time.perf_counter())

    def _deliver(self, outputs: list[Output], at: float) -> None:
        """In the loop: deliver the tokens of a step, or end everything if the engine failed."""
        # 1. A step may have several tokens of a request: pass them on together, as one event.
        self.metrics.tokens.inc(len(outputs))
        drawn = defaultdict(list)
        for output in outputs:
            drawn[output.request.id].append(output)
        for name, tokens in drawn.items():
            completion = self.answers.get(name)
            if completion is None:  # it has already ended
                continue
            if tokens[0].index == 0:
                self.metrics.ttft.observe(at - completion.begun)
            # 2. `take` turns them into text, and tells the handler, which sends it.
            for _ in tokens:
                self.trace(completion.head["id"], "token", at)
            completion.take(tokens)
            if completion.reason and not tokens[-1].finished:
                # Ended by a stop string, which the engine does not know about: free its blocks.
                self.work.put(partial(self.engine.abort, name))
        if self.failure:
            self.hurry()
