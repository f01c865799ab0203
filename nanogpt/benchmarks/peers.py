"""Other people's serving and decoding, as functions that are timed beside ours.

Any server with OpenAI's completions, and Hugging Face's continuous batching of the same weights:
from requests to replies, in real time. Hugging Face's generate(): a function for the ladder.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import string
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial

import torch
from torch import Tensor

from ..model.gpt import GPT
from ..serving.request import Request
from .arrivals import RealClock, Replies, Reply

HUGGING_FACE = "Hugging Face"
INSTALL = "pip install 'transformers>=5.17,<6'"
CHARS = "\n !$&',-.3:;?" + string.ascii_uppercase + string.ascii_lowercase  # Tiny Shakespeare's
# What not every server knows. ignore_eos is vLLM's own: a reply is as long as asked for.
EXTRAS = {"ignore_eos": True, "stream_options": {"include_usage": True}}


class HTTPServer:
    """A server with /v1/completions. Called with greedy requests it returns the whole replies.

    Each request is sent when it arrives, whether or not others are answered. `errors` counts those
    that failed, by reason; `busy` has, for each call, the share of a core that this client needed.
    A token of a reply is the number of its character in `chars`, None for one that is not there.
    `timeout` are seconds without a byte. Raises ValueError for what is no address,
    and ConnectionError where nothing answers.
    """

    def __init__(self, url: str, model: str = "", chars: str = CHARS, timeout: float = 60.0):
        import httpx

        try:
            address = httpx.URL(url.rstrip("/").removesuffix("/v1"))
        except httpx.InvalidURL:
            address = httpx.URL()
        if address.scheme not in ("http", "https") or not address.host:
            raise ValueError(f"--url {url!r}: give an address as in http://127.0.0.1:8000")
        self.url, self.model, self.chars, self.timeout = url, model, chars, timeout
        self.errors, self.busy = Counter(), []
        self.settings = {"base_url": address, "trust_env": False}
        self.settings |= {"limits": httpx.Limits(max_connections=None), "timeout": timeout}
        try:
            with httpx.Client(**self.settings) as client:
                self.model = model or client.get("/v1/models").json()["data"][0]["id"]
                tried = client.post("/v1/completions", json=self._body(chars[0], 1) | EXTRAS)
                self.extras = EXTRAS if tried.status_code == 200 else {}
        except httpx.HTTPError as error:
            raise ConnectionError(self._why(error)) from None
        except (ValueError, KeyError, IndexError, TypeError):
            raise ConnectionError(f"{url}/v1/models names no model: give --model") from None

    def __call__(self, requests: list[Request]) -> Replies:
        began = time.perf_counter(), time.process_time()
        replies, errors = asyncio.run(self._serve(requests))
        if not replies:
            raise ConnectionError(f"{self.url}: no request was answered: {next(iter(errors))}")
        self.errors += errors
        self.busy.append((time.process_time() - began[1]) / (time.perf_counter() - began[0]))
        return replies

    async def _serve(self, requests: list[Request]) -> tuple[Replies, Counter]:
        import httpx

        replies, errors = {}, Counter()

        async def one(request: Request) -> None:
            await asyncio.sleep(start + request.arrival - time.perf_counter())
            try:
                replies[request.id] = await self._reply(client, request, start)
            except (ConnectionError, httpx.HTTPError) as error:
                errors[self._why(error)] += 1

        async with httpx.AsyncClient(**self.settings) as client:
            start = time.perf_counter()
            await asyncio.gather(*map(one, requests))
        return replies, errors

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

    def _why(self, error: Exception) -> str:
        kind = type(error).__name__
        if kind.endswith("Timeout"):
            return f"no byte for {self.timeout:g} s"
        if kind == "ConnectError":
            return f"nothing answers at {self.url} ({error}): start the server, or check the port"
        return (
            str(error)
            if isinstance(error, ConnectionError)
            else f"the connection broke: {error or kind}"
        )


async def _events(response) -> AsyncIterator[dict]:
    """The events of a response up to [DONE], each a JSON object. Raises ConnectionError."""
    if response.status_code != 200:
        said = (await response.aread()).decode(errors="replace")[:200]
        raise ConnectionError(f"HTTP {response.status_code}: {said}")
    held = b""
    async for part in response.aiter_bytes():
        *lines, held = (held + part).split(b"\n")
        for data in (line[5:].strip() for line in lines if line.startswith(b"data:")):
            if data == b"[DONE]":
                return
            try:
                event = json.loads(data)
            except ValueError:
                event = None
            if not isinstance(event, dict) or event.get("error"):
                raise ConnectionError(f"the server sent {data.decode(errors='replace')[:200]}")
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
        raise ImportError(f"{error}: it needs transformers 5.17 or later: {INSTALL}") from error
    model = AutoModelForCausalLM.from_config(shape, dtype=torch.float32)
    model.load_state_dict(weights)
    greedy = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=None)
    settings = {"generation_config": greedy, "continuous_batching_config": how}
    # Its warnings, of which one comes with every start, are not for the reader of a table.
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.ERROR)

    def serve(requests: list[Request]) -> Replies:
        gc.collect()  # not while the clock runs
        with model.eval().continuous_batching_context_manager(**settings) as manager:
            return _serve(manager, requests)

    return serve


def _serve(manager, requests: list[Request]) -> Replies:
    """Hand in each request when it arrives."""
    replies, clock = {}, RealClock()
    for request in sorted(requests, key=lambda request: request.arrival):
        clock.wait_until(request.arrival)
        asked = {"request_id": str(request.id), "max_new_tokens": request.max_new_tokens}
        manager.add_request(request.prompt.tolist(), record_timestamps=True, **asked)
    while len(replies) < len(requests):
        got = manager.get_result(timeout=1)
        if got is None and not manager.is_running():
            raise RuntimeError(f"{HUGGING_FACE}: its thread ended with {len(replies)} replies")
        if got is not None and got.error:
            raise RuntimeError(f"{HUGGING_FACE}: request {got.request_id}: {got.error}")
        if got is not None and got.is_finished():
            moments = [moment - clock.start for moment in got.timestamps]
            replies[int(got.request_id)] = Reply(got.generated_tokens, moments)
    return replies


def hugging_face(model: GPT, n_new: int) -> dict[str, Callable[[], Tensor]]:
    """generate() of a GPT-2 of the model's shape in transformers, with dynamic and static cache.

    Its weights are random, and its arithmetic (GELU) and its sampling are its own, so its tokens
    are not compared. Each function returns n_new tokens, (1, n_new). Raises ImportError without
    transformers.
    """
    try:
        from transformers import GPT2Config, GPT2LMHeadModel
    except ImportError as error:
        raise ImportError(f"{error}: {INSTALL}") from error
    c, weight = model.config, model.lm_head.weight
    sizes = {name: getattr(c, name) for name in ("vocab_size", "n_embd", "n_layer", "n_head")}
    shape = GPT2Config(n_positions=c.block_size + 1, bos_token_id=None, eos_token_id=None, **sizes)
    theirs = GPT2LMHeadModel(shape).to(device=weight.device, dtype=weight.dtype).eval()
    prompt = torch.zeros(1, 1, dtype=torch.int64, device=weight.device)
    plain = {"attention_mask": torch.ones_like(prompt), "do_sample": True, "top_k": 0}
    plain |= {"max_new_tokens": n_new, "min_new_tokens": n_new, "pad_token_id": 0}
    run = partial(theirs.generate, prompt, **plain)
    return {
        f"{HUGGING_FACE}, dynamic cache": lambda: run(use_cache=True)[:, 1:],
        f"{HUGGING_FACE}, static cache": lambda: run(cache_implementation="static")[:, 1:],
    }
