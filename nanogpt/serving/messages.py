"""Chat messages, and the prompt that the model's chat template builds from them."""

from __future__ import annotations

import re
from typing import Any

from torch import Tensor

from ..console import first_line
from .requests import ChatBody, Json, Refused, show
from .texts import ChatTemplate, Tokenizer, template_of

# A loop over the parts of a message's content, as templates of models for images have it.
_READS_PARTS = re.compile(
    r"""for\s+\w+\s+in\s+([\w\[\]-]+(\.|\[['"]))?content(['"]\])?\s*(\||-?%\})"""
)


def need_template(tokenizer: Tokenizer) -> ChatTemplate:
    """The model's chat template: only a model that was trained on chats has one. Raises Refused."""
    template = template_of(tokenizer)
    if template is None:
        raise Refused(
            400,
            "this model has no chat template: it continues texts; send one as prompt to "
            "/v1/completions",
            "messages",
        )
    return template


def prompt_of(body: ChatBody, template: ChatTemplate) -> Tensor:
    """The prompt of a chat, up to the beginning of the answer.  -> (T,)

    It takes the time that the template takes. Raises Refused for messages and variables that the
    template rejects.
    """
    # 1. The template gets messages as they are, with all of their fields, but for two things that
    #    few templates know.
    messages = [
        _as_templates_know(message, f"messages[{i}]", template.source)
        for i, message in enumerate(body.messages)
    ]
    # 2. It writes them as one text, up to where the model's answer begins.
    try:
        return template.encode(template.render(messages, variables=body.chat_template_kwargs))
    except ValueError as error:
        # Most templates expect a string, but say neither that nor where there is none.
        nulls = [i for i, one in enumerate(messages) if one.get("content") is None]
        where = f"messages[{nulls[0]}].content" if nulls else "messages"
        null = f"{where} is null: " if nulls else ""
        raise Refused(400, f"{null}{first_line(error)}", where) from None
    except ModuleNotFoundError as error:  # jinja2, which templates need
        raise Refused(500, first_line(error), "messages") from None


def _as_templates_know(message: Json, where: str, template: str) -> Json:
    """A message whose role and content the template can read. Raises Refused."""
    role = message.get("role")
    if not isinstance(role, str):
        where = f"{where}.role"
        raise Refused(400, f"{where}={show(role)}: must be a string such as user", where)
    read = dict(message)
    # OpenAI's newer clients say developer for system.
    if role == "developer" and "developer" not in template:
        read["role"] = "system"
    if "content" not in message and not message.get("tool_calls"):
        where = f"{where}.content"
        raise Refused(400, f"{where} is missing: send a string or a list of text parts", where)
    content = message.get("content")
    if content is None or isinstance(content, str):
        return read
    # A content in parts, where most templates expect a string.
    texts = _texts_of(content, f"{where}.content")
    if not _READS_PARTS.search(template):
        read["content"] = "\n".join(texts)
    return read


def _texts_of(content: Any, where: str) -> list[str]:
    """The texts of a list of text parts. Raises Refused."""
    if not isinstance(content, list):
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
    return texts
