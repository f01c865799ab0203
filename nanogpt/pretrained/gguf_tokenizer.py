"""Tokenizers from the metadata of GGUF files, built with the `tokenizers` library.

Two of llama.cpp's kinds are supported, with identical tokens: "gpt2", byte-pair merges inside
words, and "llama", SentencePiece's pieces with their scores.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from ..console import first_line
from .needs import PretrainedError, needed
from .stored import AGAIN
from .tokenizer import (
    PASS_TOKENIZER,
    PretrainedTokenizer,
    end_tokens,
    library_errors,
    number_of_ids,
)
from .words import CUTS, UNNAMED, Cut

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PREFIX = "tokenizer.ggml."
_MODELS = ("gpt2", "llama")  # in tokenizer.ggml.model
_LISTED = 6  # supported kinds named in a message
_ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
# What ends a turn of a chat, for files whose fields name only the token that ends a text. Source:
# the same search by text in llama.cpp's src/llama-vocab.cpp. A model whose turns end otherwise has
# none of them.
_ENDS_OF_TURNS = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<|eom_id|>")
# SentencePiece's defaults for fields that a file omits.
LLAMA_IDS = {"unknown_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LONGEST_PIECE = 256  # letters; SentencePiece makes pieces of at most 16 unless told otherwise
SPACE = "▁"  # stands for a space in SentencePiece's tokens


class TokenType(IntEnum):
    """The kind of a token, in tokenizer.ggml.token_type."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class _Given:
    """A file's description of its tokenizer."""

    where: str
    fields: dict[str, Any]  # names without the prefix
    tokens: list[str]
    kinds: list[int]  # one for each token, or none at all

    @property
    def numbers(self) -> dict[str, int]:
        """The vocabulary: the id of each token."""
        return {text: i for i, text in enumerate(self.tokens)}

    def of_kind(self, *kinds: TokenType) -> list[str]:
        """The tokens of these kinds."""
        pairs = zip(self.tokens, self.kinds, strict=False)
        return [text for text, kind in pairs if kind in kinds]

    def token(self, name: str) -> str | None:
        """The token whose id is in that field, or None."""
        number = self.fields.get(name)
        if type(number) is int and 0 <= number < len(self.tokens):
            return self.tokens[number]
        return None

    def switch(self, name: str, default: bool) -> bool:
        """A field that is true or false. Raises PretrainedError for another value."""
        value = self.fields.get(name, default)
        if not isinstance(value, bool):
            raise PretrainedError(
                f"{self.where}: {PREFIX}{name}={value!r:.60}: must be true or false: {AGAIN}"
            )
        return value


def tokenizer_of_gguf(metadata: dict[str, Any], where: str) -> PretrainedTokenizer:
    """Build a GGUF file's tokenizer. Its tokens equal those of transformers and llama.cpp.

    Except that Qwen's letters are joined with their accents as in Qwen's own tokenizer.json, which
    llama.cpp does not do. Warns, once, of a file that does not say how its texts are cut, and of a
    token that ends a turn and is found by its text alone.

    Raises PretrainedError for an unsupported kind of tokenizer, and ModuleNotFoundError without the
    package `tokenizers`.
    """
    with needed("a tokenizer"):
        from tokenizers import AddedToken
    given = _given(metadata, where)
    try:
        with library_errors():
            if given.fields["model"] == "llama":
                tokenizer = _llama(given)
                begins = True
            else:
                tokenizer = _gpt2(given)
                begins = CUTS[given.fields["pre"]].begins
    except PretrainedError:
        raise
    except ValueError as error:
        raise PretrainedError(f"{where}: no vocabulary ({first_line(error)}): {AGAIN}") from error
    turns = [text for text in _ENDS_OF_TURNS if text in given.numbers]
    control = [*given.of_kind(TokenType.CONTROL, TokenType.UNKNOWN), *turns]
    whole = given.of_kind(TokenType.USER_DEFINED)
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in control])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in whole])
    _add_ends(
        tokenizer,
        given,
        begins=given.switch("add_bos_token", begins),
        ends=given.switch("add_eos_token", False),
    )
    named = {name: given.token(f"{name}_id") for name in ("bos_token", "eos_token")}
    specials = {name: text for name, text in named.items() if text is not None}
    ends = {f"{where}: {PREFIX}{name}": given.fields.get(name) for name in _ENDS}
    stop = end_tokens(ends, number_of_ids(tokenizer))
    stop += _other_ends(given, turns, stop)
    template = metadata.get("tokenizer.chat_template")
    return PretrainedTokenizer(
        tokenizer, stop, template if isinstance(template, str) else None, specials
    )


def _other_ends(given: _Given, turns: list[str], stop: list[int]) -> list[int]:
    """The tokens that end a turn and that no field names, with a note about them."""
    found = {given.numbers[text]: text for text in turns}
    others = {number: text for number, text in found.items() if number not in stop}
    if others:
        ends = ", ".join(f"{text} ({number})" for number, text in others.items())
        warnings.warn(
            f"{given.where}: a text ends at {ends}, too, though no field says so", stacklevel=2
        )
    return list(others)


def _given(metadata: dict[str, Any], where: str) -> _Given:
    """Read the tokenizer's metadata. Raises PretrainedError for anything not supported."""
    fields = {
        name.removeprefix(PREFIX): value
        for name, value in metadata.items()
        if name.startswith(PREFIX)
    }
    model = fields.get("model")
    if model == "gpt2" and fields.get("pre", UNNAMED) == UNNAMED:
        fields["pre"] = UNNAMED
        warnings.warn(
            f"{where} does not name how its texts are cut into words ({PREFIX}pre), so they are "
            f"cut as llama.cpp does then, perhaps not as in training: {PASS_TOKENIZER}",
            stacklevel=2,
        )
    for name, known in (("model", _MODELS), ("pre", tuple(CUTS) if model == "gpt2" else ())):
        if known and fields.get(name) not in known:
            raise PretrainedError(
                f"{where}: {PREFIX}{name}={fields.get(name)!r:.60}, and only "
                f"{', '.join(known[:_LISTED])}{', …' * (len(known) > _LISTED)} can be read from "
                f"GGUF: {PASS_TOKENIZER}"
            )
    if model == "llama":
        fields = LLAMA_IDS | fields
    tokens = _strings(fields.get("tokens"), f"{where}: {PREFIX}tokens")
    twice = len(tokens) - len(set(tokens))
    if twice:
        raise PretrainedError(
            f"{where}: {PREFIX}tokens has {twice:,} duplicates, so a token has no unique id: "
            f"{AGAIN}"
        )
    kinds = fields.get("token_type")
    # A file without the kinds has no control tokens.
    return _Given(where, fields, tokens, kinds if isinstance(kinds, list) else [])


def _strings(value: Any, where: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise PretrainedError(f"{where} is missing or not a list of strings: {AGAIN}")
    return value


def _add_ends(tokenizer: Tokenizer, given: _Given, begins: bool, ends: bool) -> None:
    """Make every text begin with bos_token, or end with eos_token, or both."""
    from tokenizers import processors

    wanted = {"bos_token": begins, "eos_token": ends}
    found = {}
    for name in (name for name, on in wanted.items() if on):
        token = given.token(f"{name}_id")
        if token is None:
            number = given.fields.get(f"{name}_id")
            raise PretrainedError(
                f"{given.where}: a text must have {name}_id={number!r:.40}, which is not a token: "
                f"{AGAIN}"
            )
        found[name] = token
    if not found:
        return
    before = [found["bos_token"]] if begins else []
    after = [found["eos_token"]] if ends else []
    try:
        with library_errors():
            tokenizer.post_processor = processors.TemplateProcessing(
                single=[*before, "$A", *after],
                pair=[*before, "$A", "$B", *after],
                special_tokens=[(text, given.fields[f"{name}_id"]) for name, text in found.items()],
            )
    except ValueError as error:
        names = " or ".join(repr(text)[:40] for text in found.values())
        raise PretrainedError(
            f"{given.where}: no text can begin or end with {names} ({first_line(error)}): {AGAIN}"
        ) from error


# ------------------------------------------------------------------ gpt2


def _gpt2(given: _Given) -> Tokenizer:
    """Byte-pair merges inside words."""
    from tokenizers import Tokenizer, decoders, models

    cut = CUTS[given.fields["pre"]]
    merges = _merges(given)
    model = models.BPE(given.numbers, merges, fuse_unk=False, ignore_merges=cut.whole)
    tokenizer = Tokenizer(model)
    _cut_words(tokenizer, cut)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _merges(given: _Given) -> list[tuple[str, str]]:
    """The pairs of tokens to merge, in order. Raises PretrainedError."""
    merges = []
    for pair in _strings(given.fields.get("merges"), f"{given.where}: {PREFIX}merges"):
        left, space, right = pair.partition(" ")
        if not space:
            raise PretrainedError(
                f"{given.where}: {PREFIX}merges has {pair!r:.40}, not a pair: {AGAIN}"
            )
        merges.append((left, right))
    return merges


def _cut_words(tokenizer: Tokenizer, cut: Cut) -> None:
    """Set how a text is split into words."""
    from tokenizers import Regex, normalizers, pre_tokenizers

    if cut.nfc:
        tokenizer.normalizer = normalizers.NFC()
    steps: list[Any] = [pre_tokenizers.Split(Regex(words), "isolated") for words in cut.words]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)


# ------------------------------------------------------------------ llama


def _llama(given: _Given) -> Tokenizer:
    """SentencePiece's BPE: merge first the neighbours whose piece has the best score.

    Characters without a token become byte tokens if the vocabulary has them, else the unknown
    token. With add_space_prefix, the default, a space precedes the text and follows each control
    token in it, as in llama.cpp and the tokenizer.json of Llama 2.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers

    for name, allowed in (("precompiled_charsmap", ([],)), ("remove_extra_whitespaces", (False,))):
        value = given.fields.get(name, allowed[0])
        if value not in allowed:
            raise PretrainedError(
                f"{given.where}: {PREFIX}{name}={value!r:.40} changes the text before it is split, "
                f"which is not supported: {PASS_TOKENIZER}"
            )
    prefix = given.switch("add_space_prefix", True)
    has_bytes = bool(given.of_kind(TokenType.BYTE))
    model = models.BPE(
        given.numbers,
        _merges_of_pieces(given),
        unk_token=given.token("unknown_token_id"),
        fuse_unk=True,
        byte_fallback=has_bytes,
    )
    tokenizer = Tokenizer(model)
    before = [normalizers.Prepend(SPACE)] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*before, normalizers.Replace(" ", SPACE)])
    fallback = [decoders.ByteFallback()] if has_bytes else []
    first = [decoders.Strip(" ", 1, 0)] if prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), *fallback, decoders.Fuse(), *first]
    )
    return tokenizer


def _merges_of_pieces(given: _Given) -> list[tuple[str, str]]:
    """All pairs of pieces that form a piece, the best score first.

    Files made from a tokenizer.json have equal scores and list the merges themselves.
    """
    pieces = _scored_pieces(given)
    pairs = [
        (score, text[:cut], text[cut:])
        for text, score in pieces.items()
        for cut in range(1, len(text))
        if text[:cut] in pieces and text[cut:] in pieces
    ]
    if _is_an_order(pairs):
        # At equal scores the longest left part comes first, so that a run grows from its left.
        pairs.sort(key=lambda pair: (pair[0], len(pair[1]), len(pair[2])), reverse=True)
        return [(left, right) for _, left, right in pairs]
    if "merges" in given.fields:
        return _merges(given)
    raise PretrainedError(
        f"{given.where}: {PREFIX}scores has the same score for several pieces, and there are no "
        f"{PREFIX}merges to say which is merged first: {PASS_TOKENIZER}"
    )


def _scored_pieces(given: _Given) -> dict[str, float]:
    """The scores of the tokens that merges can form. Raises PretrainedError."""
    n = len(given.tokens)
    columns = []
    for name in ("scores", "token_type"):
        values = given.fields.get(name)
        if not isinstance(values, list) or len(values) != n or not all(map(_is_number, values)):
            raise PretrainedError(
                f"{given.where}: {PREFIX}{name} is missing or not a list of {n:,} numbers: {AGAIN}"
            )
        columns.append(values)
    rows = zip(given.tokens, *columns, strict=True)
    texts = (TokenType.NORMAL, TokenType.UNUSED)
    pieces = {text: score for text, score, kind in rows if kind in texts}
    longest = max(map(len, pieces), default=0)
    if longest > LONGEST_PIECE:
        raise PretrainedError(
            f"{given.where}: {PREFIX}tokens has a piece of {longest:,} letters, and the limit "
            f"is {LONGEST_PIECE}: {AGAIN}"
        )
    return pieces


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _is_an_order(pairs: list[tuple[float, str, str]]) -> bool:
    """Whether the scores determine which of two pieces is merged first.

    Only runs of one character may have the same score, such as the runs of spaces in Llama 2.
    """
    pieces: dict[float, set[str]] = {}
    for score, left, right in pairs:
        pieces.setdefault(score, set()).add(left + right)
    return all(len(texts) == 1 or len(set("".join(texts))) == 1 for texts in pieces.values())
