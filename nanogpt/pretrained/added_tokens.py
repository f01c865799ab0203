"""Tokens beyond a vocabulary's own: control tokens and others, from the files of a folder.

A token's place in the order decides its id: one that the vocabulary lacks gets the next free id,
whatever the file says. So the order here is that of transformers 5.24: tokenizer_config.json lists
tokens with their ids, or else tokenizer.json does; then come the special tokens with a name, then
those without one. The two further files of older versions name no others in folders that programs
have written; one that does is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..console import first_line
from .stored import AGAIN
from .tokenizer import PASS_TOKENIZER, library_errors
from .tokenizer_classes import TokenizerClass
from .tokenizer_files import TokenizerFiles

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

CONFIG = "tokenizer_config.json"
LISTED = "added_tokens_decoder"  # in it: the tokens by id; with it, the older files do not count
# Special tokens that have a name of their own, in the order in which they are added.
NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
# Lists of special tokens without a name, or, in some files, of more names.
EXTRA, OLD_EXTRA = "extra_special_tokens", "additional_special_tokens"
_OPTIONS = ("lstrip", "rstrip", "single_word", "normalized", "special")  # how a token is found


def add_tokens(
    tokenizer: Tokenizer, files: TokenizerFiles, chosen: TokenizerClass | None
) -> dict[str, str]:
    """Add the tokens of all files, and return the texts of the named ones, for templates.

    Raises PretrainedError for a field that does not describe tokens, and for a token that only an
    older file has.
    """
    listed = _listed_tokens(files)
    named = _named_tokens(files, chosen, listed)
    specials = {name: token.content for name, token in named.items()}
    # 1. A name or a list does not change how a token is found that is described already.
    there = tokenizer.get_added_tokens_decoder()
    described = {token.content for token in (*there.values(), *listed)}
    others = (*named.values(), *_extra_tokens(files))
    wanted = [*listed, *(token for token in others if token.content not in described)]
    for token in wanted:
        token.special = token.special or token.content in specials.values()
    # 2. A model has no row for a token beyond its own vocabulary, such as a [PAD] that somebody
    # added for training: its name stays ordinary text.
    texts = dict.fromkeys(token.content for token in wanted)
    new = [text for text in texts if tokenizer.token_to_id(text) is None]
    size = tokenizer.get_vocab_size(with_added_tokens=False)
    first = max(size, 1 + max(there, default=-1))  # the id of the first new token
    beyond = {text for i, text in enumerate(new) if files.beyond_rows(first + i)}
    tokenizer.add_tokens([token for token in wanted if token.content not in beyond])
    _check_older_files(files, {*described, *texts})
    return specials


def _listed_tokens(files: TokenizerFiles) -> list[AddedToken]:
    """The tokens that a file lists with their ids, by id."""
    listed = files.about.get(LISTED)
    if listed is None:
        added = files.tokenizer.get("added_tokens") or []
        added = sorted(added, key=lambda token: int(token["id"]))
        return [_token(files, "tokenizer.json", "added_tokens", token) for token in added]
    if not isinstance(listed, dict) or not all(number.isdecimal() for number in listed):
        raise files.wrong(CONFIG, LISTED, listed, f"must have ids and tokens: {AGAIN}")
    return [_token(files, CONFIG, LISTED, listed[number]) for number in sorted(listed, key=int)]


def _named_tokens(
    files: TokenizerFiles, chosen: TokenizerClass | None, listed: list[AddedToken]
) -> dict[str, AddedToken]:
    """Special tokens with a name: bos_token and so on, then a model's own such as image_token."""
    about = files.about
    # 1. The names that every tokenizer has: of the class, of the config, of the older file.
    values: dict[str, Any] = {} if chosen is None else dict(chosen.specials)
    values |= about | (files.special if about.get(LISTED) is None else {})
    padding = files.tokenizer.get("padding")
    if isinstance(padding, dict) and "pad_token" in padding:
        values.setdefault("pad_token", padding["pad_token"])
    values = {name: values[name] for name in NAMED if name in values}
    # 2. A model's own names, in this order, the later value deciding.
    more = about.get(EXTRA)
    names = [name for name in about if name.endswith("_token") and name not in NAMED]
    values |= {name: about[name] for name in names} | (more if isinstance(more, dict) else {})
    # 3. A token that is described elsewhere is found in that way. Null: there is no such token;
    # true or false: a switch, such as add_bos_token.
    described = {token.content: token for token in listed}
    tokens = {
        name: _token(files, CONFIG, name, value)
        for name, value in values.items()
        if value is not None and not isinstance(value, bool)
    }
    return {name: described.get(token.content, token) for name, token in tokens.items()}


def _extra_tokens(files: TokenizerFiles) -> list[AddedToken]:
    """Special tokens without a name: of the list under the new name, or of the old one."""
    values = files.about.get(EXTRA)
    if not values or isinstance(values, dict):  # more names are no list
        values = files.about.get(OLD_EXTRA)
    if values is not None and not isinstance(values, list):
        raise files.wrong(CONFIG, EXTRA, values, f"must be a list of tokens: {AGAIN}")
    return [_token(files, CONFIG, EXTRA, value) for value in values or []]


def _check_older_files(files: TokenizerFiles, known: set[str]) -> None:
    """Refuse a token that only an older file names: its id would be another one."""
    if files.about.get(LISTED) is not None:
        return
    rule = f"is not in tokenizer.json: {PASS_TOKENIZER}, saved again by transformers"
    for text, number in files.added.items():
        if text not in known and not (type(number) is int and files.beyond_rows(number)):
            raise files.wrong("added_tokens.json", text, number, rule)
    unnamed = {name: value for name, value in files.special.items() if name not in NAMED}
    for name, value in unnamed.items():
        for token in value if isinstance(value, list) else [value]:
            content = token.get("content") if isinstance(token, dict) else token
            if isinstance(content, str) and content not in known:
                raise files.wrong("special_tokens_map.json", name, content, rule)


def _token(files: TokenizerFiles, file: str, field: str, value: Any) -> AddedToken:
    """A token from its text or its description. Raises PretrainedError."""
    from tokenizers import AddedToken

    fields = {"content": value} if isinstance(value, str) else value
    try:
        with library_errors():
            options: dict[str, Any] = {"special": True}
            options |= {name: fields[name] for name in _OPTIONS if name in fields}
            return AddedToken(fields["content"], **options)
    except (ValueError, TypeError) as error:
        rule = f"must be a token ({first_line(error)}): {AGAIN}"
        raise files.wrong(file, field, value, rule) from error
