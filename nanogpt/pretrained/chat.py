"""Chat templates: Jinja programs that come with a model, run in Jinja's sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from ..console import first_line
from .needs import needed

Message = dict[str, Any]
LONGEST_TEMPLATE = 2**20  # characters


def render(
    template: str,
    messages: Sequence[Message],
    answer: bool,
    specials: dict[str, str],
    variables: Mapping[str, object] | None = None,
) -> str:
    """Format messages with a model's template; `answer` appends the start of the reply.

    Template variables and environment options are those of transformers' apply_chat_template. In
    the sandbox (of jinja2 3.1.6, which closed its known holes) a template can neither access
    Python's own attributes nor change its arguments. Raises ValueError, and ModuleNotFoundError
    without jinja2.
    """
    check_messages(messages)
    with needed("a chat template"):
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    if len(template) > LONGEST_TEMPLATE:
        raise ValueError(f"the chat template has {len(template):,} characters: too long")

    def refuse(message: object) -> None:
        raise TemplateError(str(message))

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        own = {
            "messages": [dict(message) for message in messages],
            "add_generation_prompt": answer,
            "tools": None,
            "documents": None,
        }
        return environment.from_string(template).render({**(variables or {}), **specials, **own})
    except (
        TemplateError,
        TypeError,
        ValueError,
        KeyError,
        ArithmeticError,
        RecursionError,
    ) as error:
        raise ValueError(
            f"the model's chat template refuses these messages ({first_line(error)}): "
            f"correct them, or encode plain text"
        ) from error


def check_messages(messages: Any) -> None:
    """Raise ValueError unless these are messages: dictionaries with a role and a content."""
    if isinstance(messages, (str, dict)) or not isinstance(messages, Sequence) or not messages:
        raise ValueError(
            f"messages={messages!r:.60}: pass a list such as "
            f'[{{"role": "user", "content": "Hello"}}]'
        )
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ValueError(f"message {message!r:.60}: its role must be a string")


def _to_json(value: Any, indent: int | None = None) -> str:
    """Convert a value to JSON without escaping letters; jinja2's own filter is for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)
