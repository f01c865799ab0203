"""The bodies of requests, and the error that refuses one. There are three kinds of fields:

1. The fields of `CompletionBody` and `ChatBody` are served.
2. A field of `unserved` would change the text and is not implemented. It is accepted with a value
   that changes nothing, and otherwise refused by its name.
3. Any other field is ignored, and the response names it.

null is the same as leaving a field out.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    model_validator,
)

from ..sampling import TEMPERATURES, SamplingParams

Json = dict[str, Any]

_STOPS = 16  # most stop strings in a request; OpenAI's API allows 4, lm-eval's tasks use up to 6
_LOGPROBS = 20  # most alternatives per token: vLLM's default limit; OpenAI's completions API has 5
# A temperature or a top_p below _GREEDY leaves only the most likely token.
_GREEDY, _HOTTEST = TEMPERATURES


# ------------------------------------------------------------------ what is refused


class Refused(Exception):
    """A rejected request: `status` is the HTTP status, `param` the field that is to blame.

    `code` is OpenAI's name for what happened, for programs to read, if it has one.
    """

    def __init__(
        self, status: int, message: str, param: str | None = None, code: str | None = None
    ):
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        """The error in OpenAI's format."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        error = {"type": kind, "param": self.param, "code": self.code}
        return {"error": {"message": str(self)[:1000], **error}}


def show(value: object, most: int = 60) -> str:
    """A value as one line of JSON, truncated to `most` characters."""
    try:
        text = json.dumps(value)
    except RecursionError:  # json can read deeper nesting than it can write
        text = "a value that is nested too deeply"
    return text if len(text) <= most else f"{text[:most]}…"


# ------------------------------------------------------------------ fields of more than one type


def _as_list(value: Any) -> Any:
    """A stop string alone, as a list."""
    return [value] if isinstance(value, str) else value


def _without_empty(stops: list[str]) -> list[str]:
    """An empty stop string is none, as UIs send it whose input field is empty."""
    return [stop for stop in stops if stop]


def _none_if_false(value: Any) -> Any:
    """false means no log-probabilities, as in a chat."""
    return None if value is False else value


def _prompts(value: Any) -> list[str | list[int]]:
    """The prompts: a string or a list of tokens, or a list of either."""
    several = isinstance(value, list) and value and not isinstance(value[0], int)
    prompts = value if several else [value]
    for one in prompts:
        tokens = isinstance(one, list) and all(type(token) is int for token in one)
        if not tokens and not isinstance(one, str):
            raise Refused(400, f"prompt={show(one)}: pass text, tokens or lists of them", "prompt")
    return prompts


# ------------------------------------------------------------------ the fields that are served

# OpenAI's newer name, which LangChain and openai-agents send, and that of llama.cpp's own clients.
_MAX_TOKENS = AliasChoices("max_tokens", "max_completion_tokens", "n_predict")


class RequestBody(BaseModel):
    """The fields of both APIs. Values are of their exact types: true is not 1, and "1" neither."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")

    model: str | None = Field(None, description="Any name: there is one model.")
    max_tokens: int = Field(
        16, ge=-1, validation_alias=_MAX_TOKENS, description="New tokens; -1: as many as fit."
    )
    min_tokens: int = Field(0, ge=0, description="New tokens before a stop may end the text.")
    n: int = Field(1, ge=1, description="Texts for each prompt; text i has seed + i.")
    seed: int = Field(
        -1, ge=-(2**63), le=2**64 - 1, description="-1: a random one, which the response names."
    )
    temperature: float = Field(1.0, ge=0, le=_HOTTEST, description="0: the most likely token.")
    top_k: int = Field(0, ge=-1, description="0 and -1: all tokens.")
    top_p: float = Field(1.0, ge=0, le=1)
    stop: Annotated[
        list[str],
        Field(max_length=_STOPS),
        BeforeValidator(_as_list, json_schema_input_type=str | list[str]),
        AfterValidator(_without_empty),
    ] = []
    include_stop_str_in_output: bool = False
    ignore_eos: bool = Field(False, description="Continue after the model's end tokens.")
    stream: bool = False
    stream_options: dict[str, bool | None] = Field(
        {}, description="include_usage: at the end; continuous_usage_stats: also in each event."
    )

    @model_validator(mode="after")
    def _agree(self) -> RequestBody:
        if self.min_tokens > self.max_tokens >= 0:
            raise Refused(
                400,
                f"min_tokens={show(self.min_tokens)}: must be at most "
                f"max_tokens={show(self.max_tokens)}",
                "min_tokens",
            )
        return self

    @property
    def usage_at_end(self) -> bool:
        """Whether a stream ends with the numbers of its tokens."""
        return self.stream_options.get("include_usage") is True

    @property
    def usage_in_events(self) -> bool:
        """Whether each event of a stream has them too."""
        return self.usage_at_end and self.stream_options.get("continuous_usage_stats") is True

    @property
    def greedy(self) -> bool:
        """Whether sampling always takes the most likely token."""
        return self.temperature < _GREEDY or self.top_p < _GREEDY

    @property
    def shown(self) -> int | None:
        """How many alternatives to show for each token; None: no log-probabilities."""
        return None

    @property
    def shows_prompt(self) -> bool:
        """Whether the text begins with its prompt."""
        return False

    def sampling(self, n_vocab: int) -> SamplingParams:
        """Sampling parameters, without filters that keep every token."""
        if self.greedy:
            return SamplingParams(greedy=True)
        top_k = self.top_k if 0 < self.top_k < n_vocab else None
        top_p = self.top_p if self.top_p < 1 else None
        return SamplingParams(self.temperature, top_k, top_p)


class CompletionBody(RequestBody):
    """Texts to continue: OpenAI's completions API."""

    prompt: Annotated[
        list[str | list[int]],
        PlainValidator(
            _prompts, json_schema_input_type=str | list[int] | list[str] | list[list[int]]
        ),
    ]
    echo: bool = Field(False, description="Begin with the prompt.")
    logprobs: Annotated[int | None, BeforeValidator(_none_if_false)] = Field(
        None, ge=0, le=_LOGPROBS
    )

    @property
    def shown(self) -> int | None:
        return self.logprobs

    @property
    def shows_prompt(self) -> bool:
        return self.echo


class ChatBody(RequestBody):
    """A chat to answer: OpenAI's chat completions API. An answer ends by itself."""

    messages: list[Json] = Field(min_length=1, description="The template reads all their fields.")
    chat_template_kwargs: Json = Field({}, description="Variables for the model's chat template.")
    max_tokens: int = Field(
        -1, ge=-1, validation_alias=_MAX_TOKENS, description="New tokens; -1: as many as fit."
    )
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=_LOGPROBS)

    @model_validator(mode="after")
    def _agree_too(self) -> ChatBody:
        for own in ("messages", "add_generation_prompt"):
            if own in self.chat_template_kwargs:
                name = f"chat_template_kwargs.{own}"
                raise Refused(400, f"{name}: the server sets it; leave it out", name)
        if self.chat_template_kwargs.get("tools"):
            # As the field `tools`: the template would offer them, but no call would be understood.
            name = "chat_template_kwargs.tools"
            raise Refused(
                400, f"{name}: not implemented; leave it out", name, "unsupported_parameter"
            )
        if self.top_logprobs and not self.logprobs:
            raise Refused(
                400,
                f"top_logprobs={self.top_logprobs}: needs logprobs=true; send both or neither",
                "top_logprobs",
            )
        return self

    @property
    def shown(self) -> int | None:
        return self.top_logprobs if self.logprobs else None


# ------------------------------------------------------------------ from bytes to a body

Body = TypeVar("Body", CompletionBody, ChatBody)


def parse_body(data: bytes | bytearray, kind: type[Body]) -> tuple[Body, Json]:
    """The body, and its fields that are not served. Raises Refused, naming the field."""
    # 1. JSON, in which null means that a field is left out.
    given = {name: value for name, value in _object(data, kind).items() if value is not None}
    # 2. The fields that are served, and those that are not.
    try:
        body = kind.model_validate(given)
    except ValidationError as error:
        raise _refusal(error, given) from None
    return body, body.model_extra or {}


def _refusal(error: ValidationError, given: Json) -> Refused:
    """The first error of pydantic, in one line."""
    first = error.errors(include_url=False)[0]
    name, *inner = map(str, first["loc"])
    if first["type"] == "missing":
        # Only a prompt and messages have no default. Perhaps this is the body of the other API.
        hint = f"send {_EXAMPLES[name]}"
        if name == "prompt" and "messages" in given:
            hint = "send messages to /v1/chat/completions"
        if name == "messages" and "prompt" in given:
            hint = "send a prompt to /v1/completions"
        return Refused(400, f"{name} is missing: {hint}", name)
    # "Input should be a valid integer": what was given, and what to send.
    name += "".join(f"[{one}]" for one in inner)
    says = first["msg"][:1].lower() + first["msg"][1:]
    return Refused(400, f"{name}={show(first['input'])}: {says}", name)


_EXAMPLES = {
    "prompt": '{"prompt": "KING:"}',
    "messages": '{"messages": [{"role": "user", "content": "Hello"}]}',
}


def _object(data: bytes | bytearray, kind: type[RequestBody]) -> Json:
    """Parse a body into an object. Raises Refused."""
    example = _EXAMPLES["messages" if kind is ChatBody else "prompt"]
    if not data.strip():
        raise Refused(400, f"the body is empty: send a JSON object such as {example}")
    try:
        body = json.loads(data, parse_float=_number)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise Refused(400, f"the body must be a JSON object such as {example}")
    return body


def _number(text: str) -> int | float:
    """Parse a number; JSON has only one number type, so 16.0 is 16."""
    value = float(text)
    return int(value) if value.is_integer() else value
