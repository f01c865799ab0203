"""The files of a folder that say something about its tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .needs import PretrainedError, shown
from .stored import read_json


@dataclass(frozen=True)
class TokenizerFiles:
    """The objects in those files. A file that is not there says nothing."""

    folder: Path
    tokenizer: dict[str, Any]  # tokenizer.json
    about: dict[str, Any]  # tokenizer_config.json
    special: dict[str, Any]  # special_tokens_map.json, of older versions
    added: dict[str, Any]  # added_tokens.json, of older versions: the id of each token
    model: dict[str, Any]  # config.json
    generation: dict[str, Any]  # generation_config.json

    def beyond_rows(self, number: int) -> bool:
        """Whether the model's config.json has no row for the token with this id."""
        rows = self.model.get("vocab_size")
        return isinstance(rows, int) and number >= rows

    def wrong(self, file: str, field: str, value: object, rule: str) -> PretrainedError:
        """The error for a field, with the rule that its value breaks."""
        return PretrainedError(f"{self.folder / file}: {shown(field)}={value!r:.100}: {rule}")


def read_files(folder: Path) -> TokenizerFiles:
    """Read the files. Raises PretrainedError for one that is damaged."""

    def read(name: str) -> dict[str, Any]:
        path = folder / name
        return read_json(path) if path.is_file() else {}

    return TokenizerFiles(
        folder,
        tokenizer=read("tokenizer.json"),
        about=read("tokenizer_config.json"),
        special=read("special_tokens_map.json"),
        added=read("added_tokens.json"),
        model=read("config.json"),
        generation=read("generation_config.json"),
    )
