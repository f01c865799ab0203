"""From the body of a request to the texts it asks for: a `Completion` for each, not begun yet."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable

import torch
from torch import Tensor

from ..sampling import MOST_NEW
from .completions import ChatCompletion, Completion, Shared
from .messages import need_template, prompt_of
from .requests import ChatBody, CompletionBody, Refused, RequestBody, parse_body, show
from .sequence import Request
from .texts import Tokenizer, stop_tokens
from .unserved import CHAT_UNSERVED, UNSERVED, refuse_unserved


class RequestParser:
    """Parses request bodies for one model, which is called `name`, and also each of `aliases`.

    A text has at most `longest` tokens, not counting its last one; a request has at most `most`
    texts.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        name: str,
        longest: int,
        most: int = 1024,
        aliases: Iterable[str] = (),
    ):
        self.tokenizer = tokenizer
        self.name = name
        self.names = list(dict.fromkeys([name, *aliases]))
        self.longest = longest
        self.most = most
        # For ids, and for seeds that a client leaves out; it is nobody else's to seed.
        self._random = random.Random()

    def read(self, data: bytes | bytearray) -> list[Completion]:
        """The texts that a JSON body asks for, n of each prompt. Raises Refused."""
        # 1. Check all fields of the body: one that would change the text and is not implemented is
        #    refused.
        body, rest = parse_body(data, CompletionBody)
        ignored = refuse_unserved(rest, UNSERVED)
        # 2. The tokens of each prompt.
        if len(body.prompt) > self.most:
            raise Refused(
                400,
                f"{len(body.prompt):,} prompts: at most {self.most} texts in a request",
                "prompt",
            )
        prompts = [self._tokens(prompt) for prompt in body.prompt]
        # 3. Make one request for each text, n of each prompt.
        shared = self._shared(body, ignored, "cmpl", "text_completion")
        return self._completions(prompts, shared, "prompt", Completion)

    def read_chat(self, data: bytes | bytearray) -> list[Completion]:
        """The answers that a chat body asks for. Raises Refused.

        It waits for the model's template, so it does not belong into an event loop.
        """
        # As above, but the model's chat template builds the only prompt from the messages.
        template = need_template(self.tokenizer)
        body, rest = parse_body(data, ChatBody)
        ignored = refuse_unserved(rest, CHAT_UNSERVED)
        prompts = [prompt_of(body, template)]
        kind = "chat.completion.chunk" if body.stream else "chat.completion"
        shared = self._shared(body, ignored, "chatcmpl", kind)
        return self._completions(prompts, shared, "messages", ChatCompletion)

    def _shared(self, body: RequestBody, ignored: list[str], prefix: str, kind: str) -> Shared:
        """What the texts of a request have in common."""
        name = f"{self._random.getrandbits(96):024x}"
        # The response names the model that answers, by whatever name it was called.
        about = {"object": kind, "created": int(time.time()), "model": self.name}
        return Shared(body, {"id": f"{prefix}-{name}", **about}, tuple(ignored))

    def _completions(
        self, prompts: list[Tensor], shared: Shared, param: str, kind: type[Completion]
    ) -> list[Completion]:
        """`n` texts of each prompt, (T,); `param` is the field that prompts come from."""
        # 1. What all of these texts have in common. From here on the request is determined: with
        #    this seed, which the response names, a client gets the same text again.
        body = shared.body
        if body.n * len(prompts) > self.most:
            raise Refused(
                400,
                f"n={show(body.n)}: at most {self.most} texts in a request, n for each prompt",
                "n",
            )
        first_seed = self._random.getrandbits(31) if body.seed == -1 else body.seed
        sampling = body.sampling(len(self.tokenizer))
        stop = () if body.ignore_eos else stop_tokens(self.tokenizer)
        completions: list[Completion] = []
        # 2. A text ends with the model's context, if max_tokens does not end it before.
        for tokens in prompts:
            room = self._room(tokens, body, param)
            n_new = room if body.max_tokens == -1 else min(body.max_tokens, room)
            # 3. Each text has its own seed, so that it can be asked for alone.
            for _ in range(body.n):
                index = len(completions)
                seed = first_seed + index
                if seed >= 2**64:  # wrap around to 0
                    seed -= 2**64
                request = Request(
                    tokens,
                    max(n_new, 1),  # with max_tokens=0 a token is sampled but not shown
                    sampling,
                    seed,
                    logprobs=body.shown,
                    echo=body.shows_prompt and body.shown is not None,
                    stop=stop,
                    min_new_tokens=min(body.min_tokens, MOST_NEW),
                )
                completions.append(kind(request, shared, self.tokenizer, index))
        return completions

    def _room(self, tokens: Tensor, body: RequestBody, param: str) -> int:
        """How many new tokens the context has room for. Raises Refused for too long a prompt."""
        if len(tokens) > self.longest:
            raise Refused(
                400,
                f"a prompt of {len(tokens):,} tokens + {show(max(body.max_tokens, 1))} "
                f"new > the context of {self.longest:,}: shorten the prompt to at most "
                f"{self.longest:,}",
                param,
                "context_length_exceeded",
            )
        return self.longest + 1 - len(tokens)

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
