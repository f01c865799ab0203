"""OpenAI's completions API: the bodies of requests, and the format of answers.

Knows neither sockets nor threads; the parameters are in parameters.py. Every answer names its
`seed`: the same request with it gives the same text. Choice i is sampled with seed + i.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NoReturn

from torch import Tensor

from ..data import CharTokenizer
from ..sampling import SamplingParams
from .parameters import Fields, Refused, is_greedy, read_parameters, show
from .sequence import Logprob, Output, Request

Json = dict[str, Any]


class FinishReason(str, Enum):
    """Why a text has ended, as OpenAI's API names it."""

    STOP = "stop"  # by a stop string
    LENGTH = "length"  # by max_tokens, or the context


class Completion:
    """The answer to one prompt of a body, whose checked fields are `fields`.

    It shows max_tokens of the drawn tokens, with echo after the prompt. The engine's side calls
    `take` and `end`, which call `tell`, all in one event loop. A text that may be the beginning of
    a stop is held back.
    """

    def __init__(self, request: Request, fields: Fields, chars: str, index: int):
        self.request = request
        self.fields = fields
        self.chars = chars
        self.index = index
        self.head = fields["head"] | {"seed": request.seed}
        # The text of every event of a stream, before its piece and after it.
        shape = {"index": index, "text": "\0", "logprobs": None, "finish_reason": None}
        self._shape = event({**self.head, "choices": [shape]}).rsplit(json.dumps("\0"), 1)
        self.begun = time.perf_counter()
        self.reason: FinishReason | None = None  # None while it goes on
        self.error: Refused | None = None  # the reason of an early end
        self.tell: Callable[[Completion], None] = lambda _: None
        self._text = ""  # can be sent now
        self._held = ""  # may become a stop
        self._usage_in_events = asks_for(fields, "continuous_usage_stats")
        self.n_new = 0
        self._n_shown = 0
        self._logprobs: list[Logprob] = []  # of characters that are not sent yet

    def take(self, outputs: list[Output]) -> None:
        """The next tokens from the engine."""
        if self.reason:  # they were drawn behind a stop
            return
        if self.fields["echo"] and outputs[0].index == 0:
            prompt = self.request.prompt.tolist()
            self._text = "".join(self.chars[token] for token in prompt)
            self._logprobs = [Logprob(prompt[0], None, {})]  # nothing is before it
        for output in outputs:
            self._logprobs += output.logprobs
            if self.fields["max_tokens"]:  # else the prompt alone is asked for
                self.n_new += 1
                self._held += self.chars[output.token]
            stops = [stop for stop in self.fields["stop"] if self._held.endswith(stop)]
            if stops and self.n_new > self.fields["min_tokens"]:
                if not self.fields["include_stop_str_in_output"]:
                    self._held = self._held.removesuffix(max(stops, key=len))
                self.reason = FinishReason.STOP
                break
        if outputs[-1].finished:
            self.reason = self.reason or FinishReason.LENGTH
        n = len(self._held) - (0 if self.reason else self._may_stop())
        self._text += self._held[:n]
        self._held = self._held[n:]
        self.tell(self)

    def end(self, error: Refused) -> None:
        """End it early."""
        self.error = self.error or error
        self.tell(self)

    def _may_stop(self) -> int:
        """How many of the last characters may become a stop."""
        stops = self.fields["stop"]
        longest = min(len(self._held), max(map(len, stops), default=0))
        for n in range(longest, 0, -1):
            if any(stop.startswith(self._held[-n:]) for stop in stops):
                return n
        return 0

    def event(self) -> str:
        """The next event of a streamed answer, if there is one to send."""
        if self._usage_in_events and (self.reason or self._text):
            return event({**self.head, "choices": [self.choice()], "usage": usage([self])})
        if self.reason or (self._text and self.request.logprobs is not None):
            return event({**self.head, "choices": [self.choice()]})
        text = self._text
        self._text = ""
        return json.dumps(text).join(self._shape) if text else ""

    def choice(self) -> Json:
        """The text since the last event, or all of it."""
        text = self._text
        self._text = ""
        shown = None if self.request.logprobs is None else self._shown(len(text))
        return {"index": self.index, "text": text, "logprobs": shown, "finish_reason": self.reason}

    def _shown(self, n: int) -> Json:
        """The log-probabilities of the next n characters, each of which is a token."""
        logprobs = self._logprobs[:n]
        self._logprobs = self._logprobs[n:]
        start = self._n_shown
        self._n_shown += n
        values: list[float | None] = []
        tops: list[dict[str, float] | None] = []
        for logprob in logprobs:
            if logprob.value is None:  # of the first character: nothing is before it
                values.append(None)
                tops.append(None)
                continue
            top = {**logprob.top, logprob.token: logprob.value}
            # JSON has no infinite number, and no NaN.
            finite = {token: max(-9999.0, value) for token, value in top.items()}
            values.append(finite[logprob.token])
            tops.append({self.chars[token]: value for token, value in finite.items()})
        return {
            "tokens": [self.chars[p.token] for p in logprobs],
            "token_logprobs": values,
            "top_logprobs": tops,
            "text_offset": list(range(start, start + n)),
        }


class Reader:
    """Reads bodies for one model.

    A text has at most `longest` tokens, its last one not counted; a request has at most `most`
    texts.
    """

    def __init__(self, tokenizer: CharTokenizer, name: str, longest: int, most: int = 1024):
        self.tokenizer = tokenizer
        self.name = name
        self.longest = longest
        self.most = most

    def read(self, data: bytes | bytearray) -> list[Completion]:
        """The completions that a body in JSON asks for. Raises Refused, which names the field."""
        body = _parse(data)
        model = body.pop("model", None)
        if model not in (None, "", self.name):
            raise Refused(
                404,
                f"model {show(model)} is not here: this server has {show(self.name)}",
                "model",
            )
        prompts = self._split(body.pop("prompt", None))
        fields = read_parameters(body, len(self.tokenizer), max(map(len, prompts)))
        if isinstance(fields["stop"], str):
            fields["stop"] = [fields["stop"]]
        if fields["seed"] == -1:
            fields["seed"] = secrets.randbits(31)
        if fields["request_id"] is None:
            fields["request_id"] = secrets.token_hex(12)
        about = {"id": f"cmpl-{fields['request_id']}", "object": "text_completion"}
        fields["head"] = about | {"created": int(time.time()), "model": self.name}
        return self._completions(prompts, fields)

    def _completions(self, prompts: list[str | list[int]], fields: Fields) -> list[Completion]:
        """`n` completions of each prompt."""
        n = fields["n"]
        if n * len(prompts) > self.most:
            raise Refused(
                400, f"n={show(n)}: at most {self.most} texts in a request, n for each prompt", "n"
            )
        n_top = fields["logprobs"]
        same = {
            "sampling": _sampling(fields, len(self.tokenizer)),
            "logprobs": n_top,
            "echo": fields["echo"] and n_top is not None,
        }
        completions: list[Completion] = []
        for prompt in prompts:
            tokens = self._tokens(prompt, fields["max_tokens"])
            room = self.longest + 1 - len(tokens)
            n_new = room if fields["max_tokens"] == -1 else min(fields["max_tokens"], room)
            for _ in range(n):
                index = len(completions)
                seed = fields["seed"] + index
                if seed >= 2**64:  # the largest is followed by 0
                    seed -= 2**64
                # With max_tokens=0 a token is sampled and not shown.
                request = Request(tokens, max(n_new, 1), seed=seed, **same)
                completions.append(Completion(request, fields, self.tokenizer.chars, index))
        return completions

    def _split(self, prompt: Any) -> list[str | list[int]]:
        """The prompts: a text or a list of tokens, or a list of either."""
        several = isinstance(prompt, list) and prompt and not isinstance(prompt[0], int)
        prompts = prompt if several else [prompt]
        if len(prompts) > self.most:
            raise Refused(
                400, f"{len(prompts):,} prompts: at most {self.most} texts in a request", "prompt"
            )
        for one in prompts:
            tokens = isinstance(one, list) and all(type(token) is int for token in one)
            if not tokens and not isinstance(one, str):
                raise Refused(
                    400, f"prompt={show(one)}: pass text, tokens or lists of them", "prompt"
                )
        return prompts

    def _tokens(self, prompt: str | list[int], max_tokens: int) -> Tensor:
        """The tokens of a prompt.  (T,)"""
        n = len(prompt)
        if n > self.longest:
            raise Refused(
                400,
                f"a prompt of {n:,} tokens + {show(max(max_tokens, 1))} new > the context of "
                f"{self.longest:,}: shorten the prompt to at most {self.longest:,}",
                "prompt",
            )
        chars = self.tokenizer.chars
        unknown = sorted(set(prompt) - set(chars)) if isinstance(prompt, str) else []
        if unknown:
            named = ", ".join(map(repr, unknown[:5])) + (", …" if len(unknown) > 5 else "")
            raise Refused(
                400,
                f"{named} not in the vocabulary of {len(chars):,} characters, "
                f"such as {chars[:5]!r}",
                "prompt",
            )
        last = len(chars) - 1
        if not isinstance(prompt, str):
            for token in prompt:
                if not 0 <= token <= last:
                    raise Refused(400, f"token {show(token)}: must be in [0, {last}]", "prompt")
            prompt = "".join(chars[token] for token in prompt)
        try:
            return self.tokenizer.encode(prompt)
        except ValueError as error:  # it is empty
            raise Refused(400, str(error), "prompt") from None


def _parse(data: bytes | bytearray) -> Json:
    """The object of a body. Raises Refused."""
    if not data.strip():
        raise Refused(400, 'the body is empty: send a JSON object, as in {"prompt": "KING:"}')
    try:
        body = json.loads(
            data, object_pairs_hook=_unique, parse_float=_number, parse_constant=_no_constant
        )
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the body is no JSON: {error}") from None
    if not isinstance(body, dict):
        raise Refused(400, 'the body must be a JSON object, as in {"prompt": "KING:"}')
    return body


def _unique(pairs: list[tuple[str, object]]) -> Json:
    """An object. Which of two values of one name is meant would be a guess."""
    found = {}
    for name, value in pairs:
        if name in found:
            raise Refused(400, f"{show(name)} is in the body twice: send it once", name)
        found[name] = value
    return found


def _number(text: str) -> int | float:
    """JSON has one type of number: 16.0 is 16."""
    value = float(text)
    return int(value) if value.is_integer() else value


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON value")


def _sampling(fields: Fields, n_vocab: int) -> SamplingParams:
    """Without the filters that keep every token; greedy at temperature 0."""
    if is_greedy(fields):
        return SamplingParams(greedy=True)
    top_k = fields["top_k"] if 0 < fields["top_k"] < n_vocab else None
    top_p = fields["top_p"] if fields["top_p"] < 1 else None
    return SamplingParams(fields["temperature"], top_k, top_p)


def asks_for(fields: Fields, option: str) -> bool:
    """Whether a stream is asked for with this option. The second depends on the first."""
    options = fields["stream_options"]
    return options.get("include_usage") is True and options.get(option) is True


def usage(completions: Sequence[Completion]) -> Json:
    """The counts of tokens; a prompt with several choices counts once."""
    n = completions[0].fields["n"]
    n_prompt = sum(len(one.request.prompt) for one in completions[::n])
    n_new = sum(one.n_new for one in completions)
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_new,
        "total_tokens": n_prompt + n_new,
    }


def event(data: Json) -> str:
    """One server-sent event."""
    return f"data: {json.dumps(data)}\n\n"
