"""The HTTP server: checking and admitting requests, the engine's thread, and shutdown."""

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
from .backend import BackendType
from .batch import BatchEngine, Scheduler
from .completions import Completion, Json, RequestParser, asks_for, event, usage
from .modules import ModuleBackend
from .parameters import Refused, show
from .sequence import Output
from .sockets import Connection, accept, bind
from .texts import Tokenizer

BUDGET = 256  # tokens in a step
BODY = 2**20  # bytes of a body that are kept; the rest of a longer body is read and dropped
_QUICK = 2**14  # bytes of a body parsed in the event loop; a longer one is parsed in a thread
_LONGEST = 2**36  # bytes of a body: more cannot arrive within the time limit of a body
_PATIENCE = 0.5  # seconds until a client that stopped sending is probed for whether it still reads
DRAIN = 10.0  # seconds for responses in progress when the server shuts down


class Metrics:
    """Prometheus metrics: counts of the server, and how busy its engine is."""

    def __init__(self, engine: BatchEngine):
        self.registry = prometheus.CollectorRegistry()
        shared: Json = {"namespace": "nanogpt", "registry": self.registry}
        self.answers = prometheus.Counter("answers", "by HTTP status", ["status"], **shared)
        self.tokens = prometheus.Counter("generated_tokens", "tokens drawn", **shared)
        self.ttft = prometheus.Summary("ttft_seconds", "from body to first token", **shared)
        for name in ("running", "waiting"):
            gauge = prometheus.Gauge(f"requests_{name}", f"requests {name} now", **shared)
            gauge.set_function(partial(_length, engine.scheduler, name))


def _length(scheduler: Scheduler, name: str) -> int:
    return len(getattr(scheduler, name))


class Server:
    """One model, its engine in a separate thread, and the responses in progress.

    At most `running` requests hold blocks at a time, and up to `waiting` more wait; any further
    request is refused. `timeout` is the time in seconds from a request's body to the end of its
    response. Everything but the engine runs in one event loop. An error in one request ends its
    response. If a step of the engine or the loop fails, `failure` holds the error, and everything
    ends. The loop calls `trace(id, kind, at)` when a request was "received" and for each "token";
    `id` is the response's id, `at` is time.perf_counter().
    A text is limited by the model's context and by the engine's blocks, which take half of the
    available memory. Raises ValueError for a model that the backend does not support, and for a
    tokenizer that does not belong to the model.
    """

    loop: asyncio.AbstractEventLoop  # set when the server starts listening

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: Tokenizer,
        *,
        name: str = "nanogpt",
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
        self.reader = RequestParser(tokenizer, name, longest, self.most)
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
            raise Refused(429, f"already serving {self.most} requests: try again in a second")
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

    async def drain(self) -> None:
        """Stop admitting requests, wait for those in progress, then end the rest."""
        self.draining = True
        for seconds in (DRAIN, 1.0):  # for texts to finish, then for errors to be sent
            end = self.loop.time() + seconds
            while self.answers and self.loop.time() < end:
                await asyncio.sleep(0.01)
            self.hurry()

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


def check_origin(request: HTTPServerRequest, hosts: set[str], origins: set[str]) -> None:
    """Raises Refused for a request that a foreign web page may have sent through a local browser.

    A page may call this server by a domain name that it resolves to this address (DNS rebinding),
    and then read the responses. So the Host must be an IP address or one of `hosts`. A browser
    sends the page's Origin, and a preflight request before it sends JSON to another origin: pages
    of `origins` are allowed, "*" allows all.
    """
    name = request.host_name.strip("[]")
    origin = request.headers.get("Origin")
    if name not in hosts and not is_valid_ip(name):
        raise Refused(
            403,
            f"unknown Host {name[:60]!r}: call the server by its IP address, or start it with "
            f"--allow-host {name[:60] or 'NAME'} if that is its name",
        )
    own = origin is None or origin.partition("://")[2] == request.host
    if origin is not None and not own and not origins & {origin, "*"}:
        raise Refused(
            403,
            f"pages from {origin!r:.60} may not call {request.host!r}: "
            f"to allow them, start the server with --allow-origin {origin[:60]}",
        )
    kind = request.headers.get("Content-Type", "")
    if request.method == "POST" and kind.partition(";")[0].strip().lower() != "application/json":
        raise Refused(
            415,
            f"the Content-Type is {kind!r:.60}, not application/json: "
            f"set the header, for example with curl -H 'Content-Type: application/json'",
        )


def _stream_of(request: HTTPServerRequest) -> Connection:
    """The connection of a request, created by `accept`."""
    connection: Any = request.connection  # tornado's annotation is an interface without a stream
    stream: Connection = connection.stream
    return stream


@stream_request_body
class Handler(RequestHandler):
    """Handles every request: checks its origin, then calls its route. Errors are also JSON."""

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
        self.late.cancel()  # the body's timer, which is cheaper than tornado's body_timeout task
        # The whole of a request: may this page ask, what does it ask for, and the answer. Whatever
        # is refused on the way ends in one error of OpenAI's format.
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
            if self._headers_written:  # the last event of a response that has begun
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
        """Tell the browser that a page of an allowed origin may read the response (CORS)."""
        origin = self.request.headers.get("Origin")
        if origin is not None and self.origins & {origin, "*"}:
            self.set_header("Access-Control-Allow-Origin", origin)
            self.set_header("Access-Control-Allow-Headers", "*, Authorization")
            self.set_header("Vary", "Origin")

    def _path(self) -> str:
        """The path of this request, also if it gives an absolute URL, as to a proxy."""
        path = self.request.path
        if not path.startswith("/"):
            path = "/" + path.partition("://")[2].partition("/")[2]
        return unquote(path)

    def _route(self) -> Route:
        """The route for this path and method. Raises Refused."""
        path = self._path().rstrip("/")
        route = ROUTES.get(path)
        if route is None and path.startswith(f"{_MODELS}/"):
            route = ROUTES[f"{_MODELS}/NAME"]
        if route is None:
            known = ", ".join(f"{one.methods[0]} {path}" for path, one in ROUTES.items())
            raise Refused(404, f"{show(path or '/', 100)} does not exist: this server has {known}")
        if self.request.method not in (*route.methods, "OPTIONS"):
            self.set_header("Allow", route.allow)
            raise Refused(405, f"{path} accepts {route.allow}, not {self.request.method:.20}")
        return route

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Send errors raised by tornado itself in the same format as other errors."""
        try:
            self._route()  # a method that tornado does not know
            refusal = Refused(status_code, f"the server failed: {self._reason}")
        except Refused as found:
            refusal = found
        self.set_status(refusal.status)
        self.finish(refusal.body())

    def _model(self) -> Json:
        """The served model."""
        reader = self.server.reader
        model = {"id": reader.name, "object": "model", "owned_by": "nanogpt"}
        return model | {"created": self.server.created, "max_model_len": reader.longest}

    async def models(self) -> None:
        """A list of one model."""
        self.finish({"object": "list", "data": [self._model()]})

    async def model(self) -> None:
        """The model of this name, which may contain slashes."""
        name = self._path().removeprefix(f"{_MODELS}/")
        own = self.server.reader.name
        if name not in (own, f"{own}/"):
            raise Refused(
                404, f"model {show(name)} does not exist: this server has {show(own)}", "model"
            )
        self.finish(self._model())

    async def health(self) -> None:
        """200 if requests are being answered, otherwise the reason why not."""
        trouble = self.server.trouble
        if trouble:
            raise trouble
        self.finish({"status": "ok"})

    async def metrics(self) -> None:
        """The metrics in Prometheus's format."""
        self.set_header("Content-Type", prometheus.CONTENT_TYPE_LATEST)
        self.finish(prometheus.generate_latest(self.server.metrics.registry))

    def on_finish(self) -> None:
        self.server.metrics.answers.labels(self.get_status()).inc()

    async def complete(self) -> None:
        """Continue prompts: in one response, or as server-sent events while tokens are sampled."""
        await self._answer_with(self.server.reader.read)

    async def chat(self) -> None:
        """The next message of a chat, in the same ways."""
        await self._answer_with(self.server.reader.read_chat)

    async def _answer_with(self, read: Callable[[bytes | bytearray], list[Completion]]) -> None:
        # 1. Parse the body. A long one takes so much time that the event loop would miss tokens of
        #    other responses, so a thread does it.
        if len(self.body) > BODY:
            raise Refused(413, f"the body is longer than {BODY:,} bytes, the limit of this server")
        if len(self.body) <= _QUICK:
            self.completions = read(self.body)
        else:
            self.completions = await self.server.loop.run_in_executor(None, read, self.body)
            if self.stream.closed():
                raise Refused(499, "the client has closed its connection")
        # 2. From here on, watch whether the client is still there.
        self.ended: asyncio.Future[None] = asyncio.Future()
        self.stream.on_half_close = self._half_closed
        if self.stream.half_closed:
            self._half_closed()
        # 3. A stream begins with its first token; any other response is sent as a whole.
        if self.completions[0].fields["stream"]:
            self.set_header("Content-Type", "text/event-stream; charset=utf-8")
            self.set_header("Cache-Control", "no-cache")
            self.stream.set_nodelay(True)  # send each token immediately
            # HTTP/1.0 has no chunks: the end of the connection marks the end of the text.
            self._ends_with_connection = self.request.version == "HTTP/1.0"
            if self._ends_with_connection:
                self.request.headers["Connection"] = "close"
        # 4. Admit every text of the request, or none. `tell` sends what arrives, and sets `ended`.
        with suppress(StreamClosedError), ExitStack() as admitted:  # closed: the client has left
            for completion in self.completions:
                completion.tell = self.tell
                admitted.enter_context(self.server.admit(completion))
            await self.ended
            self.finish(self._last())
            await self.stream.write(b"")  # wait until the client has read all, or timed out
            if self._ends_with_connection:
                self.stream.close()

    def _half_closed(self) -> None:
        """The client has stopped sending. If it has disconnected, stop its response."""
        self.server.loop.call_later(_PATIENCE, self._probe)

    def _probe(self) -> None:
        """Send something meaningless; check later whether a disconnected client has rejected it."""
        if self._finished or self.stream.closed():
            return
        if self._headers_written:
            self.write(":\n\n")  # a comment between two events
            self.flush()
        elif self.request.version == "HTTP/1.1":  # older clients do not know 100 Continue
            self.stream.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.server.loop.call_later(_PATIENCE, self._close_if_broken)

    def _close_if_broken(self) -> None:
        if self._finished or self.stream.closed():
            return
        if self.stream.broken:
            self.stream.close()
        else:
            self.server.loop.call_later(_PATIENCE, self._close_if_broken)

    def tell(self, completion: Completion) -> None:
        """Send the completion's next event if streaming, and note when all have ended."""
        if completion.error:
            if self.stream.writing():  # do not wait for a client that does not read
                self.stream.close()
            if not self.ended.done():
                self.ended.set_exception(completion.error)
        elif not self.ended.done():
            piece = completion.event() if completion.fields["stream"] else ""
            if piece:
                self.write(piece)
            if all(one.reason for one in self.completions):
                self.ended.set_result(None)  # the piece is flushed together with the end
            elif piece:
                self.flush()

    def _last(self) -> Json | str:
        """The whole response, or the end of a stream."""
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
    """The methods that a path accepts, and their handler."""

    methods: tuple[str, ...]
    answer: Callable[[Handler], Awaitable[None]]

    @property
    def allow(self) -> str:
        return ", ".join([*self.methods, "OPTIONS"])


_READ = ("GET", "HEAD")
_MODELS = "/v1/models"
ROUTES = {
    "/v1/completions": Route(("POST",), Handler.complete),
    "/v1/chat/completions": Route(("POST",), Handler.chat),
    _MODELS: Route(_READ, Handler.models),
    f"{_MODELS}/NAME": Route(_READ, Handler.model),
    "/health": Route(_READ, Handler.health),
    "/metrics": Route(_READ, Handler.metrics),
}


async def _answer(
    server: Server,
    sockets: list[socket.socket],
    allowed: dict[str, set[str]],
    started: Future[asyncio.Future[list[None]]],
) -> None:
    """Serve until the result of `started` is cancelled; then finish responses and close all."""
    # 1. Start: the handlers' server, the engine's thread, and a task for each listening socket.
    server.loop = asyncio.get_running_loop()
    routes = [(".*", Handler, {"server": server, **allowed})]
    limits = {"idle_connection_timeout": 60.0, "max_body_size": _LONGEST}
    http = HTTPServer(Application(routes, log_function=lambda handler: None), **limits)
    server.thread.start()
    accepting = asyncio.gather(*(accept(listener, http, BODY) for listener in sockets))
    started.set_result(accepting)
    # 2. Serve, until `listening` cancels it.
    try:
        with suppress(asyncio.CancelledError):
            await accepting
    finally:
        # 3. Stop in the order of the data: no new requests, then the texts, then the engine.
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
    """A with-block in which the server runs, in a separate thread. Yields its URL.

        with listening(Server(model, tokenizer, backend=NativeBackend)) as url:
            urllib.request.urlopen(f"{url}/v1/models")

    Port 0 means any free port. Requests may use an IP address, localhost, `host` or one of
    `allow_hosts` as the Host. Web pages of `allow_origins` may call the server; "*" allows all. The
    model must not change meanwhile. Raises ValueError, OSError.
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
            if not started.done():  # it never started
                started.set_exception(error)

    thread = threading.Thread(target=target, name="server", daemon=True)
    thread.start()
    accepting = started.result()
    try:
        yield url
    finally:
        with suppress(RuntimeError):  # the loop has already ended
            server.loop.call_soon_threadsafe(accepting.cancel)
        thread.join()
