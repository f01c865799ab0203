"""The server: its engine's thread, who is admitted, what is counted, its addresses and its end."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial

import prometheus_client as prometheus
from prometheus_client import Counter, Gauge, Summary
from tornado.httpserver import HTTPServer
from tornado.iostream import StreamClosedError
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from ..config.checks import check_int, check_positive
from ..data.tokenizer import CharTokenizer
from ..model.gpt import GPT
from ..serving.batch import BatchEngine
from ..serving.modules import ModuleBackend
from ..serving.request import Output
from .completions import KINDS, WRONG, Completion, Reader, Refused, event

BUDGET = 256  # tokens of a step
BODY = 2**20  # bytes of a body; a longer one is not read


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
        self.registry = prometheus.CollectorRegistry()

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
        if (n := len(tokenizer)) != (size := model.config.vocab_size):
            raise ValueError(f"the tokenizer has {n} characters, the model's vocabulary {size}")
        self.most, self.timeout, self.seconds = running + waiting, timeout, drain
        self.trace, self.created = trace, int(time.time())
        self.reader = Reader(tokenizer, name, model.config.block_size)
        self.engine = BatchEngine(model, backend=backend, max_running=running, budget=BUDGET)
        self.thread, self.metrics = EngineThread(self.engine, self._tell), Metrics(self.engine)
        self.answers: dict[Hashable, Completion] = {}
        self.draining, self.loop, self._idle = False, None, asyncio.Event()

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
        late = Refused(504, f"the answer took longer than {self.timeout:g} s")
        timer = self.loop.call_later(self.timeout, completion.end, late)
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


class Handler(RequestHandler):
    """Answers in JSON; errors in the interface's shape."""

    def initialize(self, server: Server):
        self.server = server

    def refuse(self, why: Refused):
        """An error as the answer, or as the last event of one that has begun."""
        if self._headers_written:
            self.finish(event(why.body()))
            return
        self.set_status(why.status)
        if why.status in (429, 503):
            self.set_header("Retry-After", "1")
        self.finish(why.body())

    def write_error(self, status_code: int, **more):
        why = Refused(status_code, f"{self.request.path[:100]}: {self._reason}")
        if status_code >= 500:
            self.server.metrics.ended(why.outcome)
        self.finish(why.body())


class Nothing(Handler):
    """Any other address."""

    def prepare(self):
        self.send_error(404)


class Models(Handler):
    """The one model that is served."""

    def get(self):
        reader = self.server.reader
        model = {"id": reader.name, "object": "model", "created": self.server.created}
        model |= {"owned_by": "nanogpt", "max_model_len": reader.longest}
        self.finish({"object": "list", "data": [model]})


class Health(Handler):
    """200 while requests are answered, else why not."""

    def get(self):
        if trouble := self.server.trouble:
            self.refuse(trouble)
        else:
            self.finish({"status": "ok"})


class Numbers(Handler):
    """The metrics."""

    def get(self):
        self.set_header("Content-Type", prometheus.CONTENT_TYPE_LATEST)
        self.finish(prometheus.generate_latest(self.server.metrics.registry))


class Completions(Handler):
    """A prompt continued: whole, or token by token as server-sent events."""

    completion: Completion | None = None

    async def post(self):
        server = self.server
        try:
            self.completion = completion = server.reader.read(self.request.body)
            server.trace(completion.request.id, "received", completion.begun)
            with server.admit(completion):
                last = await (self._stream if completion.stream else self._whole)(completion)
        except StreamClosedError:
            error = self.completion.error
            server.metrics.ended(error.outcome if error else "aborted")
        except Refused as why:
            server.metrics.ended(why.outcome)
            self.refuse(why)
        else:  # counted before the client can have all of it
            server.metrics.ended("completed")
            self.finish(last)

    async def _whole(self, completion: Completion) -> dict:
        text = ""
        while not completion.reason:
            text += "".join(await completion.receive())
        return completion.whole(text)

    async def _stream(self, completion: Completion) -> str:
        """Send the answer as it comes, but for its end."""
        self.set_header("Content-Type", "text/event-stream; charset=utf-8")
        self.set_header("Cache-Control", "no-cache")
        stream = self.request.connection.stream
        stream.set_nodelay(True)  # a token does not wait for the next
        while True:
            events = completion.events(await completion.receive())
            if completion.reason:
                return events
            if events:
                self.write(events)
                completion.close = stream.close  # who does not read is not waited for
                await self.flush()
                completion.close = None

    def on_connection_close(self):
        super().on_connection_close()
        if self.completion:
            self.completion.end(Refused(499, "the client has closed its connection"))


ADDRESSES = {
    "/v1/completions": Completions,
    "/v1/models": Models,
    "/health": Health,
    "/metrics": Numbers,
}


def bind(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen there; port 0 takes a free one. Raises ValueError, OSError."""
    check_int("port", port, 0, 65535)
    try:
        return bind_sockets(port, host)
    except OSError as error:
        raise OSError(
            f"cannot listen at {host}, port {port} ({error.strerror}): choose another --host, or "
            f"--port 0 for a free one"
        ) from error


async def _answer(server: Server, sockets: list, started: Future) -> None:
    """Answer until the event that `started` gets is set; then finish what runs, and close all."""
    parts, ending = {"server": server}, asyncio.Event()
    http = HTTPServer(
        Application(
            [(path, handler, parts) for path, handler in ADDRESSES.items()],
            default_handler_class=Nothing,
            default_handler_args=parts,
            log_function=lambda handler: None,
        ),
        idle_connection_timeout=60.0,  # seconds
        body_timeout=30.0,
        max_body_size=BODY,
        max_buffer_size=BODY,
    )
    server.loop = asyncio.get_running_loop()
    server.thread.start()
    http.add_sockets(sockets)
    try:
        started.set_result(ending)
        await ending.wait()
        http.stop()
        await server.drain()
    finally:
        http.stop()
        await http.close_all_connections()
        server.thread.stop()


@contextmanager
def serving(server: Server, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """The server's URL while the block runs; it answers in a thread of its own.

        with serving(Server(model, tokenizer, backend=NativeBackend)) as url:
            urllib.request.urlopen(f"{url}/v1/models")

    Port 0 is any free one. The model must not change meanwhile. Raises ValueError, OSError.
    """
    sockets, started = bind(host, port), Future()

    def target():
        try:
            asyncio.run(_answer(server, sockets, started))
        finally:
            started.cancel()  # where it never began, nobody waits for it

    thread = threading.Thread(target=target, name="server", daemon=True)
    thread.start()
    ending = started.result()
    host, port = sockets[0].getsockname()[:2]
    try:
        yield f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    finally:
        server.loop.call_soon_threadsafe(ending.set)
        try:
            thread.join()
        except KeyboardInterrupt:  # again: at once
            server.loop.call_soon_threadsafe(server.hurry)
            thread.join()
