"""The completions part of OpenAI's interface: what a body asks for, and what an answer looks like.

Knows neither sockets nor threads. Beside the fields of that interface there is `top_k`, as other
servers have it, and every answer names its `seed`: the same request with it gives the same text. Of
a list of prompts the i-th is drawn with seed + i.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Callable

from torch import Tensor

from ..config.checks import check_int, check_number, check_switch, check_type
from ..data.tokenizer import CharTokenizer
from ..decoding.limits import MOST_NEW, check_seed
from ..decoding.sampling import SamplingParams
from ..serving.request import Logprob, Output, Request

# Fields that this server does not have, and the values at which they ask for nothing.
ABSENT = {"n": 1, "best_of": 1, "presence_penalty": 0, "frequency_penalty": 0}
FIELDS = {"model", "prompt", "max_tokens", "temperature", "top_p", "top_k", "seed", "stop"}
FIELDS |= {"stream", "stream_options", "logprobs", "echo"}
UNUSED = {"user", "ignore_eos"}  # they change no token here
STOPS = 4  # texts that may end an answer, as in OpenAI's interface
LOGPROBS = 5  # most tokens beside which their log-probabilities stand, as there


class Refused(Exception):
    """A request that gets no answer: `status` is HTTP's, `param` the field that is wrong."""

    def __init__(self, status: int, message: str, param: str | None = None):
        super().__init__(message)
        self.status, self.param = status, param

    def body(self) -> dict:
        """The error as that interface writes it."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        error = {"message": str(self)[:1000], "type": kind, "param": self.param}
        return {"error": {**error, "code": self.status}}


class Completion:
    """The answer to one prompt: what is wanted beside the tokens, and its text as they come.

    It shows `most` of the drawn tokens, with `echo` after the prompt. The engine's side calls
    `take` and `end`, the client's `receive`, all in one event loop. It holds at most the request's
    own max_tokens, however slowly its client reads. A text that may be the beginning of a stop is
    held back.
    """

    def __init__(
        self,
        request: Request,
        chars: str,
        name: str = "",
        stop: tuple[str, ...] = (),
        stream: bool = False,
        usage: bool = False,
        *,
        echo: bool = False,
        most: int = MOST_NEW,
        index: int = 0,
    ):
        self.request, self.chars, self.echo = request, chars, echo
        self.most, self.index = most, index
        self.stop = sorted(stop, key=len, reverse=True)  # of several that are complete the longest
        self.stream, self.usage = stream, usage  # usage: a stream ends with the counts of tokens
        name_of_all = request.id.removesuffix(f"-{index}") if index else request.id
        self.head = {"id": name_of_all, "object": "text_completion", "created": int(time.time())}
        self.head |= {"model": name, "seed": request.seed}
        # What stands in every event of a stream, before its piece and after it.
        shape = {"index": index, "text": "\0", "logprobs": None, "finish_reason": None}
        self._shape = event({**self.head, "choices": [shape]}).rpartition(json.dumps("\0"))
        self.begun = time.perf_counter()
        self.reason: str | None = None  # why the text has ended: "stop" or "length"
        self.error: Refused | None = None  # what ended it early
        self.close: Callable[[], None] | None = None  # set while a slow client holds up a write
        self._held, self.n_new, self._n_shown = "", 0, 0
        self._logprobs: list[Logprob] = []  # of characters that are not sent yet
        self._outputs: list[Output] = []
        self._wake = asyncio.Event()

    def take(self, outputs: list[Output]) -> None:
        """The next tokens from the engine."""
        self._outputs += outputs
        self._wake.set()

    def end(self, error: Refused) -> None:
        """End it early. A client that holds it up loses its connection."""
        self.error = self.error or error
        self._wake.set()
        if self.close:
            self.close()

    async def receive(self) -> str:
        """What the tokens since the last call add to the text. Raises `error`."""
        await self._wake.wait()
        self._wake.clear()
        if self.error:
            raise self.error
        outputs, self._outputs = self._outputs, []
        prompt = self.request.prompt.tolist() if self.echo and outputs[0].index == 0 else []
        if prompt:
            self._logprobs.append(Logprob(prompt[0], None, {}))  # nothing is before it
        for output in outputs:
            self._logprobs += output.logprobs
        tokens = [output.token for output in outputs][: self.most]
        text = "".join(self.chars[token] for token in prompt)
        return text + self.add(tokens, outputs[-1].finished)

    def add(self, tokens: list[int], last: bool) -> str:
        """What can be sent now. `reason` is set when the text is complete."""
        for token in tokens:
            self.n_new += 1
            self._held += self.chars[token]
            for stop in self.stop:
                if self._held.endswith(stop):
                    self._held, self.reason = self._held[: -len(stop)], "stop"
                    break
            if self.reason:
                break
        if last and not self.reason:
            self.reason = "length"
        n = len(self._held) - (0 if self.reason else self._may_stop())
        piece, self._held = self._held[:n], self._held[n:]
        return piece

    def _may_stop(self) -> int:
        """How many of the last characters may become a stop."""
        lengths = range(min(len(self._held), max(map(len, self.stop), default=0)), 0, -1)
        ends = (n for n in lengths for stop in self.stop if stop.startswith(self._held[-n:]))
        return next(ends, 0)

    def event(self, piece: str) -> str:
        """The next event of a streamed answer, if there is one to send."""
        if self.request.logprobs is None and not self.reason:
            before, _, after = self._shape
            return f"{before}{json.dumps(piece)}{after}" if piece else ""
        choice = self.choice(piece, self.reason)
        return event({**self.head, "choices": [choice]}) if piece or self.reason else ""

    def choice(self, text: str, reason: str | None) -> dict:
        """A piece of the answer, or all of it."""
        shown = None if self.request.logprobs is None else self._shown(len(text))
        return {"index": self.index, "text": text, "logprobs": shown, "finish_reason": reason}

    def _shown(self, n: int) -> dict:
        """The log-probabilities of the next n characters, each of which is a token."""
        own, self._logprobs = self._logprobs[:n], self._logprobs[n:]
        start, self._n_shown = self._n_shown, self._n_shown + n
        top = [{**p.top, p.token: p.value} if p.value is not None else None for p in own]
        return {
            "tokens": [self.chars[p.token] for p in own],
            "token_logprobs": [p.value if p.value is None else finite(p.value) for p in own],
            "top_logprobs": [p and {self.chars[t]: finite(x) for t, x in p.items()} for p in top],
            "text_offset": list(range(start, start + n)),
        }


class Reader:
    """Reads bodies for one model. A text has at most `longest` tokens, its last one not counted."""

    def __init__(self, tokenizer: CharTokenizer, name: str, longest: int):
        self.tokenizer, self.name, self.longest = tokenizer, name, longest

    def read(self, data: bytes) -> list[Completion]:
        """What a body in JSON asks for, by prompt. Raises Refused, which names the field."""
        try:
            body = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise Refused(400, f"the body is no JSON: {error}") from None
        if not isinstance(body, dict):
            raise Refused(400, 'the body must be a JSON object, as in {"prompt": "KING:"}')
        body = {name: value for name, value in body.items() if value is not None}
        self._check_names(body)
        prompts = self._prompts(body.get("prompt"))
        most = self.longest + 1 - max(map(len, prompts))
        echo = _field(body, "echo", False, check_switch)
        n_new = _field(body, "max_tokens", min(16, most), check_int, 0 if echo else 1, most)
        n_top = _field(body, "logprobs", 0, check_int, 0, LOGPROBS) if "logprobs" in body else None
        seed = _field(body, "seed", secrets.randbits(31), check_seed)
        asks = {"sampling": self._sampling(body), "max_new_tokens": max(n_new, 1)}
        asks |= {"logprobs": n_top, "echo": echo and n_top is not None}
        options = _field(body, "stream_options", {}, check_type, dict)
        how = {"stream": _field(body, "stream", False, check_switch), "stop": _stops(body)}
        how |= {"usage": options.get("include_usage") is True, "echo": echo, "most": n_new}
        name, answers = f"cmpl-{secrets.token_hex(12)}", []
        for i, prompt in enumerate(prompts):
            own = (seed + i) % 2**64 if i else seed
            request = Request(prompt, seed=own, id=f"{name}-{i}" if i else name, **asks)
            answers.append(Completion(request, self.tokenizer.chars, self.name, **how, index=i))
        return answers

    def _check_names(self, body: dict) -> None:
        """Raises Refused for another model, and for a field that this server does not have."""
        if (name := body.get("model", self.name)) != self.name:
            message = f"model {json.dumps(name):.60} is not here: this server has {self.name!r}"
            raise Refused(404, message, "model")
        for name, value in body.items():
            if name not in FIELDS | UNUSED and value not in (ABSENT.get(name), [], {}):
                known = f"leave it out; the fields are {', '.join(sorted(FIELDS))}"
                why = f"{name:.60}={json.dumps(value):.60}: this server does not have it: {known}"
                raise Refused(400, why, name)

    def _prompts(self, prompt) -> list[Tensor]:
        """The tokens (T,) of each prompt: a text or a list of tokens, or a list of either."""
        several = isinstance(prompt, list) and prompt and not isinstance(prompt[0], int)
        return [self._prompt(one) for one in (prompt if several else [prompt])]

    def _prompt(self, prompt) -> Tensor:
        tokens = isinstance(prompt, list) and all(type(token) is int for token in prompt)
        if not tokens and not isinstance(prompt, str):
            message = f"prompt={json.dumps(prompt):.60}: pass a text, its tokens, or a list of them"
            raise Refused(400, message, "prompt")
        if len(prompt) > self.longest:
            message = f"a prompt of {len(prompt):,} tokens: the model reads {self.longest} at most"
            raise Refused(400, message, "prompt")
        last = len(self.tokenizer) - 1
        if tokens and (wrong := [token for token in prompt if not 0 <= token <= last]):
            raise Refused(400, f"token {wrong[0]!r:.60}: must be in [0, {last}]", "prompt")
        try:
            return self.tokenizer.encode(self.tokenizer.decode(prompt) if tokens else prompt)
        except ValueError as error:
            raise Refused(400, str(error), "prompt") from None

    def _sampling(self, body: dict) -> SamplingParams:
        """Below 1e-6 it takes the likeliest token, and then top_p and top_k change nothing."""
        temperature = _field(body, "temperature", 1.0, check_number, 0.0, 1e6)
        top_p = _field(body, "top_p", 1.0, check_number, 1e-6, 1.0)
        top_k = _field(body, "top_k", 0, check_int, -1, len(self.tokenizer))  # 0 and -1: all
        if temperature < 1e-6:
            return SamplingParams(greedy=True)
        return SamplingParams(temperature, max(top_k, 0) or None, None if top_p == 1 else top_p)


def _field(body: dict, name: str, default, check, *limits):
    """A field of a body, checked."""
    value = body.get(name, default)
    try:
        check(name, value, *limits)
    except (TypeError, ValueError) as error:
        words = str(error).rpartition(": ")[2].lower()  # what it must be: true, not True
        need = "must be an object" if check is check_type else words
        raise Refused(400, f"{name}={json.dumps(value):.60}: {need}", name) from None
    return value


def _stops(body: dict) -> tuple[str, ...]:
    stop = body.get("stop", [])
    stop = [stop] if isinstance(stop, str) else stop
    good = isinstance(stop, list) and len(stop) <= STOPS
    if not good or not all(isinstance(text, str) and text for text in stop):
        raise Refused(400, f"stop must be a text or up to {STOPS} of them, none empty", "stop")
    return tuple(stop)


def counts(completions: list[Completion]) -> dict:
    """The counts of tokens, of all prompts together."""
    n = sum(len(completion.request.prompt) for completion in completions)
    new = sum(completion.n_new for completion in completions)
    return {"usage": {"prompt_tokens": n, "completion_tokens": new, "total_tokens": n + new}}


def finite(logprob: float) -> float:
    """JSON has no infinite number, and no NaN."""
    return max(-9999.0, logprob)


def event(data: dict) -> str:
    """One server-sent event."""
    return f"data: {json.dumps(data)}\n\n"
