"""Any server with OpenAI's completions as the taker of our requests: open loop, in real time."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import string
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit

from ..config.checks import check_number, check_positive
from ..serving.request import Request
from .measures import Answer

CHARS = "\n !$&',-.3:;?" + string.ascii_uppercase + string.ascii_lowercase  # Tiny Shakespeare's
# What not every server knows. ignore_eos is vLLM's own: an answer is as long as asked for.
EXTRAS = ({"ignore_eos": True, "stream_options": {"include_usage": True}}, {})


class Failed(OSError):
    """A request that got no whole answer; `status` is HTTP's, where there was one."""

    def __init__(self, why: str, status: int | None = None):
        super().__init__(why)
        self.status = status


class Served(NamedTuple):
    """What a run over all requests gave."""

    answers: dict[int, Answer]
    errors: dict[int, str]
    busy: float  # the share of the time in which this process computed


@dataclass(frozen=True)
class Target:
    """A server, and how it is asked. Raises ValueError.

    A load test is for one's own server: the address must be this machine's, or `remote` be set.
    `chars` are the characters of the prompts, by token. `timeout` are seconds without a byte.
    """

    url: str
    model: str = ""
    chars: str = CHARS
    temperature: float = 0.0
    timeout: float = 60.0
    remote: bool = False

    def __post_init__(self):
        check_number("temperature", self.temperature, 0.0, 100.0)
        check_positive("timeout", self.timeout)
        try:
            parts = urlsplit(self.url)
            host, _ = parts.hostname, parts.port
        except ValueError:
            host = None
        if not host or parts.scheme not in ("http", "https"):
            raise ValueError(f"--url {self.url!r}: give an address as in http://127.0.0.1:8000")
        if not self.remote and not _is_loopback(host):
            raise ValueError(
                f"--url {self.url}: {host} is another machine, and a load test takes all that a "
                f"server has: add --remote if it is yours"
            )

    def body(self, request: Request) -> dict:
        """What is sent for a request, without EXTRAS."""
        prompt = "".join(self.chars[token] for token in request.prompt.tolist())
        body = {"model": self.model, "prompt": prompt, "max_tokens": request.max_new_tokens}
        body |= {"temperature": self.temperature, "stream": True}
        return body | ({"seed": request.seed} if self.temperature else {})

    def client(self):
        """A client of httpx that opens as many connections as there are requests."""
        import httpx

        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        timeout = httpx.Timeout(self.timeout, pool=None)
        address = self.url.rstrip("/").removesuffix("/v1")
        return httpx.AsyncClient(
            base_url=address, timeout=timeout, limits=limits, trust_env=self.remote
        )


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def first_model(target: Target) -> str:
    """The first model of /v1/models. Raises Failed."""

    async def ask() -> str:
        async with target.client() as client:
            response = await client.get("/v1/models")
            return response.json()["data"][0]["id"]

    try:
        return asyncio.run(_plainly(target, ask()))
    except (ValueError, KeyError, IndexError, TypeError):
        raise Failed(f"{target.url}/v1/models names no model: give --model") from None


def understood(target: Target, request: Request) -> dict:
    """Those of EXTRAS that the server takes. Raises Failed with what it says to a plain request."""
    for extras in EXTRAS:
        _, errors, _ = serve(target, [request], extras)
        if not errors:
            return extras
    raise Failed(f"{target.url}: {errors[request.id]}")


def serve(target: Target, requests: Sequence[Request], extras: dict) -> Served:
    """Send each request when it arrives, whether or not others are answered, and wait for all."""
    answers, errors = {}, {}

    async def one(client, request: Request, start: float) -> None:
        await asyncio.sleep(start + request.arrival - time.perf_counter())
        body = target.body(request) | extras
        try:
            answers[request.id] = await _plainly(target, _answer(client, body, start))
        except Failed as why:
            errors[request.id] = str(why)

    async def everyone() -> None:
        async with target.client() as client:
            start = time.perf_counter()
            await asyncio.gather(*(one(client, request, start) for request in requests))

    began = time.perf_counter(), time.process_time()
    asyncio.run(everyone())
    busy = (time.process_time() - began[1]) / (time.perf_counter() - began[0])
    return Served(answers, errors, busy)


async def _plainly(target: Target, asked):
    """The result; errors of the network in a line. Raises Failed."""
    import httpx

    try:
        return await asked
    except httpx.ConnectError as error:
        why = f"nothing answers at {target.url} ({error}): start the server, or check the port"
    except httpx.TimeoutException:
        why = f"no byte for {target.timeout:g} s (--timeout)"
    except httpx.HTTPError as error:
        why = f"the connection broke: {error or type(error).__name__}"
    raise Failed(why) from None


async def _answer(client, body: dict, start: float) -> Answer:
    """One streamed completion: its characters, and the moment of each event that had any.

    With usage in the stream there are as many tokens as it says. Raises Failed, and httpx's errors.
    """
    text, moments, ended, n = "", [], False, None
    async with client.stream("POST", "/v1/completions", json=body) as response:
        await _check_stream(response)
        async for data in _events(response):
            if data == "[DONE]":
                ended = True
                break
            event = _json(data)
            n = (event.get("usage") or {}).get("completion_tokens", n)
            for choice in event.get("choices", []):
                ended |= choice.get("finish_reason") is not None
                if piece := choice.get("text"):
                    text += piece
                    moments.append(time.perf_counter() - start)
    if not ended or not moments:
        raise Failed(f"the answer stopped after {len(moments)} events, without its end")
    return Answer(list(text) if n in (None, len(text)) else [None] * n, moments)


async def _check_stream(response) -> None:
    """Raises Failed unless server-sent events follow."""
    kind = response.headers.get("content-type", "none")
    if response.status_code == 200 and kind.startswith("text/event-stream"):
        return
    said = (await response.aread()).decode(errors="replace")[:200]
    if response.status_code != 200:
        raise Failed(f"HTTP {response.status_code}: {said}", response.status_code)
    raise Failed(f"the answer is no stream of events, but {kind}: {said}")


async def _events(response) -> AsyncIterator[str]:
    """The data of each server-sent event."""
    held = b""
    async for part in response.aiter_bytes():
        *lines, held = (held + part).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip().decode()


def _json(data: str) -> dict:
    try:
        event = json.loads(data)
    except ValueError:
        event = None
    if not isinstance(event, dict):
        raise Failed(f"an event that is no JSON object: {data[:200]}")
    if error := event.get("error"):
        raise Failed(str(error.get("message", error) if isinstance(error, dict) else error))
    return event
