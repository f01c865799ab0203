"""Chat messages, and the prompt that the model's chat template builds from them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..console import first_line
from .parameters import Refused, show
from .texts import Tokenizer, template_of

ROLES = {
    "system": "system",
    "developer": "system",  # the name in newer OpenAI clients, which templates do not know
    "user": "user",
    "assistant": "assistant",
}


def read_messages(messages: Any, tokenizer: Tokenizer) -> Tensor:
    """The prompt of a chat, up to the beginning of the answer.  -> (T,)

    Raises Refused for invalid messages, for messages that the template rejects, and for a model
    without a template.
    """
    # 1. Only a model that was trained on chats has a template for them.
    encode = template_of(tokenizer)
    if encode is None:
        raise Refused(
            400,
            "this model has no chat template: it continues texts; send one as prompt to "
            "/v1/completions",
            "messages",
        )
    if not isinstance(messages, list) or not messages:
        raise Refused(
            400,
            f"messages={show(messages)}: pass a list of one or more, for example "
            f'[{{"role": "user", "content": "Hello"}}]',
            "messages",
        )
    # 2. Read every message before the template sees any: its own errors do not say which one it
    #    was.
    read = [_read_message(message, f"messages[{i}]") for i, message in enumerate(messages)]
    # 3. The template writes them as one text, up to where the model's answer begins.
    try:
        return encode(read)
    except ValueError as error:
        raise Refused(400, first_line(error), "messages") from None
    except ModuleNotFoundError as error:  # jinja2, which templates need
        raise Refused(500, first_line(error), "messages") from None


def _read_message(message: Any, where: str) -> dict[str, str]:
    """Parse a role and a text. Other fields may be empty: clients send back what they received."""
    if not isinstance(message, dict):
        raise Refused(
            400, f"{where}={show(message)}: must be an object with role and content", where
        )
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise Refused(
            400, f"{where}.role={show(role)}: must be {', '.join(ROLES)}", f"{where}.role"
        )
    for name, value in message.items():
        if name not in ("role", "content") and value not in (None, [], {}, ""):
            shown = show(name)[1:-1]
            raise Refused(
                400,
                f"{where}.{shown}={show(value)}: not implemented; leave it out",
                f"{where}.{shown}",
            )
    return {"role": ROLES[role], "content": _text_of(message.get("content"), f"{where}.content")}


def _text_of(content: Any, where: str) -> str:
    """A string, or the text parts of a list."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise Refused(
            400, f"{where}={show(content)}: must be a string or a list of text parts", where
        )
    texts = []
    for i, part in enumerate(content):
        text = part.get("text") if isinstance(part, dict) else None
        if not isinstance(text, str) or part.get("type") != "text":
            raise Refused(
                400,
                f"{where}[{i}]={show(part)}: must be a text part such as "
                f'{{"type": "text", "text": "Hello"}}',
                where,
            )
        texts.append(text)
    return "\n".join(texts)
