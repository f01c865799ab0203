"""Other people's serving, as functions that are timed beside ours.

Any server with OpenAI's completions, and Hugging Face's continuous batching of the same weights:
from requests to replies, in real time.
"""

from __future__ import annotations

import asyncio
import json
import logging
import string
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable

import torch
from torch import Tensor

from ..serving.request import Request
from .arrivals import Replies, Reply

HUGGING_FACE = "Hugging Face"
CHARS = "\n !$&',-.3:;?" + string.ascii_uppercase + string.ascii_lowercase  # Tiny Shakespeare's
# What not every server knows. ignore_eos is vLLM's own: a reply is as long as asked for.
EXTRAS = {"ignore_eos": True, "stream_options": {"include_usage": True}}


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
                tried = client.post("/v1/completions", json=self._body(chars[0], 1) | EXTRAS)
                self.extras = EXTRAS if tried.status_code == 200 else {}
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ConnectionError(f"no server answers at {url}: {_named(error)}") from None
        except (ValueError, KeyError, IndexError, TypeError):
            raise ConnectionError(f"{url}/v1/models names no model: give --model") from None

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
        body = self._body(prompt, request.max_new_tokens) | self.extras
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
            raise ConnectionError(f"the reply stopped after {len(moments)} events, without its end")
        if n not in (None, len(text)):
            return Reply([None] * n, moments)
        number = {char: i for i, char in enumerate(self.chars)}
        return Reply([number.get(char) for char in text], moments)

    def _body(self, prompt: str, n_new: int) -> dict:
        asked = {"model": self.model, "prompt": prompt, "max_tokens": n_new}
        return asked | {"temperature": 0.0, "stream": True}


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


def continuous_batching(
    config: dict, weights: dict[str, Tensor], running: int
) -> Callable[[list[Request]], Replies]:
    """A function that serves greedy requests with transformers' continuous batching.

    `config` and `weights` are those of an export. At most `running` texts share a step, and as many
    blocks are there as they can need. A step reads at most 256 tokens, which was its best on a CPU;
    attention is PyTorch's, as its paged kernels need a GPU. Prompts are cut, and beginnings shared:
    what our last scheme does. Raises ImportError without transformers 5.17 or later.
    """
    try:
        from transformers import AutoConfig, AutoModelForCausalLM
        from transformers.generation import ContinuousBatchingConfig, GenerationConfig

        shape = AutoConfig.for_model(**config)
        room = {"page_size": 16, "num_blocks": running * -(-shape.max_position_embeddings // 16)}
        room |= {"max_requests_per_batch": running, "max_batch_tokens": 256}
        how = ContinuousBatchingConfig(**room)
    except (ImportError, TypeError) as error:
        needed = "pip install 'transformers>=5.17,<6'"
        raise ImportError(f"{error}: {needed}") from error
    model = AutoModelForCausalLM.from_config(shape, dtype=torch.float32)
    model.load_state_dict(weights)
    greedy = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=None)
    settings = {"generation_config": greedy, "continuous_batching_config": how}
    # One of its warnings comes with every start.
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.ERROR)

    def serve(requests: list[Request]) -> Replies:
        with model.eval().continuous_batching_context_manager(**settings) as manager:
            return _collect(manager, requests)

    return serve


def _collect(manager, requests: list[Request]) -> Replies:
    """Hand in each request when it arrives, then collect."""
    replies, start = {}, time.perf_counter()
    for request in requests:  # as they arrive
        time.sleep(max(0.0, start + request.arrival - time.perf_counter()))
        asked = {"request_id": str(request.id), "max_new_tokens": request.max_new_tokens}
        manager.add_request(request.prompt.tolist(), record_timestamps=True, **asked)
    while len(replies) < len(requests):
        got = manager.get_result(timeout=1)
        if got is None and not manager.is_running():
            raise RuntimeError(f"{HUGGING_FACE}: its thread ended with {len(replies)} replies")
        if got and got.error:
            raise RuntimeError(f"{HUGGING_FACE}: request {got.request_id}: {got.error}")
        if got and got.is_finished():
            moments = [moment - start for moment in got.timestamps]
            replies[int(got.request_id)] = Reply(got.generated_tokens, moments)
    return replies
