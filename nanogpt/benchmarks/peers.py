"""Any server with OpenAI's completions, ours and other people's: from requests to replies."""

from __future__ import annotations

import asyncio
import json
import string
import time
from collections import Counter
from collections.abc import AsyncIterator

from ..serving.request import Request
from .load import Replies, Reply
from .timing import number_of

CHARS = "\n !$&',-.3:;?" + string.ascii_uppercase + string.ascii_lowercase  # Tiny Shakespeare's


class HTTPServer:
    """A server with /v1/completions. Called with greedy requests it returns the whole replies.

    Each request is sent when it arrives, whether or not others are answered. `errors` counts those
    that failed, by reason. A token of a reply is the number of its character in `chars`, None for
    one that is not there. After 60 s without a byte it is given up. Raises ConnectionError.
    """

    def __init__(self, url: str, model: str = "", chars: str = CHARS):
        import httpx

        self.url, self.model, self.chars, self.errors = url, model, chars, Counter()
        self.settings = {"base_url": url.rstrip("/").removesuffix("/v1"), "trust_env": False}
        self.settings |= {"limits": httpx.Limits(max_connections=None), "timeout": 60.0}
        try:
            with httpx.Client(**self.settings) as client:
                self.model = model or client.get("/v1/models").json()["data"][0]["id"]
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ConnectionError(f"no server answers at {url}: {_named(error)}") from None
        except (ValueError, KeyError, IndexError, TypeError):
            raise ConnectionError(f"{url}/v1/models names no model") from None

    def __call__(self, requests: list[Request]) -> Replies:
        return asyncio.run(self._serve(requests))

    async def _serve(self, requests: list[Request]) -> Replies:
        import httpx

        replies = {}

        async def one(request: Request) -> None:
            await asyncio.sleep(start + request.arrival - time.perf_counter())
            try:
                replies[request.id] = await self._reply(client, request, start)
            except (ConnectionError, httpx.HTTPError, ValueError) as error:
                self.errors[_named(error)] += 1

        async with httpx.AsyncClient(**self.settings) as client:
            start = time.perf_counter()
            await asyncio.gather(*map(one, requests))
        if not replies:
            raise ConnectionError(f"{self.url}: no request was answered: {list(self.errors)[-1]}")
        return replies

    async def _reply(self, client, request: Request, start: float) -> Reply:
        """One streamed completion: its characters, and the moment of each event that had any.

        With usage in the stream there are as many tokens as it says.
        """
        prompt = "".join(self.chars[token] for token in request.prompt.tolist())
        body = {"model": self.model, "prompt": prompt, "max_tokens": request.max_new_tokens}
        body |= {"temperature": 0.0, "stream": True, "stream_options": {"include_usage": True}}
        text, moments, ended, n = "", [], False, None
        async with client.stream("POST", "/v1/completions", json=body) as response:
            async for event in _events(response):
                n = (event.get("usage") or {}).get("completion_tokens", n)
                for choice in event.get("choices", []):
                    ended |= choice.get("finish_reason") is not None
                    if piece := choice.get("text"):
                        text += piece
                        moments.append(time.perf_counter() - start)
        if not ended or not moments:
            raise ConnectionError(
                f"the reply stopped after {number_of(len(moments), 'event')}, without its end"
            )
        if n not in (None, len(text)):
            return Reply([None] * n, moments)
        number = {char: i for i, char in enumerate(self.chars)}
        return Reply([number.get(char) for char in text], moments)


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


async def _events(response) -> AsyncIterator[dict]:
    """The events of a response up to [DONE], each a JSON object. Raises ConnectionError."""
    if response.status_code != 200:
        said = (await response.aread()).decode(errors="replace")[:200]
        raise ConnectionError(f"HTTP {response.status_code}: {said}")
    async for line in response.aiter_lines():
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            return
        if data == line:  # no event: an empty line, or a comment
            continue
        event = json.loads(data)
        if event.get("error"):
            raise ConnectionError(f"the server sent {data[:200]}")
        yield event
