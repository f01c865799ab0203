"""Tokenizers of transformers' folders: the ids of its AutoTokenizer, by its own rules.

tokenizer.json alone does not decide. Transformers lets tokenizer_config.json name a class that cuts
words by its own rule, and takes added tokens from up to four files. Source of all rules here:
AutoTokenizer, TokenizersBackend and the three classes of transformers 5.24.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..console import first_line
from .needs import PretrainedError, needed
from .stored import AGAIN, read_json
from .tokenizer import PASS_TOKENIZER, PretrainedTokenizer, library_errors, token_ids
from .words import QWEN2_WORDS

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

# Special tokens that have a name of their own, in the order in which they are added.
NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
EXTRA = ("extra_special_tokens", "additional_special_tokens")  # the new name, and the old one
_OF_TOKENS = ("lstrip", "rstrip", "single_word", "normalized", "special")  # how one is found


def tokenizer_of_folder(folder: Path) -> PretrainedTokenizer:
    """The tokenizer of a folder: tokenizer.json, which may be named itself, and what is next to it.

    Raises PretrainedError for a folder without one, for a field that is damaged or whose rule is
    not known here, and ModuleNotFoundError without the package `tokenizers`.
    """
    if folder.name == "tokenizer.json" and folder.is_file():
        folder = folder.parent
    path = folder / "tokenizer.json"
    if not path.is_file():
        if (folder / "tokenizer.model").is_file():
            raise PretrainedError(
                f"{folder} has a tokenizer.model of SentencePiece and no tokenizer.json: make one "
                f"with AutoTokenizer.from_pretrained(folder).save_pretrained(folder) of "
                f"transformers, which needs sentencepiece and protobuf"
            )
        raise PretrainedError(
            f"{folder} has no tokenizer.json: put it there, or {PASS_TOKENIZER}, or in Python "
            f"CharTokenizer(text) with the text that the model was trained on"
        )
    with needed("a tokenizer.json"):
        import tokenizers  # noqa: F401 - before anything is read
    files = _read(folder)
    try:
        with library_errors():
            tokenizer = _built(files)
            specials = _add_tokens(tokenizer, files)
            stop = _stop_tokens(tokenizer, files, specials)
    except PretrainedError:
        raise
    except ValueError as error:
        reason = first_line(error)
        raise PretrainedError(f"{path} is not a tokenizer ({reason}): {AGAIN}") from error
    return PretrainedTokenizer(tokenizer, stop, _template(files), specials)


# ------------------------------------------------------------------ the files


@dataclass(frozen=True)
class _Files:
    """What a folder says about its tokenizer. A file that is not there says nothing."""

    folder: Path
    tokenizer: dict[str, Any]  # tokenizer.json
    about: dict[str, Any]  # tokenizer_config.json
    special: dict[str, Any]  # special_tokens_map.json, of older versions
    added: dict[str, Any]  # added_tokens.json, of older versions: the id of each token
    model: dict[str, Any]  # config.json
    generation: dict[str, Any]  # generation_config.json

    def wrong(self, file: str, field: str, value: object, rule: str) -> PretrainedError:
        """The error for a field."""
        return PretrainedError(f"{self.folder / file}: {field}={value!r:.100}: {rule}")


def _read(folder: Path) -> _Files:
    def about(name: str) -> dict[str, Any]:
        path = folder / name
        return read_json(path) if path.is_file() else {}

    return _Files(
        folder,
        tokenizer=read_json(folder / "tokenizer.json"),
        about=about("tokenizer_config.json"),
        special=about("special_tokens_map.json"),
        added=about("added_tokens.json"),
        model=about("config.json"),
        generation=about("generation_config.json"),
    )


# ------------------------------------------------------------------ how words are cut


def _gpt2(prefix_space: object, legacy: object) -> dict[str, Any]:
    cut = {"type": "ByteLevel", "add_prefix_space": bool(prefix_space), "use_regex": True}
    return {"normalizer": None, "pre_tokenizer": cut | {"trim_offsets": True}, **_BYTES}


def _qwen2(prefix_space: object, legacy: object) -> dict[str, Any]:
    """Qwen 2 joins letters and accents first, and each digit is a word."""
    words = {"type": "Split", "pattern": {"Regex": QWEN2_WORDS}, "behavior": "Isolated"}
    cut = {"type": "ByteLevel", "add_prefix_space": bool(prefix_space), "use_regex": False}
    steps = [words | {"invert": False}, cut | {"trim_offsets": True}]
    return {
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        **_BYTES,
    }


def _llama(prefix_space: object, legacy: object) -> dict[str, Any]:
    """Llama 2 puts a space before a text; in its legacy form after each control token, too."""
    prefixed = prefix_space is None or bool(prefix_space)
    scheme = ("always" if legacy else "first") if prefixed else "never"
    cut = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False}
    steps: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefixed:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {
        "normalizer": None,
        "pre_tokenizer": cut,
        "decoder": {"type": "Sequence", "decoders": steps},
        "model": {"fuse_unk": True, "byte_fallback": True},
    }


@dataclass(frozen=True)
class _Class:
    """A class of transformers that takes only the vocabulary and the merges of tokenizer.json."""

    rules: Callable[[object, object], dict[str, Any]]  # of add_prefix_space and legacy
    specials: dict[str, str | None]  # special tokens, unless the files name others


_BYTES = {
    "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}
    | {"use_regex": True},
    "model": {},
}
_END = "<|endoftext|>"
TOKENIZER_CLASSES = {
    "GPT2Tokenizer": _Class(
        _gpt2, {"unk_token": _END, "bos_token": _END, "eos_token": _END, "pad_token": None}
    ),
    "Qwen2Tokenizer": _Class(_qwen2, {"unk_token": _END, "eos_token": _END, "pad_token": _END}),
    "LlamaTokenizer": _Class(
        _llama, {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    ),
}
# Names under which tokenizer.json decides alone.
WHOLE_FILE = ("TokenizersBackend", "PreTrainedTokenizerFast", "PreTrainedTokenizer")
# The class of a model's family, if the files name none.
OF_FAMILY = {"gpt2": "GPT2Tokenizer", "opt": "GPT2Tokenizer", "qwen3": "Qwen2Tokenizer"}
# And of families whose files name wrong ones so often that transformers reads no name.
ALWAYS = {"qwen2": "Qwen2Tokenizer", "mistral": WHOLE_FILE[0], "phi3": WHOLE_FILE[0]}


def _class_name(files: _Files) -> str:
    """The class that AutoTokenizer would choose. Raises PretrainedError for an unknown one."""
    file = "tokenizer_config.json"
    code = files.about.get("auto_map")
    if code:
        raise files.wrong(file, "auto_map", code, f"names code, which never runs; {PASS_TOKENIZER}")
    family = str(files.model.get("model_type"))
    if family in ALWAYS:
        return ALWAYS[family]
    named = files.about.get("tokenizer_class") or files.model.get("tokenizer_class")
    if named is None:
        return OF_FAMILY.get(family, WHOLE_FILE[0])
    name = str(named)
    if name not in WHOLE_FILE:
        name = name.removesuffix("Fast")
    # Llama 3's files name the class of Llama 2.
    if name == "LlamaTokenizer" and _is_byte_level(files.tokenizer):
        return WHOLE_FILE[0]
    if name not in TOKENIZER_CLASSES and name not in WHOLE_FILE:
        raise files.wrong(
            file,
            "tokenizer_class",
            named,
            f"only {', '.join(TOKENIZER_CLASSES)} and {WHOLE_FILE[1]} are known; set it to the "
            f"last one if its tokenizer.json is complete",
        )
    return name


def _is_byte_level(tokenizer: dict[str, Any]) -> bool:
    """Whether tokenizer.json cuts words, or decodes them, as bytes."""
    steps = [tokenizer.get("pre_tokenizer"), tokenizer.get("decoder")]
    return '"ByteLevel"' in json.dumps(steps)


def _built(files: _Files) -> Tokenizer:
    """The tokenizer without its added tokens, unless the class takes the whole tokenizer.json."""
    from tokenizers import Tokenizer

    name = _class_name(files)
    if name in WHOLE_FILE:
        return Tokenizer.from_file(str(files.folder / "tokenizer.json"))
    model = files.tokenizer.get("model")
    kind = model.get("type", "BPE") if isinstance(model, dict) else model
    if not isinstance(model, dict) or kind != "BPE" or not isinstance(model.get("vocab"), dict):
        rule = f"{name}, the class of transformers for this folder, needs BPE: {PASS_TOKENIZER}"
        raise files.wrong("tokenizer.json", "model.type", kind, rule)
    rules = TOKENIZER_CLASSES[name].rules(
        files.about.get("add_prefix_space"), files.about.get("legacy")
    )
    learned = {"type": "BPE", "vocab": model["vocab"], "merges": model.get("merges", [])}
    whole = {**files.tokenizer, **rules, "model": learned | rules["model"], "added_tokens": []}
    return Tokenizer.from_str(json.dumps(whole))


# ------------------------------------------------------------------ added tokens


def _add_tokens(tokenizer: Tokenizer, files: _Files) -> dict[str, str]:
    """Add the tokens of all files, and return the texts of the named ones, for templates."""
    from tokenizers import AddedToken

    listed = _listed_tokens(files)
    named = _named_tokens(files, listed)
    extra = list(_extra_tokens(files))
    specials = {name: token.content for name, token in named.items()}
    # 1. In the order in which transformers adds them, since a new token gets the next free id. A
    # name or a list does not change the description of a token that has one.
    described = tokenizer.get_added_tokens_decoder()
    known = {token.content for token in (*described.values(), *listed)}
    wanted = [
        *listed,
        *(token for token in (*named.values(), *extra) if token.content not in known),
    ]
    # 2. A model has no row for a token beyond its own vocabulary, such as a [PAD] that somebody
    # added for training: its name stays ordinary text.
    rows = files.model.get("vocab_size")
    last = max(described, default=-1)
    free = max(tokenizer.get_vocab_size(with_added_tokens=False), last + 1)
    for token in wanted:
        if tokenizer.token_to_id(token.content) is None:
            if isinstance(rows, int) and free >= rows:
                continue
            free += 1
        token.special = token.special or token.content in specials.values()
        tokenizer.add_tokens([token])
    # 3. One class describes all special tokens anew.
    if _class_name(files) == "Qwen2Tokenizer":
        texts = [*specials.values(), *(token.content for token in extra)]
        there = [text for text in texts if tokenizer.token_to_id(text) is not None]
        tokenizer.add_tokens([AddedToken(text, special=True) for text in there])
    # 4. With this field their names in a text are ordinary text.
    tokenizer.encode_special_tokens = bool(files.about.get("split_special_tokens", False))
    return specials


def _listed_tokens(files: _Files) -> list[AddedToken]:
    """Tokens with an id: those of tokenizer_config.json, or else of the older files, by id.

    A token that is not in the vocabulary gets the next free id, whatever its own says.
    """
    file = "tokenizer_config.json"
    listed = files.about.get("added_tokens_decoder")
    if listed is not None:
        if not isinstance(listed, dict) or not all(key.isdecimal() for key in listed):
            raise files.wrong(file, "added_tokens_decoder", listed, "must have ids and tokens")
        return [_token(files, file, "added_tokens_decoder", listed[i]) for i in _by_id(listed)]
    found: dict[int, AddedToken] = {}
    texts = _special_texts(files)
    for text, number in files.added.items():
        if type(number) is not int:
            raise files.wrong("added_tokens.json", text, number, "must be the id of a token")
        about = {"content": text, "normalized": text not in texts, "special": text in texts}
        found[number] = _token(files, "added_tokens.json", text, about)
    listed = files.tokenizer.get("added_tokens") or []
    for about in listed:
        fields = {name: value for name, value in about.items() if name != "id"}
        found[about.get("id")] = _token(files, "tokenizer.json", "added_tokens", fields)
    return [found[number] for number in sorted(found)]


def _special_texts(files: _Files) -> set[str]:
    """The tokens of added_tokens.json that are special: those that another file calls so."""
    older = {name: _content(value) for name, value in files.special.items()}
    fields = files.about | older
    extra = fields.get(EXTRA[0]) or fields.get(EXTRA[1]) or []
    values = [fields.get(name) for name in NAMED] + (extra if isinstance(extra, list) else [])
    return {value for value in values if isinstance(value, str)}


def _content(value: Any) -> Any:
    """The text of a token that is described by an object."""
    return value.get("content") if isinstance(value, dict) else value


def _by_id(listed: dict[str, Any]) -> list[str]:
    return sorted(listed, key=int)


def _legacy_specials(files: _Files) -> dict[str, Any]:
    """What special_tokens_map.json says, which counts only without the newer list of tokens."""
    return {} if files.about.get("added_tokens_decoder") is not None else files.special


def _named_tokens(files: _Files, listed: list[AddedToken]) -> dict[str, AddedToken]:
    """Special tokens with a name: bos_token and so on, then a model's own such as image_token."""
    # 1. The names that every tokenizer has: of the class, of the config, of the older file.
    about, legacy = files.about, _legacy_specials(files)
    name = _class_name(files)
    values: dict[str, Any] = (
        dict(TOKENIZER_CLASSES[name].specials) if name in TOKENIZER_CLASSES else {}
    )
    values |= {name: (about | legacy)[name] for name in NAMED if name in about | legacy}
    padding = files.tokenizer.get("padding")
    if isinstance(padding, dict) and "pad_token" in padding:
        values.setdefault("pad_token", padding["pad_token"])
    values = {name: values[name] for name in NAMED if name in values}
    # 2. A model's own names, in this order, the later one deciding.
    extra = about.get(EXTRA[0])
    for fields in (legacy, about, extra if isinstance(extra, dict) else {}):
        own = [name for name in fields if fields is extra or name.endswith("_token")]
        values |= {name: fields[name] for name in own if name not in NAMED}
    # 3. A token that is described elsewhere keeps that description.
    described = {token.content: token for token in listed}
    tokens = {}
    for name, value in values.items():
        if value is not None and not isinstance(value, bool):  # a switch, such as add_bos_token
            token = _token(files, "tokenizer_config.json", name, value)
            tokens[name] = described.get(token.content, token)
    return tokens


def _extra_tokens(files: _Files) -> Iterator[AddedToken]:
    """Special tokens without a name. Of two lists, the one under the new name counts."""
    new, old = EXTRA
    legacy = files.about.get("added_tokens_decoder") is None
    values = files.about.get(new) or files.about.get(old)
    if isinstance(files.about.get(new), dict):  # these are names, so the old list counts as well
        values = files.about.get(old)
    unlisted = new not in files.about and old not in files.about
    if legacy and (unlisted or isinstance(files.about.get(new), dict)):
        values = files.special.get(old, values)
    if not isinstance(values or [], list):
        raise files.wrong("tokenizer_config.json", new, values, "must be a list of tokens")
    for value in values or []:
        yield _token(files, "tokenizer_config.json", new, value)


def _token(files: _Files, file: str, field: str, value: Any) -> AddedToken:
    """A token from its text or its description. Raises PretrainedError."""
    from tokenizers import AddedToken

    fields = {"content": value} if isinstance(value, str) else value
    try:
        with library_errors():
            known: dict[str, Any] = {"special": True}
            known |= {name: fields[name] for name in _OF_TOKENS if name in fields}
            return AddedToken(fields["content"], **known)
    except (ValueError, TypeError) as error:
        rule = f"must be a token ({first_line(error)}): {AGAIN}"
        raise files.wrong(file, field, value, rule) from error


# ------------------------------------------------------------------ the end, and the template


def _stop_tokens(tokenizer: Tokenizer, files: _Files, specials: dict[str, str]) -> list[int]:
    """The tokens that end a text, of every file that names some."""
    stop = token_ids(files.generation.get("eos_token_id"))
    stop += token_ids(files.model.get("eos_token_id"))
    end = specials.get("eos_token")
    found = None if end is None else tokenizer.token_to_id(end)
    return stop if found is None else [*stop, found]


def _template(files: _Files) -> str | None:
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
    if template is None and (files.folder / "chat_template.json").is_file():
        template = read_json(files.folder / "chat_template.json").get("chat_template")
    if isinstance(template, list):
        named = {one.get("name"): one.get("template") for one in template if isinstance(one, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _template_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise PretrainedError(f"{path} cannot be read ({first_line(error)})") from error
