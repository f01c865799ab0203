"""A folder's tokenizer gives the ids of transformers' AutoTokenizer, or is refused by a field."""

from __future__ import annotations

import functools
import json
import random
from pathlib import Path

import pytest
import tokenizers
import transformers
from pretrained_fixtures import (
    SPECIALS,
    TEXT,
    TEXTS,
    as_5_24,
    change_json,
    their_tokenizer_json,
)
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from nanogpt import load_pretrained
from nanogpt.cli import main
from nanogpt.pretrained.folder_tokenizer import tokenizer_of_folder
from nanogpt.pretrained.needs import PretrainedError
from nanogpt.pretrained.tokenizer_classes import ALWAYS, OF_FAMILY, TOKENIZER_CLASSES
from nanogpt.pretrained.write import character_tokenizer

MORE = ["<new>", "<|tool|>", "[PAD]", "<s>", "</s>", "<unk>", "<img>", "the"]
SAMPLES = [
    *TEXTS.values(),
    " the <new> fox<|tool|> the",
    "<s> the</s>  the<s>the",
    "[PAD]x [PAD]",
    "<img><new><|im_start|> a\n<|im_end|>b",
    "  two",
    "<unk> 🙂 <|endoftext|> the",
    "▁the ▁",
]


@functools.cache
def sentencepiece_json() -> str:
    """As Llama 2's: merges of characters, bytes for the others, a space before the text."""
    made = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    in_bytes = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<unk>", "<s>", "</s>", *in_bytes],
        show_progress=False,
        max_token_length=8,
    )
    made.train_from_iterator([TEXT], trainer)
    data = json.loads(made.to_str())
    data["added_tokens"] = data["added_tokens"][:3]
    made = Tokenizer.from_str(json.dumps(data))
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    return made.to_str()


@functools.cache
def unigram_json() -> str:
    pieces = sorted({"▁the", "▁quick", "he", "ox", "▁fox", *TEXT.replace(" ", "▁")})
    rows = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0)]
    rows += [(piece, -3.0 - i / 10) for i, piece in enumerate(pieces)]
    made = Tokenizer(models.Unigram(rows, unk_id=0, byte_fallback=False))
    made.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="always")
    made.add_special_tokens(["<s>", "</s>", "<unk>"])
    return made.to_str()


KINDS = {
    "bytes": their_tokenizer_json,
    "bytes, digits apart": functools.partial(their_tokenizer_json, digits=True),
    "sentencepiece": sentencepiece_json,
    "unigram": unigram_json,
    "our characters": lambda: json.dumps(character_tokenizer(sorted(set(TEXT)))),
}


def write(folder: Path, kind: str = "bytes", **files) -> Path:
    """A folder with that tokenizer.json and with other files, named without their .json."""
    (folder / "tokenizer.json").write_text(KINDS[kind](), encoding="utf-8")
    for name, data in files.items():
        (folder / f"{name}.json").write_text(json.dumps(data), encoding="utf-8")
    return folder


def ids_of(encode, text: str) -> list[int] | None:
    """The ids of a text; None where the vocabulary has none."""
    try:
        return list(encode(text))
    except Exception:
        return None


def check_ids(folder: Path) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = tokenizer_of_folder(folder)
    for text in SAMPLES:
        expected = ids_of(lambda text: theirs(text).input_ids, text) or None
        assert ids_of(lambda text: ours.encode(text).tolist(), text) == expected, text
        if expected:
            assert ours.decode(expected, special=True) == theirs.decode(expected)
            spoken = theirs.decode(expected, skip_special_tokens=True)
            assert ours.decode(expected) == spoken
    assert ours.specials == theirs.special_tokens_map


def added(text: str, **fields) -> dict:
    """A token as tokenizer_config.json describes it."""
    usual = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False)
    return {"content": text, "special": True, **usual, **fields}


def typed(text: str, **fields) -> dict:
    return {"__type": "AddedToken", **added(text, **fields)}


# ------------------------------------------------------------------ one field at a time

DECODER = {"0": added(SPECIALS[0]), "400": added("<new>", lstrip=True, special=False)}
FIELDS = {
    "nothing else": {},
    "named tokens": {"tokenizer_config": {"bos_token": SPECIALS[0], "pad_token": "[PAD]"}},
    "a described token": {"tokenizer_config": {"eos_token": typed("<new>")}},
    "a name of its own": {"tokenizer_config": {"image_token": "<img>", "pad_token": None}},
    "added_tokens_decoder": {"tokenizer_config": {"added_tokens_decoder": DECODER}},
    "added_tokens.json": {
        "added_tokens": {SPECIALS[1]: 1, "<unk>": 0},
        "tokenizer_config": {"sep_token": SPECIALS[1], "unk_token": "<unk>"},
    },
    "special_tokens_map.json": {
        "special_tokens_map": {"eos_token": "<new>", "pad_token": added("[PAD]")}
    },
    "both, and the newer list": {
        "special_tokens_map": {"eos_token": "<new>"},
        "tokenizer_config": {"added_tokens_decoder": DECODER},
    },
    "additional_special_tokens": {
        "tokenizer_config": {"additional_special_tokens": ["<new>", typed("<|tool|>")]}
    },
    "extra_special_tokens": {"tokenizer_config": {"extra_special_tokens": ["<new>", "<img>"]}},
    "extra tokens with names": {"tokenizer_config": {"extra_special_tokens": {"x_token": "<new>"}}},
    "add_prefix_space": {"tokenizer_config": {"add_prefix_space": True}},
    "no prefix space": {"tokenizer_config": {"add_prefix_space": False}},
    "add_bos_token": {"tokenizer_config": {"bos_token": "<s>", "add_bos_token": True}},
    "no bos token": {"tokenizer_config": {"bos_token": "<s>", "add_bos_token": False}},
    "add_eos_token": {"tokenizer_config": {"eos_token": "</s>", "add_eos_token": True}},
    "legacy": {"tokenizer_config": {"legacy": True}},
    "not legacy": {"tokenizer_config": {"legacy": False}},
    "split_special_tokens": {"tokenizer_config": {"split_special_tokens": True}},
}
# The class, and a tokenizer.json that it takes.
CASES = [("PreTrainedTokenizerFast", kind) for kind in KINDS]
CASES += [("LlamaTokenizer", "sentencepiece"), ("LlamaTokenizerFast", "bytes")]
CASES += [("GPT2Tokenizer", "bytes, digits apart"), ("Qwen2Tokenizer", "bytes")]


@as_5_24
@pytest.mark.parametrize("name", FIELDS)
def test_a_field_has_its_meaning_in_transformers(name, tmp_path):
    for i, (cls, kind) in enumerate(CASES):
        files = {key: dict(value) for key, value in FIELDS[name].items()}
        files.setdefault("tokenizer_config", {})["tokenizer_class"] = cls
        folder = tmp_path / f"{i}"
        folder.mkdir()
        check_ids(write(folder, kind, **files))


FAMILIES = ["llama", "gpt2", "qwen2", "qwen3", "mistral", "smollm3", "opt", "phi3", "nanochat"]
NAMED = [None, "PreTrainedTokenizerFast", "LlamaTokenizerFast", "GPT2Tokenizer", "Qwen2Tokenizer"]


@as_5_24
@pytest.mark.parametrize("family", FAMILIES)
def test_the_class_is_the_one_that_auto_tokenizer_chooses(family, tmp_path):
    for named in NAMED:
        config = {} if named is None else {"tokenizer_class": named}
        check_ids(write(tmp_path, tokenizer_config=config, config={"model_type": family}))


def test_every_family_with_a_class_is_compared():
    assert {*OF_FAMILY, *ALWAYS} <= set(FAMILIES)
    assert set(TOKENIZER_CLASSES) == {cls for cls, _ in CASES if cls.endswith("Tokenizer")}


def random_files(dice: random.Random) -> dict[str, dict]:
    """Files with many of the fields."""
    config: dict = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token", "image_token", "sep_token"):
        if dice.random() < 0.3:
            config[name] = dice.choice([*MORE, *SPECIALS, None, typed(dice.choice(MORE))])
    if dice.random() < 0.3:
        chosen = dice.sample(list(enumerate([*SPECIALS, *MORE])), k=dice.randint(0, 6))
        switches = ("normalized", "special", "lstrip", "rstrip", "single_word")
        config["added_tokens_decoder"] = {
            str(i): added(text, **{name: dice.random() < 0.3 for name in switches})
            for i, text in chosen
        }
    if dice.random() < 0.2:
        config["additional_special_tokens"] = [*dice.sample(MORE, k=2), typed("<x>")]
    if dice.random() < 0.2:
        names = {"image_token": "<img>", "boi_token": "<boi>"}
        config["extra_special_tokens"] = dice.choice([["<new>", "<y>"], names])
    for name in ("add_prefix_space", "add_bos_token", "add_eos_token", "legacy"):
        if dice.random() < 0.25:
            config[name] = dice.random() < 0.5
    if dice.random() < 0.2:
        config["split_special_tokens"] = True
    files = {"tokenizer_config": config}
    if dice.random() < 0.5:
        files["config"] = {"model_type": dice.choice(["llama", "gpt2", "qwen3", "mistral"])}
    if dice.random() < 0.25:
        files["special_tokens_map"] = {
            name: dice.choice(MORE) for name in ("bos_token", "pad_token")
        }
    return files


@as_5_24
@pytest.mark.release
@pytest.mark.parametrize("seed", range(400))
def test_any_mixture_of_fields_has_the_ids_of_transformers(seed, tmp_path):
    dice = random.Random(seed)
    files = random_files(dice)
    # Qwen2Tokenizer finds special tokens in its own way where a file describes another.
    cls, kind = dice.choice([case for case in CASES if case[0] != "Qwen2Tokenizer"])
    files["tokenizer_config"]["tokenizer_class"] = cls
    check_ids(write(tmp_path, kind, **files))


# ------------------------------------------------------------------ what is refused

LONG = "x" * 10_000
REFUSED = [
    ({"tokenizer_config": {"tokenizer_class": "BertTokenizer"}}, "tokenizer_class='BertTokenizer'"),
    ({"tokenizer_config": {"tokenizer_class": LONG}}, "tokenizer_class='xxx"),
    ({"config": {"tokenizer_class": "T5Tokenizer"}}, "tokenizer_class='T5Tokenizer'"),
    ({"tokenizer_config": {"auto_map": {"AutoTokenizer": ["a.B", None]}}}, "auto_map=.*names code"),
    ({"tokenizer_config": {"bos_token": 5}}, "bos_token=5: must be a token"),
    ({"tokenizer_config": {"bos_token": {"content": "\ud800" + LONG}}}, "bos_token=.*surrogate"),
    ({"tokenizer_config": {"bos_token": {LONG: LONG}}}, "bos_token=.*must be a token"),
    ({"tokenizer_config": {"extra_special_tokens": LONG}}, "extra_special_tokens=.*a list"),
    ({"tokenizer_config": {"extra_special_tokens": [7]}}, "extra_special_tokens=7: must be a"),
    ({"tokenizer_config": {"added_tokens_decoder": {"x": {}}}}, "added_tokens_decoder=.*ids and"),
    ({"tokenizer_config": {"added_tokens_decoder": {"1": 2}}}, "added_tokens_decoder=2: must"),
    # Tokens that only an older file has.
    ({"added_tokens": {"<new>": "x"}}, "<new>='x': is not in tokenizer.json"),
    ({"added_tokens": {"<new>": 400}}, "<new>=400: is not in tokenizer.json"),
    (
        {"special_tokens_map": {"additional_special_tokens": [{"content": "<new>"}]}},
        "additional_special_tokens='<new>': is not in",
    ),
    ({"special_tokens_map": {"image_token": "<img>"}}, "image_token='<img>': is not in"),
]


@pytest.mark.parametrize(("files", "words"), REFUSED)
def test_a_field_that_is_not_understood_is_refused_by_name(files, words, tmp_path):
    with pytest.raises(PretrainedError, match=words) as caught:
        tokenizer_of_folder(write(tmp_path, **files))
    assert "\n" not in str(caught.value)
    assert "x" * 200 not in str(caught.value)
    str(caught.value).encode()  # it can be printed


@pytest.mark.parametrize("kind", ["unigram", "our characters"])
def test_a_class_that_a_vocabulary_without_merges_cannot_have_is_refused(kind, tmp_path):
    config = {"tokenizer_class": "GPT2Tokenizer"}
    with pytest.raises(PretrainedError, match=r"model\.type=.*needs BPE"):
        tokenizer_of_folder(write(tmp_path, kind, tokenizer_config=config))


def test_a_token_beyond_the_rows_of_the_model_is_ordinary_text(own_folder):
    """Many folders name a [PAD] for which nobody has added a row."""
    folder = own_folder("llama")
    extra = [f"<{i}>" for i in range(30)]
    change_json(folder / "tokenizer_config.json", extra_special_tokens=[*extra, "[PAD]"])
    model, tokenizer = load_pretrained(folder)
    assert len(tokenizer) == model.config.vocab_size
    assert tokenizer.encode("<0>").tolist() == [304]
    assert len(tokenizer.encode("[PAD]")) > 1


@pytest.mark.parametrize("cls", ["PreTrainedTokenizerFast", "LlamaTokenizer", "Qwen2Tokenizer"])
def test_a_listed_token_beyond_the_rows_of_the_model_is_ordinary_text(cls, own_folder):
    """As above, saved in tokenizer.json itself."""
    folder = own_folder("llama")
    listed = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
    listed += [{"id": 304 + i, **added(f"<{i}>")} for i in range(16)]
    listed += [{"id": 320, **added("[PAD]")}]
    change_json(folder / "tokenizer.json", added_tokens=listed)
    change_json(folder / "tokenizer_config.json", tokenizer_class=cls, pad_token="[PAD]")
    model, tokenizer = load_pretrained(folder)
    assert len(tokenizer) == model.config.vocab_size == 320
    assert tokenizer.encode("<15>").tolist() == [319]
    assert len(tokenizer.encode("[PAD]")) > 1


def test_a_character_that_a_vocabulary_lacks_is_reported(tmp_path):
    tokenizer = tokenizer_of_folder(write(tmp_path, "our characters"))
    with pytest.raises(ValueError, match="cannot be written in this vocabulary") as caught:
        tokenizer.encode("é")
    assert "\n" not in str(caught.value)


def test_the_file_itself_may_be_named(tmp_path):
    tokenizer = tokenizer_of_folder(write(tmp_path) / "tokenizer.json")
    assert tokenizer.encode("the").tolist() == tokenizer_of_folder(tmp_path).encode("the").tolist()


# ------------------------------------------------------------------ the command line

GENERATE = ["generate", "--max-new-tokens", "4", "--backend", "modules", "--greedy"]


@pytest.fixture
def bare(own_folder) -> Path:
    """A model's folder without a tokenizer."""
    folder = own_folder("llama")
    (folder / "tokenizer.json").unlink()
    return folder


def test_a_command_takes_the_tokenizer_of_another_folder(bare, kept_folders, tmp_path, capsys):
    whole = str(kept_folders("llama"))
    assert main([*GENERATE, "--model", whole, "--prompt", "the"]) == 0
    text = capsys.readouterr().out
    assert main([*GENERATE, "--model", str(bare), "--prompt", "the", "--tokenizer", whole]) == 0
    assert capsys.readouterr().out == text
    out = tmp_path / "out"
    assert main(["export", "--model", str(bare), "--tokenizer", whole, "--out", str(out)]) == 0
    capsys.readouterr()
    assert main([*GENERATE, "--model", str(out), "--prompt", "the"]) == 0
    assert capsys.readouterr().out == text


def test_a_model_without_a_tokenizer_is_refused_with_the_option(bare, capsys):
    assert main([*GENERATE, "--model", str(bare), "--prompt", "the"]) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert "on the command line --tokenizer" in said


@pytest.mark.parametrize("command", ["generate", "serve", "export"])
def test_the_option_is_for_pretrained_models(command, tmp_path, capsys):
    assert main([command, "--tokenizer", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert "--tokenizer" in said
