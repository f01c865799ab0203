"""OpenAI's completions and chat completions APIs: parsing request bodies, formatting responses.

No sockets or threads; the parameters are in parameters.py. Every response includes its
`seed`: the same request with that seed gives the same text. Choice i is sampled with seed + i.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NoReturn

import torch
from torch import Tensor

from ..data import CharTokenizer
from ..sampling import MOST_NEW, SamplingParams
from .messages import read_messages
from .parameters import (
    CHAT_PARAMETERS,
    PARAMETERS,
    Fields,
    Refused,
    Table,
    is_greedy,
    read_parameters,
    show,
)
from .sequence import Logprob, Output, Request
from .texts import Tokenizer, bytes_of, name_of, pieces_of, stop_tokens

Json = dict[str, Any]


class FinishReason(str, Enum):
    """Why a text has ended, in the words of OpenAI's API."""

    STOP = "stop"  # a stop string, or a stop token
    LENGTH = "length"  # max_tokens, or the end of the context


class Completion:
    """The response to one prompt of a body, whose checked fields are `fields`.

    It contains the text of up to max_tokens sampled tokens, after the prompt if echo is on. The
    engine's side calls `take` and `end`, which call `tell`, all in one event loop. Text that may be
    the beginning of a stop string is held back, and so is an incomplete character.
    """

    def __init__(self, request: Request, fields: Fields, tokenizer: Tokenizer, index: int):
        self.request = request
        self.fields = fields
        self.tokenizer = tokenizer
        self.index = index
        self.head = fields["head"] | {"seed": request.seed}
        self.begun = time.perf_counter()
        self.reason: FinishReason | None = None  # None until it ends
        self.error: Refused | None = None  # the reason for an early end
        self.tell: Callable[[Completion], None] = lambda _: None
        self._pieces = pieces_of(tokenizer)
        self._text = ""  # can be sent now
        self._held = ""  # may become a stop string
        self._usage_in_events = asks_for(fields, "continuous_usage_stats")
        self.n_new = 0
        self._n_read = 0  # characters of the text, including held ones
        self._n_sent = 0  # characters
        self._logprobs: list[tuple[int, Logprob]] = []  # of unsent tokens: text offset, logprob
        # The JSON of a stream's event, before and after the piece of text.
        shape = {**self.head, "choices": [self._form("\0", None, None)]}
        self._shape = event(shape).rsplit(json.dumps("\0"), 1)

    def take(self, outputs: list[Output]) -> None:
        """The next tokens from the engine."""
        # 1. The engine does not know stop strings: its tokens may arrive after the end of the text.
        if self.reason:
            return
        if self.fields["echo"] and outputs[0].index == 0:
            self._show_prompt(outputs[0].logprobs)
        # 2. From tokens to characters. A token may be half of one, which `push` holds back until
        #    the other half arrives, or until the text ends.
        for output in outputs:
            if not self.fields["max_tokens"]:  # only the prompt is requested
                break
            self.n_new += 1
            ends = self.request.ends_with(output.token, output.index)
            if not ends:  # the stop token is not part of the text
                self._logprobs += [(self._n_read, logprob) for logprob in output.logprobs[-1:]]
            piece = self._pieces.end() if ends else self._pieces.push(output.token)
            if output.finished and not ends:
                piece += self._pieces.end()
            # 3. Does the text end here? At a stop string, which may begin in one token and end in
            #    another, or at a stop token.
            self._n_read += len(piece)
            if self._meets_stop(piece) or ends:
                self.reason = FinishReason.STOP
                break
        if outputs[-1].finished:
            self.reason = self.reason or FinishReason.LENGTH
        # 4. Release the characters that cannot become part of a stop string any more. What has been
        #    sent cannot be taken back.
        n = len(self._held) - (0 if self.reason else self._may_stop())
        self._text += self._held[:n]
        self._held = self._held[n:]
        self.tell(self)

    def end(self, error: Refused) -> None:
        """End it early."""
        self.error = self.error or error
        self.tell(self)

    def _show_prompt(self, logprobs: Sequence[Logprob]) -> None:
        """Begin with the prompt's text and log-probabilities; the first token has none."""
        prompt = self.request.prompt.tolist()
        # `logprobs` begins at the second token of the prompt, and ends with the first new token.
        about = [Logprob(prompt[0], None, {}), *logprobs[:-1]] if logprobs else []
        for i, token in enumerate(prompt):
            self._logprobs += [(self._n_read, one) for one in about[i : i + 1]]
            piece = self._pieces.push(token)
            self._text += piece
            self._n_read += len(piece)

    def _meets_stop(self, piece: str) -> bool:
        """Hold the piece, up to the end of a complete stop string; returns whether there is one."""
        stops = self.fields["stop"] if self.n_new > self.fields["min_tokens"] else []
        if not stops:
            self._held += piece
            return False
        # Character by character, so that the text ends at the first stop string, and not at the end
        # of the token in which it does. Of several that end there, the longest is cut off.
        for char in piece:
            self._held += char
            found = [stop for stop in stops if self._held.endswith(stop)]
            if found:
                if not self.fields["include_stop_str_in_output"]:
                    self._held = self._held.removesuffix(max(found, key=len))
                return True
        return False

    def _may_stop(self) -> int:
        """How many of the last characters may become a stop string."""
        stops = self.fields["stop"]
        longest = min(len(self._held), max(map(len, stops), default=0))
        for n in range(longest, 0, -1):
            if any(stop.startswith(self._held[-n:]) for stop in stops):
                return n
        return 0

    def event(self) -> str:
        """The next event of a streamed response, or an empty string."""
        # A stream has an event for every token, of which usually only the text changes. Anything
        # that differs from event to event is formatted as a whole, the rest by the prepared shape.
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
        return self._form(text, self._shown(len(text)), self.reason)

    def _form(self, text: str, logprobs: Json | None, reason: FinishReason | None) -> Json:
        """A choice in the format of OpenAI's API."""
        return {
            "index": self.index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": reason,
        }

    def _shown(self, n: int) -> Json | None:
        """The log-probabilities of tokens that begin in the next n characters, if requested."""
        if self.request.logprobs is None:
            return None
        # A token is shown in the event that has its first character. One without any (part of a
        # character that is never completed) is shown in the last event.
        self._n_sent += n
        known = self._logprobs
        if self.reason != FinishReason.LENGTH:  # otherwise all, also those without a character
            known = [pair for pair in known if pair[0] < self._n_sent]
        self._logprobs = self._logprobs[len(known) :]
        return self._about(known)

    def _about(self, known: list[tuple[int, Logprob]]) -> Json:
        """Log-probabilities in OpenAI's completions format: lists with an entry per token."""
        values: list[float | None] = []
        tops: list[dict[str, float] | None] = []
        for _, logprob in known:
            if logprob.value is None:  # the first token: nothing predicts it
                values.append(None)
                tops.append(None)
                continue
            top = {**logprob.top, logprob.token: logprob.value}
            values.append(_finite(logprob.value))
            named: dict[str, float] = {}
            for token, value in top.items():  # most likely first; partial characters share a name
                named.setdefault(name_of(self.tokenizer, token), _finite(value))
            tops.append(named)
        return {
            "tokens": [name_of(self.tokenizer, logprob.token) for _, logprob in known],
            "token_logprobs": values,
            "top_logprobs": tops,
            "text_offset": [place for place, _ in known],
        }


def _finite(value: float) -> float:
    """Clamp to a finite value: JSON has no infinity and no NaN."""
    return max(-9999.0, value)


class ChatCompletion(Completion):
    """A chat response. A stream sends the role first, then the text, then the finish reason."""

    _introduced = False

    def event(self) -> str:
        events = []
        if not self._introduced:
            self._introduced = True
            role = {"delta": {"role": "assistant", "content": ""}}
            events.append(self._chunk(self._form("", None, None) | role))
        if self.reason is None:
            return "".join([*events, super().event()])
        # The rest of the text, then only the reason.
        text = self._text
        self._text = ""
        shown = self._shown(len(text))
        if text or (shown and shown["content"]):
            events.append(self._chunk(self._form(text, shown, None)))
        events.append(self._chunk(self._form("", None, self.reason) | {"delta": {}}))
        return "".join(events)

    def _chunk(self, choice: Json) -> str:
        known = {"usage": usage([self])} if self._usage_in_events else {}
        return event({**self.head, "choices": [choice], **known})

    def _about(self, known: list[tuple[int, Logprob]]) -> Json:
        """Log-probabilities in the chat format: a list of objects."""
        content = []
        for _, logprob in known:
            assert logprob.value is not None  # because every new token follows something
            top = [self._entry(token, value) for token, value in logprob.top.items()]
            content.append(self._entry(logprob.token, logprob.value) | {"top_logprobs": top})
        return {"content": content, "refusal": None}

    def _entry(self, token: int, value: float) -> Json:
        text = bytes_of(self.tokenizer, token)
        return {
            "token": name_of(self.tokenizer, token),
            "logprob": _finite(value),
            "bytes": None if text is None else list(text),
        }

    def _form(self, text: str, logprobs: Json | None, reason: FinishReason | None) -> Json:
        name, message = "message", {"role": "assistant", "content": text, "refusal": None}
        if self.fields["stream"]:
            name, message = "delta", {"content": text}
        return {
            "index": self.index,
            name: message,
            "logprobs": logprobs,
            "finish_reason": reason,
        }


class RequestParser:
    """Parses request bodies for one model.

    A text has at most `longest` tokens, not counting its last one; a request has at most `most`
    texts.
    """

    def __init__(self, tokenizer: Tokenizer, name: str, longest: int, most: int = 1024):
        self.tokenizer = tokenizer
        self.name = name
        self.longest = longest
        self.most = most
        self.plain = isinstance(tokenizer, CharTokenizer)

    def read(self, data: bytes | bytearray) -> list[Completion]:
        """The completions that a JSON body asks for. Raises Refused, which names the field."""
        # 1. Parse the JSON, and every prompt in it.
        body = self._body(data, '{"prompt": "KING:"}')
        prompts = [self._tokens(prompt) for prompt in self._split(body.pop("prompt", None))]
        # 2. Check all other fields: one that would change the text and is not implemented is
        #    refused.
        fields = self._fields(body, prompts, PARAMETERS)
        # 3. Make one request for each text, n of each prompt.
        about = {"id": f"cmpl-{fields['request_id']}", "object": "text_completion"}
        return self._completions(prompts, fields, about, "prompt", Completion)

    def read_chat(self, data: bytes | bytearray) -> list[Completion]:
        """The responses that a chat body asks for. Raises Refused, which names the field."""
        # As above, with two differences: the chat template builds the prompt from the messages, and
        # log-probabilities are asked for by two fields.
        body = self._body(data, '{"messages": [{"role": "user", "content": "Hello"}]}')
        prompts = [read_messages(body.pop("messages", None), self.tokenizer)]
        fields = self._fields(body, prompts, CHAT_PARAMETERS) | {"echo": False}
        fields["logprobs"] = fields["top_logprobs"] if fields["logprobs"] else None
        kind = "chat.completion.chunk" if fields["stream"] else "chat.completion"
        about = {"id": f"chatcmpl-{fields['request_id']}", "object": kind}
        return self._completions(prompts, fields, about, "messages", ChatCompletion)

    def _body(self, data: bytes | bytearray, example: str) -> Json:
        """Parse a body into an object, and check the model's name. Raises Refused."""
        body = _parse(data, example)
        model = body.pop("model", None)
        if model not in (None, "", self.name):
            raise Refused(
                404,
                f"model {show(model)} does not exist: this server has {show(self.name)}",
                "model",
            )
        return body

    def _fields(self, body: Json, prompts: list[Tensor], table: Table) -> Fields:
        """The parameters. Raises Refused."""
        longest = max(map(len, prompts))
        fields = read_parameters(body, len(self.tokenizer), longest, self.plain, table)
        if isinstance(fields["stop"], str):
            fields["stop"] = [fields["stop"]]
        # From here on the request is determined: with this seed, which the response names, a client
        # gets the same text again.
        if fields["seed"] == -1:
            fields["seed"] = secrets.randbits(31)
        if fields["request_id"] is None:
            fields["request_id"] = secrets.token_hex(12)
        return fields

    def _completions(
        self,
        prompts: list[Tensor],
        fields: Fields,
        about: Json,
        param: str,
        kind: type[Completion],
    ) -> list[Completion]:
        """`n` completions of each prompt, (T,); `param` is the field that prompts come from."""
        # 1. What all of these texts have in common.
        fields["head"] = about | {"created": int(time.time()), "model": self.name}
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
            "stop": () if fields["ignore_eos"] else stop_tokens(self.tokenizer),
            "min_new_tokens": min(fields["min_tokens"], MOST_NEW),
        }
        completions: list[Completion] = []
        # 2. A text ends with the model's context, if max_tokens does not end it before.
        for tokens in prompts:
            if len(tokens) > self.longest:
                raise Refused(
                    400,
                    f"a prompt of {len(tokens):,} tokens + {show(max(fields['max_tokens'], 1))} "
                    f"new > the context of {self.longest:,}: shorten the prompt to at most "
                    f"{self.longest:,}",
                    param,
                )
            room = self.longest + 1 - len(tokens)
            n_new = room if fields["max_tokens"] == -1 else min(fields["max_tokens"], room)
            # 3. Each text has its own seed, so that it can be asked for alone.
            for _ in range(n):
                index = len(completions)
                seed = fields["seed"] + index
                if seed >= 2**64:  # wrap around to 0
                    seed -= 2**64
                # With max_tokens=0 a token is sampled but not shown.
                request = Request(tokens, max(n_new, 1), seed=seed, **same)
                completions.append(kind(request, fields, self.tokenizer, index))
        return completions

    def _split(self, prompt: Any) -> list[str | list[int]]:
        """The prompts: a string or a list of tokens, or a list of either."""
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

    def _tokens(self, prompt: str | list[int]) -> Tensor:
        """The tokens of a prompt.  (T,)"""
        last = len(self.tokenizer) - 1
        try:
            if isinstance(prompt, str):
                return self.tokenizer.encode(prompt)
            for token in prompt:
                if not 0 <= token <= last:
                    raise ValueError(f"token {show(token)}: must be in [0, {last}]")
            if not prompt:
                raise ValueError("the prompt is empty: give at least one token")
        except ValueError as error:
            raise Refused(400, str(error), "prompt") from None
        return torch.tensor(prompt, dtype=torch.int64)


def _parse(data: bytes | bytearray, example: str) -> Json:
    """Parse a body into an object; `example` shows one in errors. Raises Refused."""
    if not data.strip():
        raise Refused(400, f"the body is empty: send a JSON object such as {example}")
    try:
        body = json.loads(
            data, object_pairs_hook=_unique, parse_float=_number, parse_constant=_no_constant
        )
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise Refused(400, f"the body must be a JSON object such as {example}")
    return body


def _unique(pairs: list[tuple[str, object]]) -> Json:
    """Build an object; refuse duplicate names, because either value could be meant."""
    found = {}
    for name, value in pairs:
        if name in found:
            raise Refused(400, f"{show(name)} is in the body twice: send it once", name)
        found[name] = value
    return found


def _number(text: str) -> int | float:
    """Parse a number; JSON has only one number type, so 16.0 is 16."""
    value = float(text)
    return int(value) if value.is_integer() else value


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON value")


def _sampling(fields: Fields, n_vocab: int) -> SamplingParams:
    """Sampling parameters, without filters that keep every token; greedy at temperature 0."""
    if is_greedy(fields):
        return SamplingParams(greedy=True)
    top_k = fields["top_k"] if 0 < fields["top_k"] < n_vocab else None
    top_p = fields["top_p"] if fields["top_p"] < 1 else None
    return SamplingParams(fields["temperature"], top_k, top_p)


def asks_for(fields: Fields, option: str) -> bool:
    """Whether a stream option is on. Every option also requires include_usage."""
    options = fields["stream_options"]
    return options.get("include_usage") is True and options.get(option) is True


def usage(completions: Sequence[Completion]) -> Json:
    """Token counts; a prompt with several choices counts once."""
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
