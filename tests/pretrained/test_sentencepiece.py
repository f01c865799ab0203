"""Tokenizers of SentencePiece from GGUF: tokens and texts are those of SentencePiece itself."""

from __future__ import annotations

import io
import random

import pytest
import torch
import transformers
from pretrained_fixtures import (
    N_BYTES,
    TEXT,
    TEXTS,
    V,
    spm_metadata,
    their_pieces,
    write_gguf,
)
from transformers.tokenization_utils_base import generate_merges

from nanogpt import load_pretrained
from nanogpt.pretrained.folder_tokenizer import tokenizer_of_folder
from nanogpt.pretrained.gguf_tokenizer import tokenizer_of_gguf
from nanogpt.pretrained.needs import PretrainedError
from nanogpt.pretrained.tokenizer import PretrainedTokenizer

BOS, EOS = 1, 2
FIRST_BYTE = 3


def built(rows=None, **changes) -> PretrainedTokenizer:
    metadata = spm_metadata(rows, **changes)
    kept = {name: value for name, value in metadata.items() if value is not ...}
    return tokenizer_of_gguf(kept, "x.gguf")


@pytest.fixture(scope="module")
def ours() -> PretrainedTokenizer:
    return built()


# ------------------------------------------------------------------ the same tokens


def merged(text: str, rows) -> list[int]:
    """SentencePiece by its definition: of all neighbours that are a piece, merge the best first.

    Of equal scores the leftmost; letters without a token become the tokens of their bytes.
    """
    numbers = {piece: i for i, (piece, _, _) in enumerate(rows)}
    scores = {piece: score for piece, score, kind in rows if kind == 1}
    parts = list(("▁" + text).replace(" ", "▁"))
    while True:
        pairs = [(scores.get(a + b), -i) for i, (a, b) in enumerate(zip(parts, parts[1:]))]  # noqa: B905
        pairs = [pair for pair in pairs if pair[0] is not None]
        if not pairs:
            break
        i = -max(pairs)[1]
        parts[i : i + 2] = ["".join(parts[i : i + 2])]
    tokens = []
    for part in parts:
        in_bytes = [FIRST_BYTE + byte for byte in part.encode()]
        tokens += [numbers[part]] if part in scores else in_bytes
    return tokens


@pytest.mark.parametrize("name", TEXTS)
def test_tokens_are_those_of_the_definition(name, ours):
    ids = ours.encode(TEXTS[name])
    assert ids.tolist() == [BOS, *merged(TEXTS[name], their_pieces())]
    assert ours.decode(ids) == TEXTS[name]
    assert ids.dtype is torch.int64


def test_random_texts_are_cut_as_the_definition_does(ours):
    dice = random.Random(1)
    alphabet = "    thequickbrownfoxé中🙂\n▁<>0x"
    for _ in range(500):
        text = "".join(dice.choices(alphabet, k=dice.randint(1, 40)))
        ids = ours.encode(text)
        assert ids.tolist() == [BOS, *merged(text, their_pieces())], text
        assert ours.decode(ids) == text.replace("▁", " ")


@pytest.mark.parametrize("lengths", [(2, 4, 8, 5, 6, 3, 7), (2, 3), (2, 4), (3, 2, 4, 6)])
def test_runs_of_spaces_with_one_score_grow_from_their_left(lengths):
    """As in Llama 2, whose runs all have the lowest score."""
    rows = [*their_pieces(), *(("▁" * n, -1e9, 1) for n in lengths)]
    tokenizer = built(rows)
    for n in range(1, 30):
        text = " " * n + "the" + " " * n
        assert tokenizer.encode(text).tolist() == [BOS, *merged(text, rows)]


@pytest.mark.parametrize("name", TEXTS)
def test_tokens_are_those_of_transformers(name, ours):
    """Its LlamaTokenizer adds no space before a text that begins with one, so none here does."""
    rows = their_pieces()
    vocabulary = {text: i for i, (text, _, _) in enumerate(rows)}
    scores = {text: score for text, score, kind in rows if kind == 1}
    merges = generate_merges(vocabulary, scores)
    theirs = transformers.LlamaTokenizer(vocab=vocabulary, merges=merges)
    text = TEXTS[name].lstrip(" ")
    ids = ours.encode(text).tolist()[1:]
    assert ids == theirs(text, add_special_tokens=False).input_ids
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert ours.decode(ids, special=True) == theirs.decode(ids)


@pytest.mark.parametrize("kind", [{"byte_fallback": True}, {"character_coverage": 1.0}])
def test_tokens_are_those_of_sentencepiece(kind):
    sentencepiece = pytest.importorskip("sentencepiece")
    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*TEXT.splitlines(), *TEXTS.values()]),
        model_writer=file,
        model_type="bpe",
        vocab_size=450,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        user_defined_symbols=["<|im_start|>"],
        minloglevel=2,
        **kind,
    )
    theirs = sentencepiece.SentencePieceProcessor(model_proto=file.getvalue())
    kinds = {theirs.is_unknown: 2, theirs.is_control: 3, theirs.is_byte: 6}
    rows = []
    for i in range(theirs.get_piece_size()):
        number = next((number for is_kind, number in kinds.items() if is_kind(i)), 1)
        text = theirs.id_to_piece(i)
        number = 4 if text == "<|im_start|>" else number
        rows.append((text, theirs.get_score(i), number))
    ours = built(rows)
    dice = random.Random(2)
    texts = [text for name, text in TEXTS.items() if name != "control tokens"]
    letters = "".join(texts)
    texts += ["".join(dice.choices(letters, k=dice.randint(1, 60))) for _ in range(500)]
    for text in texts:
        ids = ours.encode(text).tolist()
        assert ids == [BOS, *theirs.encode(text)], text
        if 0 not in ids:  # an unknown letter, which sentencepiece writes as a sign
            assert ours.decode(ids) == theirs.decode(ids)


# ------------------------------------------------------------------ fixed expectations

# 259: ▁t, then he, ▁the, ▁▁, the letters ▁ t h e a 中, a token of two words, and one of no letters.
SMALL = [*their_pieces()[: 3 + N_BYTES], ("▁t", -1.0, 1), ("he", -2.0, 1), ("▁the", -3.0, 1)]
SMALL += [("▁▁", -1e9, 1), ("▁", -4.0, 1), ("t", -5.0, 1), ("h", -6.0, 1), ("e", -7.0, 1)]
SMALL += [("a", -8.0, 1), ("中", -9.0, 1), ("<go on>", -1000.0, 4), ("[PAD270]", -1000.0, 5)]
T, HE, THE, TWO, SPACE, t, h, e, a, CHINESE, GO_ON = range(259, 270)
LF = FIRST_BYTE + 10


def in_bytes(text: str) -> list[int]:
    return [FIRST_BYTE + byte for byte in text.encode()]


CASES = {
    "a word": ("the", [THE]),
    "two words": ("the the", [THE, THE]),
    "a leading space": (" the", [SPACE, THE]),
    "only a space": (" ", [TWO]),
    "a line": ("the\nthe", [THE, LF, t, HE]),
    "a letter without a token": ("é", [SPACE, *in_bytes("é")]),
    "Chinese": ("中国", [SPACE, CHINESE, *in_bytes("国")]),
    "a byte by its name": ("<0x0A>", [SPACE, *in_bytes("<0x0A>")]),
    "control tokens": ("<s>the</s>", [BOS, THE, EOS]),
    "the unknown token": ("<unk>", [0]),
    "a token of two words": ("a<go on>a", [SPACE, a, GO_ON, SPACE, a]),
}


@pytest.mark.parametrize("name", CASES)
def test_fixed_texts_have_fixed_tokens(name):
    text, tokens = CASES[name]
    tokenizer = built(SMALL)
    assert tokenizer.encode(text).tolist() == [BOS, *tokens]
    assert built(SMALL, add_bos_token=False).encode(text).tolist() == tokens
    assert built(SMALL, add_eos_token=True).encode(text).tolist() == [BOS, *tokens, EOS]
    if "token" not in name or "letter" in name:
        assert tokenizer.decode([BOS, *tokens]) == text.replace("▁", " ")


WITHOUT_SPACE = {"the": [t, HE], " the": [THE], "  ": [TWO], "a\nthe": [a, LF, t, HE]}


@pytest.mark.parametrize("text", WITHOUT_SPACE)
def test_a_file_may_add_no_space(text):
    tokenizer = built(SMALL, add_space_prefix=False)
    assert tokenizer.encode(text).tolist() == [BOS, *WITHOUT_SPACE[text]]
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert "".join(tokenizer.stream(tokenizer.encode(text))) == text


def test_an_empty_text_is_refused(ours):
    with pytest.raises(ValueError, match="the prompt is empty"):
        ours.encode("")


def test_letters_are_one_unknown_token_where_there_are_no_bytes():
    rows = [row for row in SMALL if row[2] != 6]
    tokenizer = built(rows)
    assert tokenizer.encode("the🙂🙂the").tolist() == [1, 5, 0, 8, 4]
    assert tokenizer.decode([5, 0, 8, 4]) == "thethe"


def test_fields_that_a_file_leaves_out_have_the_defaults_of_sentencepiece():
    tokenizer = built(SMALL, bos_token_id=..., eos_token_id=..., unknown_token_id=..., pre=...)
    assert tokenizer.encode("the").tolist() == [BOS, THE]
    assert tokenizer.stop == (EOS,)
    assert tokenizer.specials == {"bos_token": "<s>", "eos_token": "</s>"}


# ------------------------------------------------------------------ streams


STREAMS = {
    "a leading emoji": ([SPACE, *in_bytes("🙂")], ["🙂"]),
    "spaces": ([SPACE, TWO, SPACE, THE], ["  ", " ", " the"]),
    "a half": ([THE, *in_bytes("中")[:2]], ["the", "\ufffd\ufffd"]),
    "a half and a word": ([*in_bytes("🙂")[:2], THE], ["\ufffd\ufffd the"]),
}


@pytest.mark.parametrize("name", STREAMS)
def test_bytes_wait_for_the_rest_of_their_character(name):
    tokens, pieces = STREAMS[name]
    tokenizer = built(SMALL)
    assert list(tokenizer.stream(tokens)) == pieces
    assert tokenizer.decode(tokens) == "".join(pieces)


def test_bytes_that_are_no_character_leave_the_ones_before_them(ours):
    """The library's decoder gives up the whole run; SentencePiece keeps what is whole."""
    broken = [*in_bytes("中"), FIRST_BYTE + 0xFF]
    assert ours.decode(broken) == "中\ufffd"
    assert ours.decode(broken, special=True) == "中\ufffd"


# ------------------------------------------------------------------ a whole file


def test_a_file_has_a_model_and_its_tokenizer(tmp_path):
    metadata = {**spm_metadata(), "tokenizer.chat_template": "{{ bos_token }}{{ messages }}"}
    path = write_gguf(tmp_path / "x.gguf", "llama", metadata=metadata)
    model, tokenizer = load_pretrained(path)
    assert len(tokenizer) == model.config.vocab_size == V
    assert tokenizer.encode("the fox").tolist() == [BOS, *merged("the fox", their_pieces())]
    assert tokenizer.chat([{"role": "user", "content": "the"}])[0] == BOS


SCORES = [score for _, score, _ in their_pieces()]
KINDS = [kind for _, _, kind in their_pieces()]
TOKENS = [text for text, _, _ in their_pieces()]
REFUSED = [
    ({"model": "t5"}, "tokenizer.ggml.model='t5', and only gpt2, llama can be read"),
    ({"scores": ...}, "tokenizer.ggml.scores is missing or not a list of 320 numbers"),
    ({"scores": [*SCORES[:-1], float("nan")]}, "tokenizer.ggml.scores is missing or not"),
    ({"token_type": ...}, "tokenizer.ggml.token_type is missing or not a list of 320"),
    ({"tokens": [*TOKENS[:-1], TOKENS[-2]]}, "tokenizer.ggml.tokens has 1 duplicates"),
    ({"tokens": [*TOKENS[:-1], "x" * 10**6]}, "a piece of 1,000,000 letters, and the limit is 256"),
    ({"scores": [0.0] * V}, "has the same score for several pieces, and there are no"),
    ({"precompiled_charsmap": [1, 2]}, r"precompiled_charsmap=\[1, 2\] changes the text"),
    ({"remove_extra_whitespaces": True}, "remove_extra_whitespaces=True changes the text"),
    ({"add_space_prefix": 1}, "add_space_prefix=1: must be true or false"),
    ({"bos_token_id": 5000}, "bos_token_id=5000, which is not a token"),
]


@pytest.mark.parametrize(("changes", "words"), REFUSED)
def test_a_vocabulary_that_is_not_computed_is_refused_by_name(changes, words):
    with pytest.raises(PretrainedError, match=words) as caught:
        built(**changes)
    assert "\n" not in str(caught.value)


def test_merges_decide_where_the_scores_do_not(ours):
    """Files that were made from a tokenizer.json have one score for all."""
    pieces = sorted(SCORES[259:], reverse=True)
    assert len(set(pieces)) == len(pieces)
    vocabulary = {text: i for i, text in enumerate(TOKENS)}
    scores = {text: score for text, score, kind in their_pieces() if kind == 1}
    merges = [" ".join(pair) for pair in generate_merges(vocabulary, scores)]
    tokenizer = built(scores=[-1000.0] * V, merges=merges)
    assert tokenizer.encode(TEXT).tolist() == ours.encode(TEXT).tolist()


def test_a_folder_with_only_a_tokenizer_model_is_refused_with_what_to_do(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(b"\n\x0e\n\x05<unk>")
    with pytest.raises(
        PretrainedError, match=r"tokenizer\.model of SentencePiece.*save_pretrained"
    ):
        tokenizer_of_folder(tmp_path)
