"""Any text: every notebook runs on every alphabet, and what depends on a text comes from it.

TEXTS in text_fixtures.py is the table of texts, and every row meets every test of this module.
test_series.py runs all notebooks on the text that has most oddities at once. Here every notebook
runs on every text: those of CHOSEN in every run of the tests, the others in a release run.
"""

import json
import tracemalloc
from math import inf

import pytest
import torch
from notebook_fixtures import NOTEBOOKS, tiny_series
from notebook_shell import no_kernels
from shared_fixtures import tiny_model
from text_fixtures import HAN, TEXTS, chinese

from nanogpt import course
from nanogpt.bench.arrivals import poisson
from nanogpt.bench.loaded_server import LoadedServer
from nanogpt.cli import main
from nanogpt.data import (
    SHOWN,
    CharTokenizer,
    Corpus,
    CorpusError,
    fewest_characters,
    load_corpus,
    split,
)
from nanogpt.series.plan import LONGEST
from nanogpt.series.words import Words
from nanogpt.serving.http import listening
from nanogpt.serving.modules import ModuleBackend
from nanogpt.serving.parser import RequestParser
from nanogpt.serving.requests import Refused
from nanogpt.serving.server import Server
from nanogpt.verify.server import N_LETTERS, Declined, letters_of

NUMBERS = [path.stem[:2] for path in NOTEBOOKS]
# Where the text matters most: few and many characters, a first one beyond the 65 usual ones, no
# spaces, a validation text of others.
CHOSEN = [
    ("two_characters", "01"),
    ("two_characters", "09"),
    ("chinese", "07"),
    ("another_ending", "06"),
]
PAIRS = [(text, number) for text in TEXTS for number in NUMBERS]
TABLE = [pytest.param(*pair, marks=[] if pair in CHOSEN else pytest.mark.release) for pair in PAIRS]
LESS = {"00": ["-p", "n_new=12"], "01": ["-p", "steps=4"], "08": ["-p", "n_long=40"]}
every_text = pytest.mark.parametrize("name", TEXTS)


# ------------------------------------------------------------------ texts × notebooks


@pytest.fixture(scope="module")
def tiny():
    """Tiny models in this process, and no checks, which see no text of the reader's."""
    with pytest.MonkeyPatch.context() as patch:
        tiny_series(patch)
        no_kernels(patch)
        patch.setattr(course, "check", lambda answer: answer)
        yield


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder for each text; its notebooks share the model that the first of them trains."""
    return {name: tmp_path_factory.mktemp(name) for name in TEXTS}


@pytest.mark.parametrize(("name", "number"), TABLE)
def test_every_notebook_runs_on_every_text(name, number, tiny, folders, monkeypatch):
    path = folders[name] / f"{name}.txt"
    path.write_bytes(TEXTS[name]().encode())
    monkeypatch.setenv("NANOGPT_DATA", str(path))
    monkeypatch.delenv("NANOGPT_CHECKPOINT", raising=False)
    out = folders[name] / "out"
    command = ["run", number, "--profile", "smoke", *LESS.get(number, [])]
    assert main([*command, "--out", str(out), "--no-html"]) == 0, failures(out)


def failures(out) -> list[str]:
    entries = json.loads((out / "manifest.json").read_text(encoding="utf-8"))["notebooks"]
    return [f"{entry['notebook']}: {entry['error']}" for entry in entries if entry["error"]]


# ------------------------------------------------------------------ texts as a corpus


@every_text
def test_every_text_is_read_and_written_back(name, tmp_path):
    text = TEXTS[name]()
    path = tmp_path / "text.txt"
    path.write_bytes(text.encode())
    corpus = load_corpus(path)
    assert corpus.text == text
    tokenizer = CharTokenizer(corpus.text)
    tokens = tokenizer.encode(text)
    assert tokens.dtype == torch.int64
    assert tokenizer.decode(tokens) == text
    assert text not in repr(corpus)
    split(tokens, 256)


@every_text
def test_words_are_counted_in_every_text(name):
    text = TEXTS[name]()
    words = Words(text)
    real, count = words.found(text[:500], whole=False)
    assert real == count > 0
    assert words.found("\U000f0000" * 5)[0] == 0


def test_a_text_without_spaces_is_counted_by_pairs_of_characters():
    assert Words("to be or not to be\n" * 9).name == "words"
    assert Words(chinese()).name == "pairs of characters"


def test_the_tokens_of_a_long_text_take_eight_bytes_each():
    text = 20 * chinese()
    tokenizer = CharTokenizer(text)
    tracemalloc.start()
    tokens = tokenizer.encode(text)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(tokens) == len(text)
    assert peak < 20 * len(text)  # with what an array has in reserve as it grows


def test_a_text_that_is_too_short_is_refused_in_one_line(tmp_path, monkeypatch, capsys):
    fewest = fewest_characters(LONGEST)
    path = tmp_path / "little.txt"
    monkeypatch.setenv("NANOGPT_DATA", str(path))
    command = ["run", "--profile", "smoke", "--plan"]
    path.write_text("ab" * (fewest // 2 - 1), encoding="utf-8")
    assert main(command) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"little.txt has {fewest - 2:,} characters" in line
    assert f"at least {fewest:,}" in line
    path.write_text("ab" * (fewest // 2), encoding="utf-8")
    assert main(command) == 0
    split(CharTokenizer("ab").encode(load_corpus().text), LONGEST)
    with pytest.raises(CorpusError, match=f"{fewest:,}"):
        split(CharTokenizer("ab").encode("ab" * (fewest // 2 - 20)), LONGEST)


# ------------------------------------------------------------------ messages


NOVEL = CharTokenizer(HAN)
MESSAGES = {
    "a character that the model does not know": lambda: NOVEL.encode("a"),
    "thousands that it does not know": lambda: CharTokenizer("ab").encode(HAN),
    "a prompt of a request": lambda: RequestParser(NOVEL, "novel", 64).read(b'{"prompt": "a"}'),
    "a token beyond the vocabulary": lambda: NOVEL.decode([10**6]),
}


@pytest.mark.parametrize("kind", MESSAGES)
def test_a_message_shows_ten_characters_at_most(kind):
    with pytest.raises((ValueError, Refused)) as caught:
        MESSAGES[kind]()
    message = str(caught.value)
    assert len(set(message) & set(HAN)) <= SHOWN
    assert len(message) < 250


def test_few_characters_are_all_shown():
    with pytest.raises(ValueError, match="'x', 'y' not in .* the 3 characters 'abc'"):
        CharTokenizer("abc").encode("axby")


def test_a_corpus_is_shown_without_its_text():
    assert repr(Corpus(HAN, "novel", "0" * 64)).startswith("Corpus(name='novel'")


# ------------------------------------------------------------------ a served text


class Served:
    """A server of a character-level model: it reads its own characters only, and writes them."""

    longest = 64

    def __init__(self, text: str, ids: bool):
        self.tokenizer = CharTokenizer(text)
        self.ids = ids  # whether it reads prompts of token numbers

    def ask(self, requests):
        answers = []
        for request in requests:
            prompt = request["prompt"]
            readable = (
                self.ids if isinstance(prompt, list) else {*prompt} <= {*self.tokenizer.chars}
            )
            if not readable or len(prompt) + request["max_tokens"] > self.longest + 1:
                raise Declined("HTTP 400")
            chars = self.tokenizer.chars
            start = request.get("seed", 0) * 7
            text = "".join(chars[(start + i) % len(chars)] for i in range(request["max_tokens"]))
            answers.append({"text": text, "logprobs": None})
        return answers


@every_text
def test_the_referee_of_a_server_sends_letters_of_its_text(name):
    server = Served(TEXTS[name](), ids=True)
    letters = letters_of(server)
    assert {*letters} <= {*server.tokenizer.chars}
    assert len(letters) == min(N_LETTERS, len(server.tokenizer))
    server.ask([{"prompt": letters, "max_tokens": 1}])


def test_a_server_of_neither_latin_letters_nor_token_numbers_has_declined():
    with pytest.raises(Declined):
        letters_of(Served("абв", ids=False))


def test_a_server_of_another_alphabet_is_judged_and_measured():
    chars = "αβγδεζηθικλμ\n"
    model = tiny_model(False, vocab_size=13)
    with listening(Server(model, CharTokenizer(chars), backend=ModuleBackend)) as url:
        assert main(["verify", "server", url]) == 0
        server = LoadedServer(url)
        assert {*server.chars} <= {*chars}
        assert server.extras == {"logprobs": 1}
        requests = poisson(3, inf, 65, 16, greedy=True)
        assert server(requests).keys() == {request.id for request in requests}
        assert not server.errors
