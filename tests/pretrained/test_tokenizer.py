"""Tokens, texts and chats are those of transformers; a stream is the text of all its tokens."""

from __future__ import annotations

import json
import sys
import unicodedata
import urllib.request

import gguf
import pytest
import torch
import transformers
from pretrained_fixtures import (
    CHAT,
    SPECIALS,
    TEXTS,
    V_TOKENIZER,
    V,
    their_tokenizer_json,
    write_gguf,
    write_tokenizer,
)
from tokenizers import Regex, Tokenizer, pre_tokenizers

from nanogpt import load_pretrained
from nanogpt.pretrained.folder_tokenizer import tokenizer_of_folder
from nanogpt.pretrained.gguf_file import read_gguf
from nanogpt.pretrained.gguf_tokenizer import tokenizer_of_gguf
from nanogpt.pretrained.tokenizer import PretrainedTokenizer
from nanogpt.pretrained.words import CUTS


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


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda t: t.encode(""), "the prompt is empty"),
        (lambda t: t.encode("\ud800"), "not valid Unicode"),
        (lambda t: t.decode([-1]), r"token -1: must be an integer in \[0, 303\]"),
        (lambda t: t.decode([2**40]), "token 1099511627776"),
        (lambda t: t.decode([0.5]), r"token 0\.5"),
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


def test_end_tokens_come_from_all_files(tmp_path):
    write_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text('{"eos_token_id": 0}', encoding="utf-8")
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 0]}', encoding="utf-8")
    assert tokenizer_of_folder(tmp_path).stop == (5, 0, 2)


# ------------------------------------------------------------------ GGUF

ONE_DIGIT = "smollm"  # each digit is a word


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
        return Tokenizer.from_str(their_tokenizer_json(digits=pre == ONE_DIGIT))
    made.add_special_tokens({"additional_special_tokens": SPECIALS})
    return made._tokenizer


@pytest.mark.parametrize("pre", ["gpt-2", "qwen2", ONE_DIGIT])
@pytest.mark.parametrize("name", TEXTS)
def test_a_tokenizer_of_gguf_is_that_of_the_model_s_makers(name, pre, tmp_path):
    tokenizer = built(tmp_path, pre)
    ids = tokenizer.encode(TEXTS[name]).tolist()
    if pre == ONE_DIGIT:  # with the digits apart, other pairs are merged
        words = reference(pre).pre_tokenizer.pre_tokenize_str(TEXTS[name])
        assert tokenizer.tokenizer.pre_tokenizer.pre_tokenize_str(TEXTS[name]) == words
    else:
        assert ids == reference(pre).encode(TEXTS[name]).ids
    if pre != "qwen2":  # which joins letters and accents
        assert tokenizer.decode(ids, special=True) == TEXTS[name]


# What transformers' own reader of GGUF cuts words by, under the same names.
SPLITS = ("llama-bpe", "falcon3", "smaug-bpe", "qwen2", "deepseek-r1-qwen", "qwen35")
SPLITS += ("tekken", "gpt-4o")


@pytest.mark.parametrize("pre", SPLITS)
def test_words_are_cut_as_transformers_cuts_them(pre, tmp_path):
    theirs = pytest.importorskip("transformers.integrations.gguf.gguf_tokenizer_mapping")
    split = pre_tokenizers.Split(Regex(theirs.GGUF_PRE_TOKENIZER_SPLITS[pre]), "isolated")
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    cut = pre_tokenizers.Sequence([split, bytes_])
    ours = built(tmp_path, pre).tokenizer.pre_tokenizer
    for text in (*TEXTS.values(), "camelCase HTTPServer's ÉCOLE École/\n/", "न\u093f x\u0301y"):
        assert ours.pre_tokenize_str(text) == cut.pre_tokenize_str(text)


# By the four expressions of llama.cpp's default, one after the other.
DEFAULT = {
    "It's $12345 (ok)!  x": [
        "It",
        "'",
        "s",
        " ",
        "$",
        "123",
        "45",
        " ",
        "(",
        "ok",
        ")!",
        " ",
        " x",
    ],
    "a\n\nb 1234": ["a", "\n", "\n", "b", " ", "123", "4"],
}


@pytest.mark.parametrize("named", [{"tokenizer.ggml.pre": "default"}, {}], ids=["default", "none"])
def test_a_file_that_names_no_cut_has_llama_cpp_s_and_a_note(named, tmp_path):
    metadata = read_gguf(write_gguf(tmp_path / "x.gguf", "llama")).metadata
    del metadata["tokenizer.ggml.pre"]
    with pytest.warns(UserWarning, match=r"tokenizer\.ggml\.pre.*--tokenizer"):
        tokenizer = tokenizer_of_gguf(metadata | named, "x.gguf")
    for text, words in DEFAULT.items():
        pieces = tokenizer.tokenizer.pre_tokenizer.pre_tokenize_str(text)
        assert [text[start:end] for _, (start, end) in pieces] == words


@pytest.mark.release
@pytest.mark.parametrize("pre", CUTS)
def test_tokens_are_those_of_llama_cpp(pre, tmp_path):
    xllamacpp = pytest.importorskip("xllamacpp")
    # 1. A model that it loads: one token for each row.
    vocabulary = json.loads(their_tokenizer_json())["model"]["vocab"]
    tokens = [*sorted(vocabulary, key=vocabulary.get), *(f"[pad{i}]" for i in range(V))][:V]
    kinds = [3, 3, 1] + [1] * (V_TOKENIZER - 3) + [5] * (V - V_TOKENIZER)
    metadata = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds}
    path = write_gguf(tmp_path / "x.gguf", "llama", pre=pre, metadata=metadata)
    # 2. Its server, which cuts texts on request.
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx = 64
    params.n_gpu_layers = 0
    params.verbosity = -1
    params.warmup = False
    server = xllamacpp.Server(params)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def theirs(text: str) -> list[int]:
        body = json.dumps({"content": text, "add_special": False, "parse_special": True})
        request = urllib.request.Request(f"{server.listening_address}/tokenize", body.encode())
        with opener.open(request, timeout=60) as answer:
            return json.load(answer)["tokens"]

    # 3. It joins no letters with their accents, which Qwen's own tokenizer.json does.
    ours = tokenizer_of_gguf(read_gguf(path).metadata, "x.gguf").tokenizer
    texts = [*TEXTS.values(), *DEFAULT, "camelCase HTTPServer's École/\n/", "hi<|im_end|>\n"]
    for text in texts:
        if not CUTS[pre].nfc or unicodedata.is_normalized("NFC", text):
            assert ours.encode(text, add_special_tokens=False).ids == theirs(text), text


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
    same = {"llama3": "llama-bpe", "llama-v3": "llama-bpe", "refact": "smollm"}
    assert set(CUTS) == {"default", "gpt-2", "qwen2", ONE_DIGIT, *SPLITS, *same}
    for name, other in same.items():
        assert CUTS[name] == CUTS[other]


def test_user_defined_tokens_are_whole_and_have_text(tmp_path):
    kinds = [1, 4, 3] + [1] * (V_TOKENIZER - 3)
    tokenizer = built(tmp_path, "gpt-2", token_type=kinds)
    assert tokenizer.encode("a<|im_start|>b").tolist()[1] == 1
    assert tokenizer.decode([1]) == "<|im_start|>"
    assert len(tokenizer.encode("<|endoftext|>")) > 1


@pytest.mark.parametrize("kind", [1, 3, 4], ids=["normal", "control", "user-defined"])
def test_the_token_that_ends_a_turn_is_found_by_its_text(kind, tmp_path):
    """As in llama.cpp: the fields of many files name only the token that ends a text."""
    kinds = [3, 3, kind] + [1] * (V_TOKENIZER - 3)
    with pytest.warns(UserWarning, match=r"ends at <\|im_end\|> \(2\), too") as notes:
        tokenizer = built(tmp_path, "gpt-2", token_type=kinds, eos_token_id=0)
    assert len(notes) == 1
    assert tokenizer.stop == (0, 2)
    assert tokenizer.encode("a<|im_end|>").tolist()[1:] == [2]
    assert tokenizer.decode([2]) == ""


@pytest.mark.parametrize("end", ["<|eot_id|>", "<|end|>", "<end_of_turn>"])
def test_turns_end_at_other_texts(end, tmp_path):
    tokens = [*SPECIALS[:2], end]
    metadata = read_gguf(write_gguf(tmp_path / "x.gguf", "llama")).metadata
    metadata["tokenizer.ggml.tokens"][:3] = tokens
    metadata["tokenizer.ggml.eos_token_id"] = 0
    with pytest.warns(UserWarning, match=r"\(2\), too"):
        assert tokenizer_of_gguf(metadata, "x.gguf").stop == (0, 2)


# ------------------------------------------------------------------ packages that are absent


@pytest.mark.parametrize("package", ["tokenizers", "gguf.constants", "jinja2"])
def test_a_package_that_is_absent_is_named_with_its_extra(package, tmp_path, monkeypatch, ours):
    path = write_gguf(tmp_path / "x.gguf", "llama")
    assert gguf.GGUFReader(path)
    monkeypatch.setitem(sys.modules, package, None)
    # Other tests have imported the module that imports jinja2.
    monkeypatch.delitem(sys.modules, "nanogpt.pretrained.chat_template", raising=False)

    def use() -> None:
        _, tokenizer = load_pretrained(path)
        tokenizer.chat([{"role": "user", "content": "the"}])

    with pytest.raises(ModuleNotFoundError, match=r"nanogpt-notebooks\[pretrained\]") as caught:
        use()
    assert caught.value.name == package
