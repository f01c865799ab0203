"""Chats as text: messages are checked and handed to the model's template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..console import first_line
from .needs import needed, printable

Message = dict[str, Any]
# The names under which clients send a model's reasoning; templates read the first, and gpt-oss's
# the second. Source: apply_chat_template of transformers 5.24.
REASONING = ("reasoning_content", "thinking", "reasoning")
_RESERVED = ("messages", "add_generation_prompt")  # arguments, so no variables


def render(
    template: str,
    messages: Sequence[Message],
    answer: bool,
    specials: Mapping[str, str],
    variables: Mapping[str, object] | None = None,
) -> str:
    """Format messages with a model's template; `answer` appends the start of the reply.

    The text is that of transformers' apply_chat_template. A template is a program that came with
    the model: it runs in jinja2's sandbox (of 3.1.6, which closed its known holes). `variables` are
    more names for it, as `chat_template_kwargs` in requests; they hide `specials` of the same name.
    Raises ValueError, in one line, for whatever the template raises, and ModuleNotFoundError
    without jinja2.
    """
    check_messages(messages)
    with needed("a chat template"):
        from .chat_template import rendered
    more = dict(variables or {})
    for name in more:
        if name in _RESERVED or not isinstance(name, str):
            raise ValueError(f"variables={name!r:.60}: not a name that a chat template leaves free")
    names = {"tools": None, "documents": None, **specials, **more}
    names["messages"] = [as_templates_read(message) for message in messages]
    names["add_generation_prompt"] = answer
    # A template can raise anything: what the sandbox refuses, what its own arithmetic raises, the
    # SyntaxError of Python code that jinja2 made of it, RecursionError, MemoryError.
    try:
        return rendered(template, names)
    except Exception as error:
        why = printable(first_line(error))
        raise ValueError(
            f"the model's chat template refuses these messages ({why}): "
            f"correct them, or encode plain text"
        ) from error


def check_messages(messages: Any) -> None:
    """Raise ValueError unless these are messages: dictionaries with a role and a content.

    A content is a text, a list of parts, or null; a message that only calls tools needs none. Any
    other field is the template's.
    """
    if isinstance(messages, (str, dict)) or not isinstance(messages, Sequence) or not messages:
        raise ValueError(
            f"messages={messages!r:.60}: pass a list such as "
            f'[{{"role": "user", "content": "Hello"}}]'
        )
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ValueError(f"message {message!r:.60}: its role must be a string")
        content = message.get("content", ...)
        if content is ... and message.get("tool_calls"):
            continue
        if not isinstance(content, (str, list, type(None))):
            raise ValueError(
                f"message {message!r:.60}: its content must be a string, a list of parts or null"
            )


def as_templates_read(message: Message) -> Message:
    """A message without its empty fields, its reasoning under the names that templates read.

    Many templates would print "None" for a field that is there and null.
    """
    fields = {name: value for name, value in message.items() if value is not None}
    reasoning = next((fields[name] for name in REASONING if name in fields), None)
    if reasoning is None:
        return fields
    return {"thinking": reasoning, **fields, "reasoning_content": reasoning}
