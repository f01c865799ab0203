"""What serving needs from a tokenizer: incremental decoding, stop tokens, chat templates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from ..data import CharTokenizer
from ..pretrained.tokenizer import PretrainedTokenizer

Tokenizer = CharTokenizer | PretrainedTokenizer


class TextPieces(Protocol):
    """Incremental decoding of one text, in whole characters."""

    def push(self, token: int) -> str:
        """The text that this token completes; "" if it completes no character."""

    def end(self) -> str:
        """The text of the pending bytes, after the last token."""


class CharPieces:
    """Every token is a character."""

    def __init__(self, tokenizer: CharTokenizer):
        self.chars = tokenizer.chars

    def push(self, token: int) -> str:
        return self.chars[token]

    def end(self) -> str:
        return ""


def pieces_of(tokenizer: Tokenizer) -> TextPieces:
    """An incremental decoder for one text."""
    if isinstance(tokenizer, PretrainedTokenizer):
        return tokenizer.pieces()
    return CharPieces(tokenizer)


def stop_tokens(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The tokens that end a text or an answer; a character vocabulary has none."""
    return tokenizer.stop if isinstance(tokenizer, PretrainedTokenizer) else ()


def bytes_of(tokenizer: Tokenizer, token: int) -> bytes | None:
    """A token's UTF-8 bytes, possibly a partial character; None for a control token."""
    if isinstance(tokenizer, PretrainedTokenizer):
        return tokenizer.bytes_of(token)
    return tokenizer.chars[token].encode()


def name_of(tokenizer: Tokenizer, token: int) -> str:
    """The text of one token; a control token's name; U+FFFD for a partial character."""
    if isinstance(tokenizer, CharTokenizer):
        return tokenizer.chars[token]
    text = tokenizer.bytes_of(token)
    if text is None:
        return tokenizer.decode([token], special=True)
    return text.decode(errors="replace")


@dataclass(frozen=True)
class ChatTemplate:
    """A model's chat template.

    It has a text, and functions from messages to a prompt, and from that to its tokens, (T,).
    """

    source: str
    render: Callable[..., str]
    encode: Callable[[str], Tensor]


def template_of(tokenizer: Tokenizer) -> ChatTemplate | None:
    """The model's chat template; None for a model without one."""
    if isinstance(tokenizer, PretrainedTokenizer) and tokenizer.template is not None:
        return ChatTemplate(tokenizer.template, tokenizer.chat_text, tokenizer.encode_chat)
    return None
