"""Tokenizers of transformers' folders, with the ids of its AutoTokenizer.

tokenizer.json alone does not decide: tokenizer_config.json names a class with rules of its own
(tokenizer_classes.py), and tokens are added from several files (added_tokens.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..console import first_line
from .added_tokens import add_tokens
from .needs import PretrainedError, needed
from .stored import AGAIN
from .tokenizer import (
    PASS_TOKENIZER,
    PretrainedTokenizer,
    end_tokens,
    library_errors,
    number_of_ids,
)
from .tokenizer_classes import base_tokenizer, class_of
from .tokenizer_files import TokenizerFiles, read_files

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def tokenizer_of_folder(folder: Path) -> PretrainedTokenizer:
    """The tokenizer of a folder: tokenizer.json, which may be named itself, and what is next to it.

    Raises PretrainedError for a folder without one, for a field that is damaged or whose rule is
    not known here, and ModuleNotFoundError without the package `tokenizers`.
    """
    if folder.name == "tokenizer.json" and folder.is_file():
        folder = folder.parent
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise _nothing_to_read(folder)
    with needed("a tokenizer.json"):
        import tokenizers  # noqa: F401 - before anything is read
    files = read_files(folder)
    try:
        with library_errors():
            # 1. The vocabulary and the rule for words.
            chosen = class_of(files)
            tokenizer = base_tokenizer(files, chosen)
            # 2. Control tokens. With that field their names in a text are ordinary text.
            specials = add_tokens(tokenizer, files, chosen)
            tokenizer.encode_special_tokens = bool(files.about.get("split_special_tokens", False))
            # 3. Where a text ends.
            stop = _stop_tokens(tokenizer, files, specials)
    except PretrainedError:
        raise
    except ValueError as error:
        reason = first_line(error)
        raise PretrainedError(f"{path} is not a tokenizer ({reason}): {AGAIN}") from error
    return PretrainedTokenizer(tokenizer, stop, _template(files), specials)


def _nothing_to_read(folder: Path) -> PretrainedError:
    if (folder / "tokenizer.model").is_file():
        return PretrainedError(
            f"{folder} has a tokenizer.model of SentencePiece and no tokenizer.json: make one "
            f"with AutoTokenizer.from_pretrained(folder).save_pretrained(folder) of "
            f"transformers, which needs sentencepiece and protobuf"
        )
    return PretrainedError(
        f"{folder} has no tokenizer.json: put it there, or {PASS_TOKENIZER}, or in Python "
        f"CharTokenizer(text) with the text that the model was trained on"
    )


# ------------------------------------------------------------------ the end, and the template


def _stop_tokens(
    tokenizer: Tokenizer, files: TokenizerFiles, specials: dict[str, str]
) -> list[int]:
    """The tokens that end a text, of every file that names some."""
    field = "eos_token_id"
    fields = {
        f"{files.folder / 'generation_config.json'}: {field}": files.generation.get(field),
        f"{files.folder / 'config.json'}: {field}": files.model.get(field),
    }
    stop = end_tokens(fields, number_of_ids(tokenizer))
    end = specials.get("eos_token")
    found = None if end is None else tokenizer.token_to_id(end)
    return stop if found is None else [*stop, found]


def _template(files: TokenizerFiles) -> str | None:
    """The chat template: of files of their own, which hide the field, or of that field.

    Of several with names it is the one named "default", if there is one.
    """
    paths = {path.stem: path for path in files.folder.glob("additional_chat_templates/*.jinja")}
    alone = files.folder / "chat_template.jinja"
    if alone.is_file():
        paths.setdefault("default", alone)
    if paths:
        return _template_file(paths["default"]) if "default" in paths else None
    template = files.about.get("chat_template")
    if isinstance(template, list):
        several = [one for one in template if isinstance(one, dict)]
        template = {str(one.get("name")): one.get("template") for one in several}
    if isinstance(template, dict):
        template = template.get("default")
    return template if isinstance(template, str) else None


def _template_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise PretrainedError(f"{path} cannot be read ({first_line(error)})") from error
