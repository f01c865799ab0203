"""How texts are cut into words before the letters of a word are merged, by regular expressions.

A tokenizer of bytes learns its merges inside words, so another cut gives other tokens. Each rule is
one or more expressions, applied one after the other: what an expression finds is a word, and so is
what lies between two of its finds.

Sources: the expressions are those of the models' own tokenizer.json; the names are those that
llama.cpp's converter writes into tokenizer.ggml.pre, each with the expression that it stands for in
llama.cpp's src/llama-vocab.cpp. Where llama.cpp spells one differently because its library lacks
something, the model's own is used.
"""

from __future__ import annotations

from typing import NamedTuple

_CONTRACTED = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3_WORDS = (
    rf"{_CONTRACTED}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACE}"
)
QWEN2_WORDS = LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")
# Accents belong to their letters.
QWEN35_WORDS = QWEN2_WORDS.replace(r"\p{L}+", r"[\p{L}\p{M}]+").replace(
    r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]"
)
# A capital letter begins a word, also inside of one: "camelCase" is two.
_SMALL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
_CAPITAL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
TEKKEN_WORDS = rf"{_BEFORE}{_SMALL}|{_BEFORE}{_CAPITAL}|\p{{N}}|{_SIGNS}|{_SPACE}"
GPT4O_WORDS = (
    rf"{_BEFORE}{_SMALL}{_CONTRACTED}?|{_BEFORE}{_CAPITAL}{_CONTRACTED}?"
    rf"|\p{{N}}{{1,3}}|{_SIGNS}|{_SPACE}"
)
# Of files without a name, which llama.cpp cuts like Falcon's.
DEFAULT_WORDS = (r"[\p{P}$+<=>^~|]+", GPT2_WORDS, r"\p{N}+", "[0-9][0-9][0-9]")


class Cut(NamedTuple):
    """One of llama.cpp's kinds of pre-tokenizers."""

    words: tuple[str, ...]
    nfc: bool = False  # letters and their accents are joined first
    whole: bool = False  # a word that is a token skips the merges
    begins: bool = False  # texts begin with bos_token unless the file says otherwise


_LLAMA3 = Cut((LLAMA3_WORDS,), whole=True, begins=True)
_QWEN2 = Cut((QWEN2_WORDS,), nfc=True)
UNNAMED = "default"  # what a file without tokenizer.ggml.pre means
_DIGITS = Cut((r"\p{N}", GPT2_WORDS))  # each digit is a word
CUTS = {  # beside each, a model whose files have it
    UNNAMED: Cut(DEFAULT_WORDS),  # older files, which have no name
    "gpt-2": Cut((GPT2_WORDS,)),
    "smollm": _DIGITS,  # SmolLM2
    "refact": _DIGITS,  # Granite Code
    "llama-bpe": _LLAMA3,  # Llama 3
    "llama3": _LLAMA3,  # its names in older files
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,  # Falcon 3
    "smaug-bpe": Cut((LLAMA3_WORDS,)),  # SmolLM3
    "qwen2": _QWEN2,  # Qwen 2 to 3
    "deepseek-r1-qwen": _QWEN2,  # the Qwen models that learned from DeepSeek-R1
    "qwen35": Cut((QWEN35_WORDS,), nfc=True),  # Qwen 3.5
    "tekken": Cut((TEKKEN_WORDS,), whole=True, begins=True),  # Mistral NeMo
    "gpt-4o": Cut((GPT4O_WORDS,)),  # Phi-4-mini
}
