"""The texts of responses, token by token, in the formats of OpenAI's completions and chat APIs.

No sockets, no threads and no bodies in here. Every response includes its `seed`: the same request
with that seed gives the same text. Choice i is sampled with seed + i.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from .requests import Json, Refused, RequestBody
from .sequence import Logprob, Output, Request
from .texts import Tokenizer, bytes_of, name_of, pieces_of


class FinishReason(str, Enum):
    """Why a text has ended, in the words of OpenAI's API."""

    STOP = "stop"  # a stop string, or a stop token
    LENGTH = "length"  # max_tokens, or the end of the context


@dataclass(frozen=True)
class Shared:
    """What the texts of one request have in common."""

    body: RequestBody
    head: Json  # how each event and each response begins
    ignored: tuple[str, ...] = ()  # names of fields that nobody knows


class Completion:
    """The response to one prompt of a body.

    It contains the text of up to max_tokens sampled tokens, after the prompt if echo is on. The
    engine's side calls `take` and `end`, which call `tell`, all in one event loop. Text that may be
    the beginning of a stop string is held back, and so is an incomplete character.
    """

    def __init__(self, request: Request, shared: Shared, tokenizer: Tokenizer, index: int):
        self.request = request
        self.shared = shared
        self.body = shared.body
        self.tokenizer = tokenizer
        self.index = index
        self.head = shared.head | {"seed": request.seed}
        self.begun = time.perf_counter()
        self.reason: FinishReason | None = None  # None until it ends
        self.error: Refused | None = None  # the reason for an early end
        self.tell: Callable[[Completion], None] = lambda _: None
        self._pieces = pieces_of(tokenizer)
        self._text = ""  # can be sent now
        self._held = ""  # may become a stop string
        self._usage_in_events = self.body.usage_in_events
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
        if self.body.shows_prompt and outputs[0].index == 0:
            self._show_prompt(outputs[0].logprobs)
        # 2. From tokens to characters. A token may be half of one, which `push` holds back until
        #    the other half arrives, or until the text ends.
        for output in outputs:
            if not self.body.max_tokens:  # only the prompt is requested
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
        stops = self.body.stop if self.n_new > self.body.min_tokens else []
        if not stops:
            self._held += piece
            return False
        # Character by character, so that the text ends at the first stop string, and not at the end
        # of the token in which it does. Of several that end there, the longest is cut off.
        for char in piece:
            self._held += char
            found = [stop for stop in stops if self._held.endswith(stop)]
            if found:
                if not self.body.include_stop_str_in_output:
                    self._held = self._held.removesuffix(max(found, key=len))
                return True
        return False

    def _may_stop(self) -> int:
        """How many of the last characters may become a stop string."""
        stops = self.body.stop
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
        if self.body.stream:
            name, message = "delta", {"content": text}
        return {
            "index": self.index,
            name: message,
            "logprobs": logprobs,
            "finish_reason": reason,
        }


def usage(completions: Sequence[Completion]) -> Json:
    """Token counts; a prompt with several choices counts once."""
    n = completions[0].body.n
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
