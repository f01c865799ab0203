"""How a folder's tokenizer cuts words: by its tokenizer.json, or by a class of transformers.

Three classes take only the vocabulary and the merges of tokenizer.json and cut words by their own
rule. Which class is chosen depends on the names in two files and on the model's family. Source:
AutoTokenizer and these classes, transformers 5.24.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .tokenizer import PASS_TOKENIZER
from .tokenizer_files import TokenizerFiles
from .words import QWEN2_WORDS

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_Parts = dict[str, Any]  # of a tokenizer.json

# ------------------------------------------------------------------ the classes


def _byte_level(**fields: bool) -> _Parts:
    return {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, **fields}


def _gpt2(about: dict[str, Any]) -> _Parts:
    prefixed = bool(about.get("add_prefix_space"))
    return {
        "normalizer": None,
        "pre_tokenizer": _byte_level(add_prefix_space=prefixed, use_regex=True),
        "decoder": _byte_level(use_regex=True),
        "model": {},
    }


def _qwen2(about: dict[str, Any]) -> _Parts:
    """Qwen 2 joins letters and accents first, and each digit is a word."""
    prefixed = bool(about.get("add_prefix_space"))
    words = {"type": "Split", "pattern": {"Regex": QWEN2_WORDS}, "behavior": "Isolated"}
    in_bytes = _byte_level(add_prefix_space=prefixed, use_regex=False)
    steps = [words | {"invert": False}, in_bytes]
    return {
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "decoder": _byte_level(use_regex=True),
        "model": {},
    }


def _llama(about: dict[str, Any]) -> _Parts:
    """Llama 2 puts a space before a text; in its legacy form after each control token, too."""
    prefixed = about.get("add_prefix_space") in (None, True)
    scheme = ("always" if about.get("legacy") else "first") if prefixed else "never"
    space = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False}
    steps: list[_Parts] = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefixed:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {
        "normalizer": None,
        "pre_tokenizer": space,
        "decoder": {"type": "Sequence", "decoders": steps},
        "model": {"fuse_unk": True, "byte_fallback": True},
    }


@dataclass(frozen=True)
class TokenizerClass:
    """A class of transformers with rules of its own."""

    parts: Callable[[dict[str, Any]], _Parts]  # what replaces those of tokenizer.json
    specials: dict[str, str | None]  # special tokens, unless the files name others


_END = "<|endoftext|>"
TOKENIZER_CLASSES = {
    "GPT2Tokenizer": TokenizerClass(
        _gpt2, {"unk_token": _END, "bos_token": _END, "eos_token": _END, "pad_token": None}
    ),
    "Qwen2Tokenizer": TokenizerClass(
        _qwen2, {"unk_token": _END, "eos_token": _END, "pad_token": _END}
    ),
    "LlamaTokenizer": TokenizerClass(
        _llama, {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    ),
}

# ------------------------------------------------------------------ the choice

# Names with which tokenizer.json decides alone.
WHOLE_FILE = ("TokenizersBackend", "PreTrainedTokenizerFast", "PreTrainedTokenizer")
# The class of a model's family, if the files name none.
OF_FAMILY = {"gpt2": "GPT2Tokenizer", "opt": "GPT2Tokenizer", "qwen3": "Qwen2Tokenizer"}
# And of families whose files name wrong ones so often that transformers reads no name.
ALWAYS = {"qwen2": "Qwen2Tokenizer", "mistral": WHOLE_FILE[0], "phi3": WHOLE_FILE[0]}


def class_of(files: TokenizerFiles) -> TokenizerClass | None:
    """The class that AutoTokenizer would choose; None if tokenizer.json decides alone.

    Raises PretrainedError for a class whose rules are not known here, and for code.
    """
    code = files.about.get("auto_map")
    if code:
        rule = f"names code, which never runs: {PASS_TOKENIZER}"
        raise files.wrong("tokenizer_config.json", "auto_map", code, rule)
    # 1. The family decides, or a name in a file, or else the family.
    family = str(files.model.get("model_type"))
    named = files.about.get("tokenizer_class") or files.model.get("tokenizer_class")
    name = ALWAYS.get(family) or str(named or OF_FAMILY.get(family, WHOLE_FILE[0]))
    # 2. Older versions had two of each class, which are one now.
    name = name.removesuffix("Fast")
    # 3. Llama 3's files name the class of Llama 2.
    whole = [known.removesuffix("Fast") for known in WHOLE_FILE]
    if name in whole or (name == "LlamaTokenizer" and _is_byte_level(files.tokenizer)):
        return None
    if name not in TOKENIZER_CLASSES:
        rule = (
            f"only {', '.join(TOKENIZER_CLASSES)} and {WHOLE_FILE[1]} are known; set it to the "
            f"last one if its tokenizer.json is complete"
        )
        raise files.wrong("tokenizer_config.json", "tokenizer_class", named, rule)
    return TOKENIZER_CLASSES[name]


def _is_byte_level(tokenizer: _Parts) -> bool:
    """Whether a tokenizer.json cuts words, or decodes them, as bytes."""
    steps = [tokenizer.get("pre_tokenizer"), tokenizer.get("decoder")]
    return '"ByteLevel"' in json.dumps(steps)


def base_tokenizer(files: TokenizerFiles, chosen: TokenizerClass | None) -> Tokenizer:
    """The tokenizer of tokenizer.json, or of a class: then it has no added tokens yet."""
    from tokenizers import Tokenizer

    if chosen is None:
        added = files.tokenizer.get("added_tokens") or []
        kept = [token for token in added if not files.beyond_rows(token["id"])]
        if len(kept) == len(added):
            return Tokenizer.from_file(str(files.folder / "tokenizer.json"))
        return Tokenizer.from_str(json.dumps({**files.tokenizer, "added_tokens": kept}))
    model = files.tokenizer.get("model")
    kind = model.get("type", "BPE") if isinstance(model, dict) else model
    if not isinstance(model, dict) or kind != "BPE" or not isinstance(model.get("vocab"), dict):
        rule = f"the class that transformers chooses needs BPE: {PASS_TOKENIZER}"
        raise files.wrong("tokenizer.json", "model.type", kind, rule)
    parts = chosen.parts(files.about)
    learned = {"type": "BPE", "vocab": model["vocab"], "merges": model.get("merges", [])}
    whole = {**files.tokenizer, **parts, "model": learned | parts["model"], "added_tokens": []}
    return Tokenizer.from_str(json.dumps(whole))
