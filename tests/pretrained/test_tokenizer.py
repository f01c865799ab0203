"""Tokens, texts and chats are those of transformers; a stream is the text of all its tokens."""

from __future__ import annotations

import inspect
import json
import sys

import gguf
import pytest
import torch
import transformers
from pretrained_fixtures import (
    CHAT,
    SPECIALS,
    TEXTS,
    V_TOKENIZER,
    change_json,
    their_tokenizer_json,
    write_gguf,
    write_tokenizer,
)
from tokenizers import Regex, Tokenizer, pre_tokenizers
from transformers.convert_slow_tokenizer import TikTokenConverter

from nanogpt import load_pretrained
from nanogpt.pretrained.gguf_file import read_gguf
from nanogpt.pretrained.gguf_tokenizer import CUTS, tokenizer_of_gguf
from nanogpt.pretrained.needs import PretrainedError
from nanogpt.pretrained.tokenizer import PretrainedTokenizer, tokenizer_of_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(path)
    return path


@pytest.fixture(scope="module")
def ours(folder) -> PretrainedTokenizer:
    return tokenizer_of_folder(folder)


@pytest.fixture(scope="module")
def theirs(folder):
    file = str(folder / "tokenizer.json")
    tokens = {"bos_token": SPECIALS[0], "eos_token": SPECIALS[2]}
    return transformers.PreTrainedTokenizerFast(tokenizer_file=file, chat_template=CHAT, **tokens)


@pytest.mark.parametrize("name", TEXTS)
def test_tokens_and_texts_are_those_of_transformers(name, ours, theirs):
    ids = ours.encode(TEXTS[name])
    assert ids.tolist() == theirs(TEXTS[name]).input_ids
    assert ids.dtype is torch.int64
    assert ours.decode(ids, special=True) == theirs.decode(ids) == TEXTS[name]
    assert ours.decode(ids[None]) == theirs.decode(ids, skip_special_tokens=True)


def test_the_tokenizer_has_the_interface_of_a_char_tokenizer(ours):
    assert len(ours) == V_TOKENIZER
    assert ours.decode(ours.encode("the fox").tolist()) == "the fox"
    assert ours.decode([]) == ""
    assert ours.decode(torch.tensor([V_TOKENIZER + 3])) == ""  # a spare row of an embedding
    assert ours.stop == (2,)


def test_a_long_text_is_neither_cut_nor_padded(tmp_path):
    write_tokenizer(tmp_path)
    padding = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None}
    padding |= {"pad_id": 0, "pad_type_id": 0, "pad_token": SPECIALS[0]}
    cut = {"direction": "Right", "max_length": 5, "strategy": "LongestFirst", "stride": 0}
    change_json(tmp_path / "tokenizer.json", truncation=cut, padding=padding)
    tokenizer = tokenizer_of_folder(tmp_path)
    assert tokenizer.decode(tokenizer.encode("the fox " * 20)) == "the fox " * 20
    assert len(tokenizer.encode("x")) == 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda t: t.encode(""), "the prompt is empty"),
        (lambda t: t.encode("\ud800"), "not valid Unicode"),
        (lambda t: t.decode([-1]), r"token -1: must be an integer in \[0, 303\]"),
        (lambda t: t.decode([2**40]), "token 1099511627776"),
        (lambda t: t.decode([0.5]), r"token 0\.5"),
        (lambda t: t.chat([]), r"messages=\[\]: pass a list"),
        (lambda t: t.chat("hello"), "messages='hello'"),
        (lambda t: t.chat({"role": "user"}), "messages="),
        (lambda t: t.chat(["hello"]), "its role must be a string"),
    ],
)
def test_a_wrong_argument_is_named(call, words, ours):
    with pytest.raises(ValueError, match=words):
        call(ours)


def test_a_number_is_no_text(ours):
    with pytest.raises(TypeError, match="text must be a str"):
        ours.encode(5)


# ------------------------------------------------------------------ bytes


@pytest.mark.parametrize("name", TEXTS)
def test_the_bytes_of_tokens_are_those_of_their_text(name, ours):
    ids = ours.encode(TEXTS[name]).tolist()
    found = [ours.bytes_of(token) for token in ids]
    assert b"".join(text or b"" for text in found) == ours.decode(ids).encode()
    control = [SPECIALS[token] for token, text in zip(ids, found, strict=True) if text is None]
    assert control == ["<|im_start|>", "<|im_end|>"] * (name == "control tokens")


def test_every_byte_has_a_token(ours):
    found = [ours.bytes_of(token) for token in range(len(ours))]
    assert {bytes([byte]) for byte in range(256)} <= set(found)
    assert [token for token, text in enumerate(found) if text is None] == [0, 1, 2]


def sentencepiece() -> PretrainedTokenizer:
    """Pieces of text with a sign for a space, and a token for every other byte."""
    pieces = ["<unk>", "▁a", "▁b", "c", "é", "▁", "\ufffd", "<s>", "Ġ", "<0x4>"]
    pieces += [f"<0x{byte:02X}>" for byte in range(256)]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    data = {"model": {"type": "BPE", "vocab": vocabulary, "merges": [], "unk_token": "<unk>"}}
    data["model"]["byte_fallback"] = True
    replace = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    steps = [replace, {"type": "ByteFallback"}, {"type": "Fuse"}, strip]
    data["decoder"] = {"type": "Sequence", "decoders": steps}
    made = Tokenizer.from_str(json.dumps(data))
    made.add_special_tokens(["<s>"])
    return PretrainedTokenizer(made)


def test_bytes_of_a_vocabulary_of_characters():
    ours = sentencepiece()
    texts = ["<unk>", " a", " b", "c", "é", " ", "\ufffd", None, "Ġ", "<0x4>"]
    want = [None if text is None else text.encode() for text in texts]
    want += [bytes([byte]) for byte in range(256)]
    assert [ours.bytes_of(token) for token in range(len(ours))] == want


# ------------------------------------------------------------------ streams


@pytest.mark.parametrize("name", TEXTS)
def test_a_stream_is_the_text_of_all_tokens_in_whole_characters(name, ours):
    ids = [token for token in ours.encode(TEXTS[name]).tolist() if token not in ours.stop]
    pieces = list(ours.stream(iter(ids)))
    assert "".join(pieces) == ours.decode(ids)
    assert not [piece for piece in pieces if "\ufffd" in piece]
    assert len(pieces) > 2 or len(ids) < 3


def test_a_stream_gives_up_on_bytes_that_are_no_character(ours):
    lone = int(ours.encode("é")[0])
    rest = ours.encode(" the fox").tolist()
    assert "".join(ours.stream([lone, *rest])) == ours.decode([lone, *rest])
    assert "".join(ours.stream([lone] * 9)) == ours.decode([lone] * 9)
    assert list(ours.stream([*rest, lone])) == [*ours.stream(rest), "\ufffd"]


def test_a_stream_ends_at_an_end_token_and_asks_for_no_more(ours):
    asked = []

    def tokens():
        for token in [*ours.encode("the fox").tolist(), 2, 50, 50]:
            asked.append(token)
            yield torch.tensor([[token]])

    assert "".join(ours.stream(tokens())) == "the fox"
    assert asked[-1] == 2


def test_a_stream_keeps_spaces_that_depend_on_the_token_before():
    """As in tokenizers of SentencePiece, whose first token loses its space."""
    vocabulary = {"<unk>": 0, "▁a": 1, "▁b": 2, "c": 3}
    data = {"model": {"type": "BPE", "vocab": vocabulary, "merges": [], "unk_token": "<unk>"}}
    replace = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    data["decoder"] = {"type": "Sequence", "decoders": [replace, {"type": "Fuse"}, strip]}
    tokenizer = PretrainedTokenizer(Tokenizer.from_str(json.dumps(data)))
    assert list(tokenizer.stream([1, 2, 3, 1])) == ["a", " b", "c", " a"]


# ------------------------------------------------------------------ chats

MESSAGES = [
    {"role": "system", "content": "Be brief. "},
    {"role": "user", "content": "Why is the sky blue? 🙂"},
    {"role": "assistant", "content": "Rayleigh\nscattering."},
    {"role": "user", "content": "<b>'quoted' & \"more\"</b>"},
]


@pytest.mark.parametrize("answer", [True, False])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_a_chat_is_that_of_transformers(n, answer, ours, theirs):
    messages = MESSAGES[-n:]
    options = {"add_generation_prompt": answer}
    text = theirs.apply_chat_template(messages, tokenize=False, **options)
    assert ours.chat_text(messages, answer) == text
    ids = theirs.apply_chat_template(messages, return_dict=True, **options)["input_ids"]
    assert ours.chat(messages, answer).tolist() == ids


TEMPLATES = {
    "{{ bos_token }}{{ messages[0].content | tojson }}": 'ſ"Why\\n"'.replace("ſ", SPECIALS[0]),
    "{%- for m in messages %}\n  {{- m.role }}\n{% break %}\n{%- endfor %}": "user\n",
    "{% if tools %}x{% endif %}{{ 'a' if tools is none else 'b' }}": "a",
    "{{ strftime_now('%Y') | length }}": "4",
}


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_has_the_filters_of_transformers(template, ours, theirs):
    messages = [{"role": "user", "content": "Why\n"}]
    tokenizer = PretrainedTokenizer(ours.tokenizer, (), template, {"bos_token": SPECIALS[0]})
    text = tokenizer.chat_text(messages)
    assert text == TEMPLATES[template]
    assert text == theirs.apply_chat_template(messages, chat_template=template, tokenize=False)


HOSTILE = {
    "{{ raise_exception('roles must alternate') }}": "roles must alternate",
    "{{ messages.__class__.__mro__ }}": "unsafe",
    "{{ ''.__class__.__base__.__subclasses__() }}": "unsafe",
    "{{ messages.append(1) }}": "unsafe",
    "{% for i in range(10**12) %}{% endfor %}": "range",
    "{{ messages[0].content.missing.more }}": "no attribute",
    "{% if %}": "refuses these messages",
    "{% include 'x' %}": "refuses these messages",
    "{{ 1 / 0 }}": "division",
    "{{ messages + 1 }}": "refuses these messages",
    "{{ x" * 300_000: "1,200,000 characters",
}


@pytest.mark.parametrize("template", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_template_reaches_nothing_and_is_told_in_one_line(template, ours):
    tokenizer = PretrainedTokenizer(ours.tokenizer, (), template)
    with pytest.raises(ValueError, match=HOSTILE[template]) as caught:
        tokenizer.chat(MESSAGES)
    assert "\n" not in str(caught.value)


def test_a_model_without_a_template_has_no_chat(ours):
    with pytest.raises(ValueError, match="no chat template"):
        PretrainedTokenizer(ours.tokenizer).chat(MESSAGES)


def test_a_template_is_a_file_or_a_field(tmp_path):
    write_tokenizer(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    several = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]
    change_json(path, chat_template=several)
    assert tokenizer_of_folder(tmp_path).chat_text(MESSAGES) == "yes"
    (tmp_path / "chat_template.jinja").write_text("a file", encoding="utf-8")
    assert tokenizer_of_folder(tmp_path).chat_text(MESSAGES) == "a file"
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(PretrainedError, match="chat_template.jinja cannot be read"):
        tokenizer_of_folder(tmp_path)


def test_end_tokens_come_from_all_files(tmp_path):
    write_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text('{"eos_token_id": 0}', encoding="utf-8")
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 0]}', encoding="utf-8")
    assert tokenizer_of_folder(tmp_path).stop == (5, 0, 2)


# ------------------------------------------------------------------ GGUF

ONE_DIGIT = ("smollm", "starcoder", "refact")  # each digit is a word
LLAMA3 = ("llama-bpe", "llama3", "llama-v3")  # one kind, under three names


def built(tmp_path, pre: str, **metadata) -> PretrainedTokenizer:
    changes = {f"tokenizer.ggml.{name}": value for name, value in metadata.items()}
    path = write_gguf(tmp_path / "x.gguf", "llama", pre=pre, metadata=changes)
    return tokenizer_of_gguf(read_gguf(path).metadata, "x.gguf")


def reference(pre: str):
    """What transformers, or a tokenizer.json, makes of the same vocabulary and merges."""
    data = json.loads(their_tokenizer_json())["model"]
    merges = [tuple(pair) for pair in data["merges"]]
    if pre == "qwen2":
        made = transformers.Qwen2Tokenizer(vocab=data["vocab"], merges=merges)
    elif pre == "gpt-2":
        made = transformers.GPT2Tokenizer(vocab=data["vocab"], merges=merges)
    else:
        return Tokenizer.from_str(their_tokenizer_json(digits=pre in ONE_DIGIT))
    made.add_special_tokens({"additional_special_tokens": SPECIALS})
    return made._tokenizer


@pytest.mark.parametrize("pre", ["gpt-2", "qwen2", *ONE_DIGIT])
@pytest.mark.parametrize("name", TEXTS)
def test_a_tokenizer_of_gguf_is_that_of_the_model_s_makers(name, pre, tmp_path):
    tokenizer = built(tmp_path, pre)
    ids = tokenizer.encode(TEXTS[name]).tolist()
    if pre in ONE_DIGIT:  # with the digits apart, other pairs are merged
        words = reference(pre).pre_tokenizer.pre_tokenize_str(TEXTS[name])
        assert tokenizer.tokenizer.pre_tokenizer.pre_tokenize_str(TEXTS[name]) == words
    else:
        assert ids == reference(pre).encode(TEXTS[name]).ids
    if pre != "qwen2":  # which joins letters and accents
        assert tokenizer.decode(ids, special=True) == TEXTS[name]


@pytest.mark.parametrize("pre", LLAMA3)
@pytest.mark.parametrize("name", TEXTS)
def test_llama_3_cuts_words_as_its_tokenizer_does(name, pre, tmp_path):
    pattern = inspect.signature(TikTokenConverter.__init__).parameters["pattern"].default
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    expected = pre_tokenizers.Sequence([split, bytes_]).pre_tokenize_str(TEXTS[name])
    tokenizer = built(tmp_path, pre)
    assert tokenizer.tokenizer.pre_tokenizer.pre_tokenize_str(TEXTS[name]) == expected


def test_a_text_begins_with_bos_and_ends_with_eos_if_the_file_or_its_kind_says_so(tmp_path):
    assert built(tmp_path, "gpt-2").encode("the")[0] != 0
    assert built(tmp_path, "gpt-2", add_bos_token=True).encode("the")[0] == 0
    assert built(tmp_path, "llama-bpe", add_bos_token=...).encode("the")[0] == 0
    assert built(tmp_path, "gpt-2", add_eos_token=True).encode("the")[-1] == 2
    assert built(tmp_path, "gpt-2").encode("the")[-1] != 2
    tokenizer = built(tmp_path, "llama-bpe", add_bos_token=True)
    assert tokenizer.decode(tokenizer.encode("the")) == "the"
    chat = tokenizer.chat([{"role": "user", "content": "the"}])
    assert chat[0] == 1  # the template decides how a chat begins


def test_end_tokens_and_the_template_are_in_the_metadata(tmp_path):
    tokenizer = built(tmp_path, "gpt-2", eot_token_id=0)
    assert tokenizer.stop == (2, 0)
    assert tokenizer.template == CHAT
    assert tokenizer.specials == {"bos_token": SPECIALS[0], "eos_token": SPECIALS[2]}


def test_every_kind_that_is_read_is_compared():
    assert set(CUTS) == {"gpt-2", "qwen2", *ONE_DIGIT, *LLAMA3}


def test_user_defined_tokens_are_whole_and_have_text(tmp_path):
    kinds = [3, 1, 4] + [1] * (V_TOKENIZER - 3)
    tokenizer = built(tmp_path, "gpt-2", token_type=kinds)
    assert tokenizer.encode("a<|im_end|>b").tolist()[1] == 2
    assert tokenizer.decode([2]) == "<|im_end|>"
    assert len(tokenizer.encode("<|im_start|>")) > 1


# ------------------------------------------------------------------ packages that are absent


@pytest.mark.parametrize("package", ["tokenizers", "gguf.constants", "jinja2"])
def test_a_package_that_is_absent_is_named_with_its_extra(package, tmp_path, monkeypatch, ours):
    path = write_gguf(tmp_path / "x.gguf", "llama")
    assert gguf.GGUFReader(path)
    monkeypatch.setitem(sys.modules, package, None)

    def use() -> None:
        _, tokenizer = load_pretrained(path)
        tokenizer.chat(MESSAGES)

    with pytest.raises(ModuleNotFoundError, match=r"nanogpt-notebooks\[pretrained\]") as caught:
        use()
    assert caught.value.name == package
