"""Anything at all: the right result, or our own error that names what was wrong."""

from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from fuzz_fixtures import attempt, examples
from hypothesis import assume, example, given

from nanogpt.data.corpus import CorpusError, load_corpus
from nanogpt.data.tokenizer import CharTokenizer
from nanogpt.system.files import sha256


@given(vocabulary=st.text(min_size=1), text=st.text())
@examples(200)
def test_a_text_is_encoded_and_comes_back_or_each_unknown_character_is_named(vocabulary, text):
    tokenizer = CharTokenizer(vocabulary)
    unknown = set(text) - set(vocabulary)
    if text and not unknown:
        assert tokenizer.decode(tokenizer.encode(text)) == text
        return
    with pytest.raises(
        ValueError, match="not in the vocabulary" if text else "the prompt is empty"
    ) as error:
        tokenizer.encode(text)
    assert all(repr(char) in str(error.value) for char in unknown)


@given(
    vocabulary=st.text(min_size=1, max_size=300),
    numbers=st.lists(st.integers(0, 3) | st.integers(-(2**63), 2**63 - 1), max_size=6),
    dtype=st.sampled_from([torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]),
)
@examples(200)
def test_any_numbers_are_a_text_or_the_first_that_is_no_token_is_named(vocabulary, numbers, dtype):
    tokenizer, chars = CharTokenizer(vocabulary), sorted(set(vocabulary))
    given_numbers = torch.tensor(numbers, dtype=torch.int64).to(dtype)
    numbers = given_numbers.tolist()
    wrong = [n for n in numbers if not 0 <= n < len(chars)]
    if not wrong:
        assert tokenizer.decode(given_numbers) == "".join(chars[n] for n in numbers)
        return
    with pytest.raises(ValueError, match=rf"token {wrong[0]} must be in \[0, {len(chars) - 1}\]"):
        tokenizer.decode(given_numbers)


def test_tokens_that_are_no_integers_are_refused():
    with pytest.raises(ValueError, match="integers"):
        CharTokenizer("abc").decode(torch.tensor([1.0]))


pieces = st.one_of(
    st.binary(max_size=12),
    st.text(max_size=12).map(str.encode),
    st.sampled_from(
        [
            b"\xef\xbb\xbf",
            b"\r\n",
            b"\r",
            b"\n",
            b"\0",
            b"\xc3",
            b"\xf0\x9f\x99\x82",
            b"aaaa",
            b"\xed\xa0\x80",
            b"First Citizen:\nBefore we proceed any further",
        ]
    ),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


@given(content=st.lists(pieces, max_size=5).map(b"".join))
@examples(300)
def test_any_bytes_are_the_corpus_that_they_spell_or_an_error_that_names_the_file(folder, content):
    path = folder / "any.txt"
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NANOGPT_DATA", str(path))
        corpus, said = attempt(load_corpus, CorpusError)
    assert said is None or str(path) in said
    assert path.read_bytes() == content, "it is the reader's file"
    try:
        text = content.removeprefix(b"\xef\xbb\xbf").decode().replace("\r\n", "\n")
    except UnicodeDecodeError:
        assert corpus is None
        return
    unfit = (
        len(set(text)) < 2
        or "\0" in text
        or text.startswith("First Citizen:\nBefore we proceed any")
    )
    assert (corpus is None) == unfit
    if corpus:
        assert (corpus.text, corpus.sha256, corpus.name) == (text, sha256(content), "any.txt")
        assert corpus.real
        assert CharTokenizer(corpus.text).encode(text).shape == (len(text),)
        str(corpus)


@given(
    named=st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=40)
)
@examples(100)
@example(named="~")
@example(named="/")
@example(named="./nowhere/../.")
def test_any_name_that_is_no_file_is_refused_by_name(named):
    path = Path(named)
    assume(named[0] != "~" or named == "~")  # a user that is not there: see below
    assume(not path.is_file())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NANOGPT_DATA", named)
        _, said = attempt(load_corpus, CorpusError)
    assert f"NANOGPT_DATA names {path.expanduser()}" in said


@pytest.mark.parametrize(
    "named",
    [
        "~nobody-of-this-name/x.txt",
        "x" * 5000,
    ],
    ids=["a home of nobody", "a name too long"],
)
def test_a_name_that_no_file_can_have_is_refused_too(named, monkeypatch):
    monkeypatch.setenv("NANOGPT_DATA", named)
    with pytest.raises(CorpusError, match="NANOGPT_DATA names"):
        load_corpus()
