"""Tokenizers of pretrained models: subword ids, end tokens, chat templates."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..config import check_type
from ..console import first_line
from ..data import token_numbers
from .chat import Message, render
from .needs import PretrainedError, shown_value

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# How another tokenizer is chosen, in Python and on the command line.
PASS_TOKENIZER = (
    "pass tokenizer= (on the command line --tokenizer) with the folder of its tokenizer.json"
)
HALF = "\ufffd"  # the replacement character: these bytes are part of a character
BYTE = re.compile("<0x([0-9A-F]{2})>")  # a byte token in a vocabulary of characters
_LONGEST = 4  # bytes of a UTF-8 character, so the most tokens that can wait for the rest of one


class PretrainedTokenizer:
    """A pretrained model's own tokenizer, with the interface of `nanogpt.data.CharTokenizer`.

    `stop` are the tokens that end a text or a reply. `template` is the model's chat template
    (Jinja), or None; `specials` are names used in the template, such as bos_token.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Sequence[int] = (),
        template: str | None = None,
        specials: dict[str, str] | None = None,
    ):
        tokenizer.no_truncation()  # a tokenizer.json may keep its training's settings
        tokenizer.no_padding()
        self.tokenizer = tokenizer
        self.has_bytes = tokenizer.token_to_id("<0x00>") is not None  # SentencePiece's byte tokens
        self.size = number_of_ids(tokenizer)
        self.stop = tuple(dict.fromkeys(stop))
        self._bytes: dict[int, bytes | None] = {}  # of the tokens looked up so far
        self.template = template
        self.specials = dict(specials or {})

    def __len__(self) -> int:
        """One more than the highest token id. A model may have more rows, which no text uses."""
        return self.size

    def encode(self, text: str) -> Tensor:
        """(T,) int64, with a token for the beginning if the model was trained with one.

        Raises ValueError for an empty text, and for one with half a surrogate pair.
        """
        check_type("text", text, str)
        return self._encoded(text, add_special=True)

    def _encoded(self, text: str, add_special: bool) -> Tensor:
        try:
            with library_errors():
                ids = self.tokenizer.encode(text, add_special_tokens=add_special).ids
        except ValueError as error:
            unicode = isinstance(error.__cause__, (UnicodeEncodeError, TypeError))
            what = "is not valid Unicode" if unicode else "cannot be written in this vocabulary"
            raise ValueError(f"the text {what} ({first_line(error)}): correct it") from None
        if not text or not ids:
            raise ValueError("the prompt is empty: pass at least one word, such as 'The'")
        return torch.tensor(ids, dtype=torch.int64)

    def decode(self, tokens: Tensor | Sequence[int], special: bool = False) -> str:
        """The text of tokens: a tensor of any shape or a list. `special` includes control tokens.

        Tokens beyond the vocabulary have no text. Raises ValueError for anything that is negative
        or not an integer.
        """
        numbers = token_numbers(tokens)
        wrong = [i for i in numbers if type(i) is not int or not 0 <= i < 2**32]
        if wrong:
            raise ValueError(f"token {wrong[0]}: must be an integer in [0, {len(self) - 1}]")
        text = self._decoded(numbers, special)
        if not self.has_bytes or HALF not in text:
            return text
        # The library drops a whole run of byte tokens if one of them is invalid UTF-8.
        pieces = BytePieces(self, special)
        return "".join([*map(pieces.push, numbers), pieces.end()])

    def _decoded(self, numbers: list[int], special: bool) -> str:
        return str(self.tokenizer.decode(numbers, skip_special_tokens=not special))

    def stream(self, tokens: Iterable[Tensor | int]) -> Iterator[str]:
        """Decode tokens as they arrive, in whole characters: a partial one waits for the rest.

            for text in tokenizer.stream(generate(model, prompt, 200)):
                print(text, end="", flush=True)

        The joined text equals `decode` of all tokens. Ends before the first token in `stop`,
        without asking for more. Each of `tokens` is one token, as a number or a one-element tensor.
        """
        pieces = self.pieces()
        for token in tokens:
            number = int(token)
            if number in self.stop:
                break
            text = pieces.push(number)
            if text:
                yield text
        rest = pieces.end()
        if rest:
            yield rest

    def bytes_of(self, token: int) -> bytes | None:
        """The UTF-8 bytes of a token within a text; None for a control token.

        A token may be part of a character, so its bytes alone need not be valid UTF-8.
        """
        if token not in self._bytes:
            self._bytes[token] = self._find_bytes(token)
        return self._bytes[token]

    def _find_bytes(self, token: int) -> bytes | None:
        text = self.decode([token])
        if not text and self.decode([token], special=True):
            return None
        if HALF in text:
            raw = _raw_bytes(self.tokenizer.id_to_token(token))
            return text.encode() if raw is None else raw
        # Some decoders drop the space at the beginning of a text, so the token comes second here.
        return self.decode([token, token])[len(text) :].encode()

    def pieces(self) -> BytePieces:
        """A decoder for tokens that are pushed one by one, as in `stream`."""
        return BytePieces(self)

    def chat_text(
        self,
        messages: Sequence[Message],
        answer: bool = True,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """Format messages with the model's own template; `answer` appends the start of the reply.

        A message is a dictionary with a "role" (system, user, assistant, …) and a "content": a
        string, a list of parts, or None. Its other fields are the template's, such as tool_calls.
        `variables` are more names for the template, such as enable_thinking, tools or documents.
        The text is that of transformers' apply_chat_template. Raises ValueError for messages that
        the template refuses, and for a model without one.
        """
        if self.template is None:
            raise ValueError("this model has no chat template: encode plain text instead")
        return render(self.template, messages, answer, self.specials, variables)

    def chat(
        self,
        messages: Sequence[Message],
        answer: bool = True,
        variables: Mapping[str, object] | None = None,
    ) -> Tensor:
        """The tokens of `chat_text`, for a prompt.  -> (T,) int64. Raises ValueError as it does."""
        return self.encode_chat(self.chat_text(messages, answer, variables))

    def encode_chat(self, text: str) -> Tensor:
        """The tokens of a text of `chat_text`, in which the template wrote the special ones.  (T,)

        Raises ValueError as `encode` does.
        """
        return self._encoded(text, add_special=False)


def _raw_bytes(piece: str | None) -> bytes | None:
    """The bytes of a token as spelled in its vocabulary; None if it is not spelled in bytes."""
    if piece is None:
        return None
    byte = BYTE.fullmatch(piece)
    if byte is not None:
        return bytes([int(byte[1], 16)])
    letters = _letters_of_bytes()
    if not set(piece) <= set(letters):
        return None
    return bytes(letters[letter] for letter in piece)


@cache
def _letters_of_bytes() -> dict[str, int]:
    """GPT-2's byte alphabet: printable bytes stand for themselves, the others start at 256."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(256 + i): byte for i, byte in enumerate(others)}


class BytePieces:
    """Decodes one token after another into whole characters; a partial one waits for its rest."""

    def __init__(self, tokenizer: PretrainedTokenizer, special: bool = False):
        self.tokenizer = tokenizer
        self.special = special
        self.shown: list[int] = []  # tokens of the last text, which decide whether a space follows
        self.waiting: list[int] = []

    def push(self, token: int) -> str:
        """The text that this token completes, or ""."""
        self.waiting.append(token)
        before, text = self._texts()
        if text.endswith(HALF) and len(self.waiting) < _LONGEST:
            return ""
        if text:
            self.shown = self.waiting
        elif not before:  # SentencePiece's dropped leading space, or a control token
            self.shown = [*self.shown, *self.waiting][-_LONGEST:]
        self.waiting = []
        return text

    def end(self) -> str:
        """The remaining text, after the last token."""
        return self._texts()[1]

    def _texts(self) -> tuple[str, str]:
        """The text of the shown tokens, and of the pending ones after it."""
        before = self.tokenizer._decoded(self.shown, self.special)
        text = self.tokenizer._decoded([*self.shown, *self.waiting], self.special)
        if text.startswith(before):
            return before, text[len(before) :]
        # The library drops valid characters before invalid bytes; they have already been shown.
        return before, self.tokenizer._decoded(self.waiting, self.special)


# ------------------------------------------------------------------ for the readers of files


@contextmanager
def library_errors() -> Iterator[None]:
    """Turn errors of `tokenizers` into ValueErrors: it raises bare Exceptions and Rust panics."""
    try:
        yield
    except PretrainedError:
        raise
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise ValueError(first_line(error)) from error
        raise


def number_of_ids(tokenizer: Tokenizer) -> int:
    """One more than the highest token id."""
    return 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)


def end_tokens(fields: Mapping[str, Any], n: int) -> list[int]:
    """The ids of end tokens in fields that hold one, several or none, by the field's full name.

    Warns, once, of ids beyond a vocabulary of n: no text ends there. A GPT-2 that was trained from
    scratch with a small vocabulary keeps 50256, the default of transformers' GPT2Config.
    """
    found: list[int] = []
    beyond: list[str] = []
    for field, value in fields.items():
        values = value if isinstance(value, list) else [value]
        ids = [one for one in values if type(one) is int and one >= 0]
        found += [one for one in ids if one < n]
        beyond += [f"{field}={shown_value(one)}" for one in ids if one >= n]
    if beyond:
        warnings.warn(
            f"{', '.join(beyond[:2])}: beyond the vocabulary of {n:,} tokens, and ignored: no text "
            f"ends there",
            stacklevel=2,
        )
    return found
