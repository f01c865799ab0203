"""The server's routes, as a FastAPI application: what may be asked, by whom, and the errors."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager
from difflib import get_close_matches
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import prometheus_client as prometheus
from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .. import __version__
from .answers import TextResponse
from .completions import Completion
from .requests import ChatBody, CompletionBody, Json, Refused, RequestBody, show
from .server import Server

BODY = 2**20  # most bytes of a body
_QUICK = 2**14  # bytes of a body parsed in the event loop; a longer one is parsed in a thread
_LOGGED = 1000  # names of ignored fields that are remembered, so that each is logged once

_log = logging.getLogger(__name__)


# ------------------------------------------------------------------ the routes


def _server_of(request: Request) -> Server:
    server: Server = request.app.state.server
    return server


async def complete(request: Request) -> Response:
    """Continue prompts: in one response, or as server-sent events while tokens are sampled."""
    data = await _read(request)
    parse = _server_of(request).parser.read
    # A long body takes so much time that the event loop would miss tokens of other responses.
    completions = parse(data) if len(data) <= _QUICK else await run_in_threadpool(parse, data)
    return _answer(request, completions)


async def chat(request: Request) -> Response:
    """The next message of a chat, in the same ways."""
    data = await _read(request)
    # The model's chat template is a program: it may take long, whatever it is given.
    return _answer(request, await run_in_threadpool(_server_of(request).parser.read_chat, data))


async def models(request: Request) -> Response:
    """The model, once for each of its names."""
    server = _server_of(request)
    return _json({"object": "list", "data": [_model(server, name) for name in server.parser.names]})


async def model(request: Request, name: str) -> Response:
    """The model of this name, which may contain slashes."""
    server = _server_of(request)
    if name not in server.parser.names:
        own = ", ".join(map(show, server.parser.names))
        raise Refused(
            404,
            f"model {show(name)} does not exist: this server has {own[:200]}",
            "model",
            "model_not_found",
        )
    return _json(_model(server, name))


async def health(request: Request) -> Response:
    """200 if requests are being answered, otherwise the reason why not."""
    trouble = _server_of(request).trouble
    if trouble:
        raise trouble
    return _json({"status": "ok"})


async def metrics(request: Request) -> Response:
    """The metrics in Prometheus's format."""
    text = prometheus.generate_latest(_server_of(request).metrics.registry)
    return Response(text, headers={"Content-Type": prometheus.CONTENT_TYPE_LATEST})


def _add_routes(app: FastAPI) -> None:
    app.post("/v1/completions", openapi_extra=_body(CompletionBody))(complete)
    app.post("/v1/chat/completions", openapi_extra=_body(ChatBody))(chat)
    app.get("/v1/models")(models)
    app.get("/v1/models/{name:path}")(model)
    app.get("/health")(health)
    app.get("/metrics")(metrics)


def _body(kind: type[RequestBody]) -> Json:
    """What /docs says of a body, which `RequestParser` parses from its bytes."""
    schema = {"schema": kind.model_json_schema()}
    return {"requestBody": {"required": True, "content": {"application/json": schema}}}


# Addresses of other servers.
_ELSEWHERE = {
    "/v1/responses": "use POST /v1/chat/completions",  # openai-agents' default
    "/api/chat": "use POST /v1/chat/completions",  # Ollama's
    "/api/generate": "use POST /v1/completions",
    "/v1/messages": "use POST /v1/chat/completions",  # Anthropic's
}


def _model(server: Server, name: str) -> Json:
    about = {"id": name, "object": "model", "owned_by": "nanogpt", "created": server.created}
    return {**about, "max_model_len": server.parser.longest}


def _json(data: Json) -> Response:
    # json.dumps writes ASCII, also for half of a surrogate pair that a client has sent.
    return Response(json.dumps(data), media_type="application/json")


async def _read(request: Request) -> bytes:
    """The body, if it is JSON and not too long. Raises Refused."""
    # 1. A web page of any origin may send other types without asking the browser's permission.
    kind = request.headers.get("Content-Type", "")
    if kind.partition(";")[0].strip().lower() != "application/json":
        raise Refused(
            415,
            f"the Content-Type is {kind!r:.60}, not application/json: "
            f"set the header, for example with curl -H 'Content-Type: application/json'",
        )
    # 2. Never keep more of it than the limit; uvicorn drops the rest.
    longer = Refused(413, f"the body is longer than {BODY:,} bytes, the limit here")
    length = request.headers.get("Content-Length", "")
    if length.isdecimal() and int(length) > BODY:
        raise longer
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > BODY:
            raise longer
    return bytes(data)


def _answer(request: Request, completions: list[Completion]) -> Response:
    """The response with these texts; fields that were ignored are logged once."""
    logged = request.app.state.logged
    shared = completions[0].shared
    for name in shared.ignored:
        shown = show(name)  # a name may be as long as a body
        if shown not in logged and len(logged) < _LOGGED:
            logged.add(shown)
            known = type(shared.body).model_fields
            near = get_close_matches(name[:60], known, n=1, cutoff=0.8)
            guess = f": did you mean {near[0]}?" if near else ""
            _log.warning("a client sent %s, which is ignored%s", shown, guess)
    return TextResponse(_server_of(request), completions)


# ------------------------------------------------------------------ errors


def _refused(refusal: Refused) -> Response:
    """An error in OpenAI's format."""
    response = _json(refusal.body())
    response.status_code = refusal.status
    if refusal.status in (429, 503):
        response.headers["Retry-After"] = "1"
    return response


async def _refuse(request: Request, refusal: Refused) -> Response:
    """What a route or an answer has refused."""
    return _refused(refusal)


async def _no_route(request: Request, error: HTTPException) -> Response:
    """404 and 405, as Starlette's router raises them."""
    path = request.url.path
    allowed = (error.headers or {}).get("Allow", "")
    if error.status_code == 405:
        says = f"{show(path, 100)} accepts {allowed}, not {request.method:.20}"
    else:
        routes = [route for route in request.app.routes if isinstance(route, APIRoute)]
        known = ", ".join(
            f"{method} {one.path_format}" for one in routes for method in one.methods or ()
        )
        instead = _ELSEWHERE.get(path, f"this server has {known}")
        # Clients of openai and LangChain whose base URL lacks /v1, or has the rest of the path too.
        if path.endswith(("/completions", "/models")):
            instead = "end the client's base URL with /v1"
        says = f"{show(path, 100)} does not exist: {instead}"
    response = _refused(Refused(error.status_code, says))
    if allowed:
        response.headers["Allow"] = allowed
    return response


async def _left(request: Request, error: ClientDisconnect) -> Response:
    """The client left while its body was arriving; nobody reads this."""
    return _refused(Refused(499, "the client has closed its connection"))


async def _failed(request: Request, error: Exception) -> Response:
    """An error of the server's own, which uvicorn also logs."""
    return _refused(Refused(500, f"the server failed: {type(error).__name__}"))


# ------------------------------------------------------------------ who may ask


class Door:
    """Refuses requests that a foreign web page may have sent, and counts responses by status.

    A page may call this server by a domain name that it resolves to this address (DNS rebinding),
    and then read the responses. So the Host must be an IP address or one of `hosts`. A browser
    sends the page's Origin, and a preflight request before it sends JSON to another origin: pages
    of `origins` are allowed, "*" allows all.
    """

    def __init__(self, app: ASGIApp, server: Server, hosts: set[str], origins: set[str]):
        self.app = app
        self.server = server
        self.hosts = hosts
        self.origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # the server's start and end
            await self.app(scope, receive, send)
            return

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.server.metrics.answers.labels(message["status"]).inc()
            await send(message)

        request = Request(scope)
        try:
            self._check(request)
        except Refused as refusal:
            await _refused(refusal)(scope, receive, counted)
            return
        await self.app(scope, receive, counted)

    def _check(self, request: Request) -> None:
        """Raises Refused."""
        host = request.headers.get("Host")
        if host is not None and not self._is_own(name := _name_of(host)):
            raise Refused(
                403,
                f"unknown Host {name[:60]!r}: call the server by its IP address, or start it with "
                f"--allow-host {name[:60] or 'NAME'} if that is its name",
            )
        origin = request.headers.get("Origin")
        own = origin is None or origin.partition("://")[2] == host
        if origin is not None and not own and not self.origins & {origin, "*"}:
            raise Refused(
                403,
                f"pages from {origin!r:.60} may not call {host!r:.60}: "
                f"to allow them, start the server with --allow-origin {origin[:60]}",
            )

    def _is_own(self, name: str) -> bool:
        if name in self.hosts:
            return True
        try:
            ip_address(name)
        except ValueError:
            return False
        return True


def _name_of(host: str) -> str:
    """The name in a Host header, without the port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return host


# ------------------------------------------------------------------ all of it


def check_origin(origin: str) -> None:
    """Raise ValueError unless browsers send such an origin, or it is "*", which stands for all.

    "null" is the origin of a page that was opened from a file.
    """
    parts = urlsplit(origin)
    if origin not in ("*", "null") and (not parts.netloc or parts.path.strip("/")):
        raise ValueError(
            f"--allow-origin {origin!r:.60}: write a scheme and a host, such as "
            f"http://localhost:3000, or * for all"
        )


def app_of(server: Server, hosts: Iterable[str], origins: Collection[str]) -> ASGIApp:
    """The application of a server, whose engine runs as long as the application does.

    Raises ValueError for an origin that no browser sends.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        server.start(asyncio.get_running_loop())
        yield
        server.stop()

    handlers: dict[Any, Any] = {
        Refused: _refuse,
        HTTPException: _no_route,
        ClientDisconnect: _left,
        Exception: _failed,
    }
    # The page /docs shows /openapi.json with a script that browsers fetch from FastAPI's network.
    app = FastAPI(
        title="nanogpt",
        version=__version__,
        lifespan=lifespan,
        exception_handlers=handlers,
        redoc_url=None,
        swagger_ui_oauth2_redirect_url=None,
    )
    app.state.server = server
    app.state.logged = set()
    _add_routes(app)
    for origin in origins:
        check_origin(origin)
    allowed = {origin.rstrip("/") for origin in origins}
    shared: ASGIApp = app
    if allowed:
        # The pages of these origins may read responses (CORS).
        shared = CORSMiddleware(
            app,
            allow_origins=sorted(allowed),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["X-Ignored-Fields"],
        )
    return Door(shared, server, {name.lower() for name in hosts}, allowed)
