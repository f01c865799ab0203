"""The server: requests that are let in and admitted, its engine's thread, and its end."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple
from urllib.parse import unquote

import prometheus_client as prometheus
from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPServerRequest
from tornado.iostream import StreamClosedError
from tornado.netutil import is_valid_ip
from tornado.web import Application, RequestHandler, stream_request_body

from ..config import check_int, check_positive
from ..model import LanguageModel
from ..pretrained.padding import without_spare_tokens
from .batch import BatchEngine, Scheduler
from .completions import Completion, Json, Reader, asks_for, event, usage
from .modules import ModuleBackend
from .parameters import Refused, show
from .sequence import Output
from .sockets import Connection, accept, bind
from .texts import Tokenizer

BUDGET = 256  # tokens of a step
BODY = 2**20  # bytes of a body that are kept; of a longer one the rest is read and dropped
QUICK = 2**14  # bytes of a body that is read at once; a longer one, in a thread beside the loop
LONGEST = 2**36  # bytes of a body: more do not come in the time that a body may take
PATIENCE = 0.5  # seconds after which a client that sends no more is asked whether it still reads
DRAIN = 10.0  # seconds for the answers that are being written when the server ends


class Metrics:
    """The counts of a server, and how busy its engine is, for Prometheus to read."""

    def __init__(self, engine: BatchEngine):
        self.registry = prometheus.CollectorRegistry()
        shared: Json = {"namespace": "nanogpt", "registry": self.registry}
        self.answers = prometheus.Counter("answers", "by status of HTTP", ["status"], **shared)
        self.tokens = prometheus.Counter("generated_tokens", "tokens drawn", **shared)
        self.ttft = prometheus.Summary("ttft_seconds", "from body to first token", **shared)
        for name in ("running", "waiting"):
            gauge = prometheus.Gauge(f"requests_{name}", f"requests {name} now", **shared)
            gauge.set_function(partial(_length, engine.scheduler, name))


def _length(scheduler: Scheduler, name: str) -> int:
    return len(getattr(scheduler, name))


class Server:
    """One model, its engine in a thread of its own, and the answers that are being written.

    At most `running` requests hold blocks at a time and `waiting` wait beside them; the next one is
    refused. `timeout` are the seconds from a request's body to the end of its answer. All but the
    engine lives in one event loop. An error of one request ends its answer. When a step of the
    engine or the loop fails, `failure` holds the error, and all ends. `trace(id, kind, at)` is
    called there when a request was "received" and for each "token"; `id` is the answer's, `at` is
    time.perf_counter().
    A text is at most as long as the model's context and as the engine's blocks, which take half of
    the memory that is available. Raises ValueError for a model that the backend does not compute,
    and for a tokenizer that is not its own.
    """

    loop: asyncio.AbstractEventLoop  # set when it listens

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: Tokenizer,
        *,
        name: str = "nanogpt",
        backend: Any = ModuleBackend,
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
        self.reader = Reader(tokenizer, name, longest, self.most)
        self.metrics = Metrics(self.engine)
        self.answers: dict[Hashable, Completion] = {}  # by the request's id
        self.draining = False
        self.failure: Exception | None = None
        # Calls that the engine's thread makes before the next step; None ends it.
        self.work: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self.thread = threading.Thread(target=self._run_engine, name="engine", daemon=True)

    @property
    def trouble(self) -> Refused | None:
        """Why nothing is answered now; None while all is well."""
        if self.failure:
            cause = f"{type(self.failure).__name__}: {self.failure}"
            return Refused(500, f"the server failed ({cause}): start it again")
        return Refused(503, "the server is ending") if self.draining else None

    @contextmanager
    def admit(self, completion: Completion) -> Iterator[None]:
        """Its tokens are computed, until the block ends. Raises Refused."""
        if self.trouble:
            raise self.trouble
        if len(self.answers) >= self.most:
            raise Refused(429, f"{self.most} requests are served already: try again in a second")
        request = completion.request
        self.trace(completion.head["id"], "received", completion.begun)
        self.answers[request.id] = completion
        late = Refused(504, f"the answer took longer than {self.timeout:g} s")
        timer = self.loop.call_later(self.timeout, completion.end, late)
        self.work.put(partial(self._add, completion))
        try:
            yield
        finally:
            timer.cancel()
            del self.answers[request.id]
            self.work.put(partial(self.engine.abort, request.id))  # if it has not ended

    async def drain(self) -> None:
        """Take no more requests, wait for those that run, and end the rest after a while."""
        self.draining = True
        for seconds in (DRAIN, 1.0):  # for their texts, then for their errors
            end = self.loop.time() + seconds
            while self.answers and self.loop.time() < end:
                await asyncio.sleep(0.01)
            self.hurry()

    def hurry(self) -> None:
        """End every answer now, with an error."""
        for completion in list(self.answers.values()):
            if self.trouble:
                completion.end(self.trouble)

    def _run_engine(self) -> None:
        """In its thread: step the engine while a request waits or runs, and sleep otherwise."""
        try:
            while self._has_step():
                self._tell(self.engine.step())
        except Exception as error:
            traceback.print_exc()
            self.failure = error
            for name in list(self.engine.alive):
                self.engine.abort(name)
            self._tell([])

    def _add(self, completion: Completion) -> None:
        """In the engine's thread: take its request. An error ends this answer and no other."""
        try:
            self.engine.add(completion.request)
        except Exception as error:
            if not isinstance(error, ValueError):  # a ValueError is a mistake of the request
                traceback.print_exc()
            status = 400 if isinstance(error, ValueError) else 500
            refused = Refused(status, f"the engine does not take this request: {error}")
            with suppress(RuntimeError):  # the loop has ended
                self.loop.call_soon_threadsafe(completion.end, refused)

    def _has_step(self) -> bool:
        """Make the calls in `work`, and wait until there is a step to do. False at the end."""
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
        """In the loop: the tokens that a step has drawn, or the engine's end."""
        self.metrics.tokens.inc(len(outputs))
        drawn = defaultdict(list)
        for output in outputs:
            drawn[output.request.id].append(output)
        for name, tokens in drawn.items():
            completion = self.answers.get(name)
            if completion is None:  # it has ended already
                continue
            if tokens[0].index == 0:
                self.metrics.ttft.observe(at - completion.begun)
            for _ in tokens:
                self.trace(completion.head["id"], "token", at)
            completion.take(tokens)
            if completion.reason and not tokens[-1].finished:
                # By a stop string, of which the engine knows nothing: others get its blocks.
                self.work.put(partial(self.engine.abort, name))
        if self.failure:
            self.hurry()


def check_origin(request: HTTPServerRequest, hosts: set[str], origins: set[str]) -> None:
    """Raises Refused for a request that a web page from elsewhere may have sent by a browser here.

    A page may call this server by a name that it makes point here (DNS rebinding), and then read
    the answers. So the Host must be a number or one of `hosts`. A page's browser names its Origin,
    and asks first before it sends JSON for another one: pages of `origins` may, "*" are all.
    """
    name = request.host_name.strip("[]")
    origin = request.headers.get("Origin")
    if name not in hosts and not is_valid_ip(name):
        raise Refused(
            403,
            f"the Host {name[:60]!r} is not this server: call it by its address, or start it with "
            f"--allow-host {name[:60] or 'NAME'} if that is its name",
        )
    own = origin is None or origin.partition("://")[2] == request.host
    if origin is not None and not own and not origins & {origin, "*"}:
        raise Refused(
            403,
            f"a page of {origin!r:.60} may not ask {request.host!r}: "
            f"start it with --allow-origin {origin[:60]} if it may",
        )
    kind = request.headers.get("Content-Type", "")
    if request.method == "POST" and kind.partition(";")[0].strip().lower() != "application/json":
        raise Refused(
            415,
            f"the body is of the type {kind!r:.60}, not application/json: "
            f"add the header, as in curl -H 'Content-Type: application/json'",
        )


def _stream_of(request: HTTPServerRequest) -> Connection:
    """The connection that a request came by, one of `accept`."""
    connection: Any = request.connection  # tornado names an interface without a stream
    stream: Connection = connection.stream
    return stream


@stream_request_body
class Handler(RequestHandler):
    """Every request: whether it is let in, then the answer of its address. Errors are JSON, too."""

    completions: Sequence[Completion] = ()
    _ends_with_connection = False

    def initialize(self, server: Server, hosts: set[str], origins: set[str]) -> None:
        self.server = server
        self.hosts = hosts
        self.origins = origins
        self.body = bytearray()
        self.stream = _stream_of(self.request)
        self.late = server.loop.call_later(30.0, self.stream.close)

    def data_received(self, chunk: bytes) -> None:
        if len(self.body) <= BODY:
            self.body += chunk

    async def answer(self) -> None:
        self.late.cancel()  # for a body; a timer costs less than tornado's body_timeout, a task
        try:
            check_origin(self.request, self.hosts, self.origins)
            self._share()
            route = self._route()
            if self.request.method == "OPTIONS":
                self.set_status(204)
                self.set_header("Allow", route.allow)
                self.set_header("Access-Control-Allow-Methods", route.allow)
                self.finish()
                return
            await route.answer(self)
        except Refused as refusal:
            if self._headers_written:  # the last event of an answer that has begun
                self.finish(event(refusal.body()))
                return
            self.set_status(refusal.status)
            if refusal.status in (429, 503):
                self.set_header("Retry-After", "1")
            self.finish(refusal.body())

    get = answer
    head = answer
    post = answer
    put = answer
    patch = answer
    delete = answer
    options = answer

    def _share(self) -> None:
        """Tell a browser that a page of an allowed origin may read the answer (CORS)."""
        origin = self.request.headers.get("Origin")
        if origin is not None and self.origins & {origin, "*"}:
            self.set_header("Access-Control-Allow-Origin", origin)
            self.set_header("Access-Control-Allow-Headers", "*, Authorization")
            self.set_header("Vary", "Origin")

    def _path(self) -> str:
        """The path of this request, also of one that names the whole address, as to a proxy."""
        path = self.request.path
        if not path.startswith("/"):
            path = "/" + path.partition("://")[2].partition("/")[2]
        return unquote(path)

    def _route(self) -> Route:
        """The route of this path, which takes this method. Raises Refused."""
        path = self._path().rstrip("/")
        route = ROUTES.get(path)
        if route is None and path.startswith(f"{MODELS}/"):
            route = ROUTES[f"{MODELS}/NAME"]
        if route is None:
            known = ", ".join(f"{one.methods[0]} {path}" for path, one in ROUTES.items())
            raise Refused(404, f"{show(path or '/', 100)} is not here: this server has {known}")
        if self.request.method not in (*route.methods, "OPTIONS"):
            self.set_header("Allow", route.allow)
            raise Refused(405, f"{path} takes {route.allow}, not {self.request.method:.20}")
        return route

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """What tornado answers by itself, in the format of other errors."""
        try:
            self._route()  # a method that tornado does not know
            refusal = Refused(status_code, f"the server failed: {self._reason}")
        except Refused as found:
            refusal = found
        self.set_status(refusal.status)
        self.finish(refusal.body())

    def _model(self) -> Json:
        """The model that is served."""
        reader = self.server.reader
        model = {"id": reader.name, "object": "model", "owned_by": "nanogpt"}
        return model | {"created": self.server.created, "max_model_len": reader.longest}

    async def models(self) -> None:
        """A list of one model."""
        self.finish({"object": "list", "data": [self._model()]})

    async def model(self) -> None:
        """The model of this name, which may have slashes."""
        name = self._path().removeprefix(f"{MODELS}/")
        own = self.server.reader.name
        if name not in (own, f"{own}/"):
            raise Refused(
                404, f"model {show(name)} is not here: this server has {show(own)}", "model"
            )
        self.finish(self._model())

    async def health(self) -> None:
        """200 while requests are answered, else why not."""
        trouble = self.server.trouble
        if trouble:
            raise trouble
        self.finish({"status": "ok"})

    async def metrics(self) -> None:
        """The counts, as Prometheus reads them."""
        self.set_header("Content-Type", prometheus.CONTENT_TYPE_LATEST)
        self.finish(prometheus.generate_latest(self.server.metrics.registry))

    def on_finish(self) -> None:
        self.server.metrics.answers.labels(self.get_status()).inc()

    async def complete(self) -> None:
        """Prompts continued: whole, or as server-sent events while their tokens come."""
        await self._answer_with(self.server.reader.read)

    async def chat(self) -> None:
        """The next message of a chat, likewise."""
        await self._answer_with(self.server.reader.read_chat)

    async def _answer_with(self, read: Callable[[bytes | bytearray], list[Completion]]) -> None:
        if len(self.body) > BODY:
            raise Refused(413, f"the body is longer than {BODY:,} bytes, the most that is read")
        if len(self.body) <= QUICK:
            self.completions = read(self.body)
        else:
            self.completions = await self.server.loop.run_in_executor(None, read, self.body)
            if self.stream.closed():
                raise Refused(499, "the client has closed its connection")
        self.ended: asyncio.Future[None] = asyncio.Future()
        self.stream.on_half_close = self._half_closed
        if self.stream.half_closed:
            self._half_closed()
        if self.completions[0].fields["stream"]:
            self.set_header("Content-Type", "text/event-stream; charset=utf-8")
            self.set_header("Cache-Control", "no-cache")
            self.stream.set_nodelay(True)  # a token does not wait for the next
            # HTTP/1.0 has no chunks: the end of the connection is the end of the text.
            self._ends_with_connection = self.request.version == "HTTP/1.0"
            if self._ends_with_connection:
                self.request.headers["Connection"] = "close"
        with suppress(StreamClosedError), ExitStack() as admitted:  # closed: the client has left
            for completion in self.completions:
                completion.tell = self.tell
                admitted.enter_context(self.server.admit(completion))
            await self.ended
            self.finish(self._last())
            await self.stream.write(b"")  # until the client has read all, or its time is over
            if self._ends_with_connection:
                self.stream.close()

    def _half_closed(self) -> None:
        """The client sends no more. If it has left, it does not need its answer."""
        self.server.loop.call_later(PATIENCE, self._probe)

    def _probe(self) -> None:
        """Send what has no meaning, and look later whether a client that has left refuses it."""
        if self._finished or self.stream.closed():
            return
        if self._headers_written:
            self.write(":\n\n")  # a comment between two events
            self.flush()
        elif self.request.version == "HTTP/1.1":  # older clients do not know it
            self.stream.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.server.loop.call_later(PATIENCE, self._close_if_broken)

    def _close_if_broken(self) -> None:
        if self._finished or self.stream.closed():
            return
        if self.stream.broken:
            self.stream.close()
        else:
            self.server.loop.call_later(PATIENCE, self._close_if_broken)

    def tell(self, completion: Completion) -> None:
        """Send its next event in a stream, and note when all have ended."""
        if completion.error:
            if self.stream.writing():  # nobody waits for a client that does not read
                self.stream.close()
            if not self.ended.done():
                self.ended.set_exception(completion.error)
        elif not self.ended.done():
            piece = completion.event() if completion.fields["stream"] else ""
            if piece:
                self.write(piece)
            if all(one.reason for one in self.completions):
                self.ended.set_result(None)  # the piece goes with the end
            elif piece:
                self.flush()

    def _last(self) -> Json | str:
        """The whole answer, or the end of a stream."""
        head = self.completions[0].head
        fields = self.completions[0].fields
        choices = [] if fields["stream"] else [one.choice() for one in self.completions]
        end = {**head, "choices": choices, "usage": usage(self.completions)}
        last = (event(end) if asks_for(fields, "include_usage") else "") + "data: [DONE]\n\n"
        return last if fields["stream"] else end

    def on_connection_close(self) -> None:
        super().on_connection_close()
        self.late.cancel()
        for completion in self.completions:
            completion.end(Refused(499, "the client has closed its connection"))


class Route(NamedTuple):
    """The methods that a path takes, and what answers them."""

    methods: tuple[str, ...]
    answer: Callable[[Handler], Awaitable[None]]

    @property
    def allow(self) -> str:
        return ", ".join([*self.methods, "OPTIONS"])


READ = ("GET", "HEAD")
MODELS = "/v1/models"
ROUTES = {
    "/v1/completions": Route(("POST",), Handler.complete),
    "/v1/chat/completions": Route(("POST",), Handler.chat),
    MODELS: Route(READ, Handler.models),
    f"{MODELS}/NAME": Route(READ, Handler.model),
    "/health": Route(READ, Handler.health),
    "/metrics": Route(READ, Handler.metrics),
}


async def _answer(
    server: Server,
    sockets: list[socket.socket],
    allowed: dict[str, set[str]],
    started: Future[asyncio.Future[list[None]]],
) -> None:
    """Answer until the result of `started` is cancelled; then finish the answers, and close all."""
    server.loop = asyncio.get_running_loop()
    routes = [(".*", Handler, {"server": server, **allowed})]
    limits = {"idle_connection_timeout": 60.0, "max_body_size": LONGEST}
    http = HTTPServer(Application(routes, log_function=lambda handler: None), **limits)
    server.thread.start()
    accepting = asyncio.gather(*(accept(listener, http, BODY) for listener in sockets))
    started.set_result(accepting)
    try:
        with suppress(asyncio.CancelledError):
            await accepting
    finally:
        for listener in sockets:
            listener.close()
        await server.drain()
        await http.close_all_connections()
        server.work.put(None)
        server.thread.join()


@contextmanager
def listening(
    server: Server,
    host: str = "127.0.0.1",
    port: int = 0,
    allow_hosts: Iterable[str] = (),
    allow_origins: Iterable[str] = (),
) -> Iterator[str]:
    """The server's URL while the block runs; it answers in a thread of its own.

        with listening(Server(model, tokenizer, backend=NativeBackend)) as url:
            urllib.request.urlopen(f"{url}/v1/models")

    Port 0 is any free one. Requests call it by a number, localhost, `host` or one of `allow_hosts`.
    Web pages of `allow_origins` may ask it; "*" are all. The model must not change meanwhile.
    Raises ValueError, OSError.
    """
    sockets = bind(host, port)
    started: Future[asyncio.Future[list[None]]] = Future()
    hosts = {name.lower() for name in ("localhost", host, *allow_hosts)}
    allowed = {"hosts": hosts, "origins": {origin.rstrip("/") for origin in allow_origins}}
    host, port = sockets[0].getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def target() -> None:
        try:
            asyncio.run(_answer(server, sockets, allowed, started))
        except Exception as error:
            traceback.print_exc()
            server.failure = server.failure or error
            if not started.done():  # it never began
                started.set_exception(error)

    thread = threading.Thread(target=target, name="server", daemon=True)
    thread.start()
    accepting = started.result()
    try:
        yield url
    finally:
        with suppress(RuntimeError):  # it has ended by itself
            server.loop.call_soon_threadsafe(accepting.cancel)
        thread.join()
