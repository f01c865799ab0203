"""The load of a pretrained model: prompts of its tokens, the texts of a server, bounded memory."""

from __future__ import annotations

import json
import random
from math import inf
from pathlib import Path

import pytest
import torch
from platformdirs import user_cache_dir
from pretend_cuda import PretendCuda
from pretrained_fixtures import SPECIALS, V_TOKENIZER, kept_folders, write_gguf  # noqa: F401

from nanogpt import load_pretrained
from nanogpt.bench import under_load
from nanogpt.bench.arrivals import first_tokens, pieces_of_text, poisson
from nanogpt.bench.loaded_server import LoadedTokenServer
from nanogpt.bench.schemes import SCHEMES, blocks_for
from nanogpt.cli import main
from nanogpt.cli.pretrained import short_name
from nanogpt.pretrained.fetch import fetch_smollm2
from nanogpt.pretrained.needs import PretrainedError
from nanogpt.serving import memory
from nanogpt.serving.http import listening
from nanogpt.serving.native_steps import choose_backend
from nanogpt.serving.server import Server

TEXTS = {
    "lines": "the quick brown fox\njumps over\n\nthe lazy dog, and so on\n" * 40,
    "one word": "lighthouse",
    "no spaces": "我喜欢机器学习。東京は大きい。" * 40,
    "one character": "é",
    "a space at the end": "the end ",
}
QUICK = "--requests 3 --repeats 1 --text-tokens 32"


@pytest.fixture(autouse=True)
def limits(monkeypatch):
    """Limits of the machine that take no time to measure, and no compiler."""
    for name in ("read_bandwidth", "peak_arithmetic"):
        monkeypatch.setattr(under_load, name, lambda *_, **__: {"high": 1e9})
    monkeypatch.setattr(under_load, "choose_backend", lambda model: ("modules", ""))


@pytest.fixture
def llama(kept_folders):  # noqa: F811
    return load_pretrained(kept_folders("llama"))


def run(source, words, path, *more):
    """The exit code, and what was written."""
    options = [*words.split(), *more, "--json", str(path)]
    code = main(["bench", "load", "--model", str(source), *options])
    return code, json.loads(path.read_text(encoding="utf-8"))


# ------------------------------------------------------------------ prompts


@pytest.mark.parametrize("n", [1, 2, 17, 200])
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_prompt_has_n_tokens_of_the_text(text, n, llama):
    tokenizer = llama[1]
    controls = {tokenizer.tokenizer.token_to_id(name) for name in SPECIALS}
    draw = random.Random(3)
    for _ in range(8):
        tokens = pieces_of_text(tokenizer, text)(draw, n)
        assert len(tokens) == n
        assert not controls & set(tokens)
        assert max(tokens) < V_TOKENIZER
        written = set(tokenizer.decode(tokens)) - {"\ufffd"}  # half a character at the end
        assert written <= set(text)


def test_a_prompt_begins_as_the_tokenizer_begins_a_text(llama, monkeypatch):
    tokenizer = llama[1]
    encode = tokenizer.encode
    monkeypatch.setattr(tokenizer, "encode", lambda text: torch.cat((encode("^"), encode(text))))
    prompt = pieces_of_text(tokenizer, TEXTS["lines"])
    for request in poisson(20, inf, V_TOKENIZER, 64, prompt=prompt):
        assert request.prompt[0] == encode("^")[0]


def test_a_short_text_is_repeated(llama):
    tokenizer = llama[1]
    assert tokenizer.decode(first_tokens(tokenizer, "ab", 5)).startswith("abab")


def test_half_of_the_prompts_begin_alike_and_the_others_do_not(llama):
    prompt = pieces_of_text(llama[1], Path(__file__).read_text(encoding="utf-8"))
    requests = poisson(60, inf, V_TOKENIZER, 64, prompt=prompt)
    beginnings = [tuple(request.prompt[:4].tolist()) for request in requests]
    most = max(set(beginnings), key=beginnings.count)
    assert 20 < beginnings.count(most) < 40
    assert len(set(beginnings)) > 10


# ------------------------------------------------------------------ the command


@pytest.mark.parametrize("name", ["llama", "gguf"])
def test_every_scheme_writes_the_same_texts_and_the_result_names_the_model(
    name,
    kept_folders,  # noqa: F811
    tmp_path,
    capsys,
):
    gguf = name == "gguf"
    source = write_gguf(tmp_path / "x.gguf", "llama") if gguf else kept_folders(name)
    code, written = run(source, f"{QUICK} --rates 500 inf", tmp_path / "load.json")
    assert code == 0
    assert [row["scheme"] for row in written["rows"]] == 2 * list(SCHEMES)
    assert all((row["differ"], row["failed"]) == (0, 0) for row in written["rows"])
    model = load_pretrained(source)[0]
    names = {"model": str(source), "n_params": model.n_params, "dtype": "float32"}
    names |= {"device": "cpu", "block_size": 32, "n": 3, "backend": "modules"}
    assert names.items() <= written.items()
    assert len(written["corpus_sha256"]) == 64
    said = capsys.readouterr().out
    size = f"{source}, {model.n_params:,} parameters, float32 on cpu, modules"
    assert f"3 requests of up to 32 tokens; {size}, at most 32 at once" in said
    assert f"prompts cut from: {written['corpus']}" in said


def test_a_gpu_serves_the_same_texts(kept_folders, tmp_path, capsys):  # noqa: F811
    with PretendCuda():
        words = f"{QUICK} --rates inf --device cuda"
        code, written = run(kept_folders("llama"), words, tmp_path / "load.json")
    assert (code, written["device"]) == (0, "cuda")
    assert "float32 on cuda, modules" in capsys.readouterr().out


def test_prompts_are_cut_from_the_text_of_data(kept_folders, tmp_path):  # noqa: F811
    data = tmp_path / "mine.txt"
    data.write_text("A green door, a red door and a blue one.\n" * 99, encoding="utf-8")
    words = f"{QUICK} --rates inf --data"
    code, written = run(kept_folders("llama"), words, tmp_path / "load.json", str(data))
    assert (code, written["corpus"]) == (0, "mine.txt")


REFUSED = [
    ("--text-tokens 9", "--text-tokens and --data are for a pretrained model: add --model"),
    ("--data x.txt", "--text-tokens and --data are for a pretrained model: add --model"),
    ("--model MODEL --checkpoint x", "leave out --checkpoint and --size"),
    ("--model MODEL --size small", "leave out --checkpoint and --size"),
    ("--model MODEL --text-tokens 65", "--text-tokens 65: must be an integer in [2, 64]"),
    ("--model MODEL --text-tokens 1", "--text-tokens 1: must be an integer in [2, 64]"),
    ("--model MODEL --data missing.txt", "missing.txt is not a file"),
    ("--model MODEL --rates 0", "--rates 0.0: must be a number"),
    ("--model MODEL --url http://127.0.0.1:1", "no server answers at http://127.0.0.1:1"),
    ("--model nowhere", "'nowhere': no model there"),
    ("--model MODEL --threads 0", "--threads 0: must be an integer"),
]


@pytest.mark.parametrize(("words", "said"), REFUSED)
def test_a_text_that_does_not_fit_is_refused_in_one_line(
    words,
    said,
    kept_folders,  # noqa: F811
    tmp_path,
    capsys,
):
    folder = str(kept_folders("llama"))  # its path may have spaces
    options = [folder if word == "MODEL" else word for word in words.split()]
    path = tmp_path / "load.json"
    assert main(["bench", "load", *options, "--json", str(path)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1
    assert not path.exists()


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("smollm2", "smollm2"),
        ("Qwen/Qwen2.5-0.5B", "Qwen2.5-0.5B"),
        ("models/SmolLM2.Q4_1.gguf", "SmolLM2.Q4_1"),
        ("models/tiny/", "tiny"),
        (".", "model"),
    ],
)
def test_a_model_has_a_short_name(source, name):
    assert short_name(source) == name


# ------------------------------------------------------------------ memory


def give(n_bytes, monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: n_bytes)


@pytest.mark.parametrize(
    ("share", "n_blocks"), [(None, 12), (2.0, 12), (1.0, 6), (0.5, 3)], ids=str
)
def test_blocks_hold_all_texts_or_take_half_of_the_memory(share, n_blocks, llama, monkeypatch):
    model = llama[0]
    give(share and int(share * model.cache_bytes(12 * 16)), monkeypatch)
    assert blocks_for(model, running=4, text_tokens=33) == n_blocks


def test_a_text_that_half_of_the_memory_does_not_hold_is_refused(
    kept_folders,  # noqa: F811
    llama,
    monkeypatch,
    capsys,
):
    give(2 * llama[0].cache_bytes(48), monkeypatch)  # three blocks
    words = ["--model", str(kept_folders("llama")), "--text-tokens", "64"]
    assert main(["bench", "load", *words]) == 2
    said = "--text-tokens 64: half of the available memory holds only 48 tokens"
    assert said in capsys.readouterr().err


def test_texts_that_share_little_memory_are_the_same(
    kept_folders,  # noqa: F811
    llama,
    tmp_path,
    monkeypatch,
):
    path = tmp_path / "load.json"
    words = "--requests 6 --repeats 1 --rates inf --text-tokens 64"
    give(2 * llama[0].cache_bytes(64), monkeypatch)  # of one text
    code, written = run(kept_folders("llama"), words, path)
    assert code == 0
    assert all(row["differ"] == 0 for row in written["rows"])


# ------------------------------------------------------------------ a server


@pytest.mark.parametrize("name", ["llama"])
def test_a_server_writes_the_texts_of_its_model(name, kept_folders, tmp_path, capsys):  # noqa: F811
    source = kept_folders(name)
    with listening(Server(*load_pretrained(source))) as url:
        words = f"{QUICK} --rates 500 inf --url {url}"
        code, written = run(source, words, tmp_path / "load.json")
        other = kept_folders("qwen3")
        wrong, differing = run(other, words, tmp_path / "other.json")
    assert (code, wrong) == (0, 1)
    assert all((row["differ"], row["failed"]) == (0, 0) for row in written["rows"])
    assert any(row["differ"] for row in differing["rows"])
    assert written["reference"]["model"] == str(source)
    assert written["reference"]["n_params"] == load_pretrained(source)[0].n_params
    assert f"in real time; compared with {source}, " in capsys.readouterr().out


def event(text="", reason=None, n=None):
    choices = [] if n else [{"text": text, "finish_reason": reason}]
    return {"choices": choices, "usage": {"completion_tokens": n} if n else None}


# Events, and the text, the number of tokens and the number of moments that they tell.
EVENTS = {
    "two pieces": ([event("the"), event(" cat", "length"), event(n=2)], ("the cat", 2, 2)),
    "fewer pieces than tokens": ([event("the cat", "length"), event(n=3)], ("the cat", 3, 1)),
    "no usage": ([event("the"), event(" cat", "length")], ("the cat", 2, 2)),
    "control tokens alone": ([event("", "length"), event(n=4)], ("", 4, 1)),
    "a control token at the end": (
        [event("the"), event("", "length"), event(n=2)],
        ("the", 2, 1),
    ),
}


@pytest.mark.parametrize(("events", "want"), EVENTS.values(), ids=EVENTS)
def test_a_reply_is_a_text_and_a_count(events, want):
    server = object.__new__(LoadedTokenServer)  # without asking one
    lines = [(float(i), f"data: {json.dumps(one)}\n\n".encode()) for i, one in enumerate(events)]
    reply = server._read(lines)
    assert (reply.text, len(reply.tokens), len(reply.moments)) == want
    assert set(reply.tokens) == {None}


def test_a_prompt_is_sent_in_tokens_and_goes_on_behind_an_end(llama):
    server = object.__new__(LoadedTokenServer)
    (request,) = poisson(1, inf, 10, 32, prompt=lambda draw, n: list(range(n)))
    n = len(request.prompt)
    assert server._prompt(request) == {"prompt": list(range(n)), "ignore_eos": True}


# ------------------------------------------------------------------ a model that writes English


@pytest.mark.release
def test_smollm2_gives_the_same_texts_under_every_scheme(tmp_path, monkeypatch):
    monkeypatch.setattr(under_load, "choose_backend", choose_backend)  # native, if it can be built
    try:
        source = fetch_smollm2(Path(user_cache_dir("nanogpt-notebooks"), "models"))
    except (PretrainedError, OSError) as error:
        pytest.skip(f"no SmolLM2 here: {error}")
    code, written = run(source, f"{QUICK} --rates inf", tmp_path / "load.json")
    assert code == 0
    assert written["n_params"] == 134_515_008
    assert [row["differ"] for row in written["rows"]] == len(SCHEMES) * [0]
