"""The ladder of a pretrained model, with other programs, a stand-in for llama.cpp among them."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from pretrained_fixtures import MODELS, kept_folders, write_gguf  # noqa: F401

from nanogpt import SamplingParams, complete, load_pretrained
from nanogpt.bench import llama_cpp, roofline
from nanogpt.bench.ladder import ladder
from nanogpt.bench.peers import Peer, PeerTask, transformers_peers
from nanogpt.bench.reports import ladder_text
from nanogpt.bench.shapes import RANDOM_SHAPES
from nanogpt.cli import main
from nanogpt.engines.decoder_library import decoder_library

GREEDY = SamplingParams(greedy=True)
N_NEW = 12


@pytest.fixture(autouse=True)
def limits(monkeypatch):
    """Limits of the machine that take no time to measure."""
    measured = {"median": 1e9, "how": "test"}
    monkeypatch.setattr(roofline, "read_bandwidth", lambda *_, **__: measured)
    monkeypatch.setattr(roofline, "peak_arithmetic", lambda **_: measured)


@pytest.fixture
def llama(kept_folders):  # noqa: F811
    return load_pretrained(kept_folders("llama"))


def prompt_of(tokenizer):
    return tokenizer.encode("the quick brown fox")


def test_rungs_and_peers_write_the_same_tokens_and_a_different_one_is_counted(llama):
    model, tokenizer = llama
    prompt = prompt_of(tokenizer)
    right = complete(model, prompt[None], N_NEW, GREEDY)[0, len(prompt) :]

    def wrong_from_5(task):
        task.first()
        return torch.where(torch.arange(task.n_new) < 5, right, right + 1)

    peers = transformers_peers(model)
    peers["wrong"] = Peer(wrong_from_5, "F32", 1000, 2)
    how = {"n_new": N_NEW, "greedy": True, "repeats": 2}
    result = ladder(model, prompt, only="1234", peers=peers, **how)
    absent = [row["rung"] for row in result["rungs"] if "unavailable" in row]
    assert absent == ["2"], "the lecture's heads"
    equal = {row["label"]: row.get("equal_tokens") for row in result["rungs"] if row["rung"] != "2"}
    assert equal == {label: 5 if label == "wrong" else N_NEW for label in equal}
    assert len([label for label in equal if "transformers" in label]) == 2
    said = ladder_text(result)
    assert "the first 5 equal" in said
    assert "2  per-head, torch.cat cache: unavailable: PerHead decodes the lecture's heads" in said
    json.dumps(result, allow_nan=False)


def test_another_programs_weights_and_cache_are_counted_as_it_stores_them(llama, monkeypatch):
    model, _ = llama
    needs = []

    def spy(seconds, need, *limits):
        needs.append(need)
        return roofline.breakdown(seconds, need, *limits)

    monkeypatch.setattr("nanogpt.bench.ladder.breakdown", spy)

    def decode(task):
        task.first()
        return torch.zeros(task.n_new, dtype=torch.int64)

    peers = {"16-bit": Peer(decode, "Q8_0", 1000, kv_itemsize=2)}
    ladder(model, torch.arange(5), n_new=4, repeats=1, only="4", peers=peers)
    read = sum(range(6, 9)) / 3  # positions that the three steps after the prefill attend to
    assert needs[1]["bytes"] == pytest.approx(1000 + model.config.cache_bytes(1, itemsize=2) * read)


@pytest.mark.parametrize("n_prompt", [1, 7])
def test_the_work_of_a_token_is_counted_one_by_one(llama, n_prompt):
    c = llama[0].config
    seen = [n_prompt + i for i in range(5)]
    cached = roofline.work(c, 5, cached=True, n_prompt=n_prompt)
    a_position = c.cache_bytes(1)
    assert cached["bytes"] == c.weight_bytes() + a_position * sum(seen) / 5
    again = roofline.work(c, 5, cached=False, n_prompt=n_prompt)
    pairs = c.n_layer * sum(n * n for n in seen) / 5
    flop = 2 * c.matrix_weights * sum(seen) / 5 + 4 * c.n_head * c.head_size * pairs
    assert again["flop"] == pytest.approx(flop)


def test_native_rungs_have_a_cache_of_the_run_alone(llama, monkeypatch):
    decoder_library()  # skipped without a compiler
    capacities = []
    from nanogpt.engines.native import Native

    build = Native.build
    monkeypatch.setattr(
        Native, "build", lambda self: capacities.append(self.shape.capacity) or build(self)
    )
    prompt = prompt_of(llama[1])
    result = ladder(llama[0], prompt, n_new=N_NEW, greedy=True, repeats=1, only="467")
    assert capacities == [len(prompt) + N_NEW] * 2
    assert [row["weights"] for row in result["rungs"]] == ["float32", "float32", "8-bit"]
    assert result["rungs"][1]["equal_tokens"] == N_NEW


# ------------------------------------------------------------------ llama.cpp


@pytest.mark.parametrize("stored", ["F32", "Q8_0"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen3"])
def test_a_file_is_written_once_more_with_the_same_weights(name, stored, tmp_path):
    source = write_gguf(tmp_path / "x.gguf", name, stored)
    assert llama_cpp.own_type(source) == stored
    llama_cpp.rewrite(source, tmp_path / "f32.gguf", "F32")
    model, tokenizer = load_pretrained(source)
    again, same = load_pretrained(tmp_path / "f32.gguf")
    pairs = zip(model.parameters(), again.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert again.config == model.config
    assert (same.tokenizer.to_str(), same.stop, same.template) == (
        tokenizer.tokenizer.to_str(),
        tokenizer.stop,
        tokenizer.template,
    )
    assert llama_cpp.weight_bytes(tmp_path / "f32.gguf") == model.config.weight_bytes()
    llama_cpp.rewrite(source, tmp_path / "q8.gguf", "Q8_0")
    assert llama_cpp.own_type(tmp_path / "q8.gguf") == "Q8_0"
    assert llama_cpp.weight_bytes(tmp_path / "q8.gguf") < model.config.weight_bytes() / 3


class StandIn:
    """A server of xllamacpp that decodes by our own code."""

    made: list[SimpleNamespace] = []

    def __init__(self, params):
        self.model = load_pretrained(params.model.path)[0]
        self.made.append(params)

    def handle_completions(self, request, on_piece=None):
        prompt = torch.tensor([request["prompt"]])
        if request["n_predict"] > 40:
            return {"error": {"message": "too long"}}
        ids = complete(self.model, prompt, request["n_predict"], GREEDY)[0, prompt.shape[1] :]
        if request.get("stream"):
            for _ in ids:
                on_piece({"choices": [{"text": "x"}]})
            return None
        return {"choices": [{"logprobs": {"content": [{"id": int(i)} for i in ids]}}]}


def stand_in_params():
    part = SimpleNamespace
    return part(model=part(), cpuparams=part(), cpuparams_batch=part())


@pytest.fixture
def xllamacpp(monkeypatch):
    StandIn.made = []
    module = SimpleNamespace(CommonParams=stand_in_params, Server=StandIn, __version__="2026.4")
    module.BUILD_INFO = {"compiler": "GNU 10"}
    module.get_system_info = lambda: "CPU : SSE3 = 1 | AVX512 = 0 | AVX2 = 1 | "
    monkeypatch.setitem(sys.modules, "xllamacpp", module)
    return StandIn


def test_the_command_times_llama_cpp_on_the_file_and_on_two_more_forms(xllamacpp, tmp_path, capsys):
    source = write_gguf(tmp_path / "x.gguf", "llama", "Q4_1")
    path = tmp_path / "l.json"
    words = f"--tokens {N_NEW} --prompt-tokens 9 --repeats 1 --rungs 4 --peer llama.cpp --json"
    assert main(["bench", "ladder", "--model", str(source), *words.split(), str(path)]) == 0
    said = capsys.readouterr().out
    written = json.loads(path.read_text(encoding="utf-8"))
    rows = {row["label"]: row for row in written["rungs"]}
    names = [f"llama.cpp, {kind}" for kind in ("Q4_1", "F32", "Q8_0")]
    assert list(rows) == ["flat step, eager", *names]
    assert all(name in said for name in names)
    assert [rows[name]["equal_tokens"] for name in names[:2]] == [N_NEW, N_NEW]
    assert [row["weights"] for row in rows.values()] == ["float32", "Q4_1", "F32", "Q8_0"]
    assert {params.n_ctx for params in xllamacpp.made} == {9 + N_NEW}
    assert {params.cpuparams.n_threads for params in xllamacpp.made} == {torch.get_num_threads()}
    assert (written["n_prompt"], written["n_new"]) == (9, N_NEW)
    assert written["llama.cpp"] == "xllamacpp 2026.4, GNU 10, SSE3 AVX2"
    assert f"llama.cpp: {written['llama.cpp']}" in said


def test_an_error_of_llama_cpp_is_one_of_ours(xllamacpp, tmp_path):
    peer = llama_cpp.LlamaCpp(write_gguf(tmp_path / "x.gguf", "llama"), 64)
    with pytest.raises(ValueError, match="llama.cpp refuses the text .*too long"):
        peer(PeerTask(torch.tensor([1, 2]), 41, None, lambda: None))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--peer llama.cpp", "--peer llama.cpp are for a pretrained model: --model"),
        ("--prompt-tokens 9", "are for a pretrained model: --model"),
        ("--model MODEL --checkpoint x", "leave out --checkpoint and --size"),
        ("--model MODEL --size small", "leave out --checkpoint and --size"),
        ("--model MODEL --peer llama.cpp --repeats 1", "--peer llama.cpp reads GGUF files, and"),
        ("--model MODEL --prompt-tokens 99", "--prompt-tokens 99: must be an integer in [1, 62]"),
        ("--model MODEL --tokens 40", "--tokens 40: must be an integer in [2, 33]"),
    ],
)
def test_the_command_refuses_in_one_line(words, said, kept_folders, capsys):  # noqa: F811
    folder = str(kept_folders("llama"))  # its path may have spaces
    options = [folder if word == "MODEL" else word for word in words.split()]
    assert main(["bench", "ladder", *options]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1


def test_every_family_can_be_timed_beside_transformers(kept_folders, capsys):  # noqa: F811
    for name in ("gpt2", "qwen2"):
        assert name in MODELS
        folder = str(kept_folders(name))
        words = "--tokens 6 --prompt-tokens 5 --repeats 1 --rungs 34 --peer hf".split()
        assert main(["bench", "ladder", "--model", folder, *words]) == 0
        said = capsys.readouterr().out
        assert said.count("  equal") == said.count("\n   ") == 4


def test_the_shape_of_smollm2_is_timed_without_its_weights(tmp_path, monkeypatch):
    small = replace(RANDOM_SHAPES["smollm2"], n_layer=2, n_embd=36, ffn_dim=40, vocab_size=50)
    monkeypatch.setitem(RANDOM_SHAPES, "smollm2", small)
    path = tmp_path / "l.json"
    words = "--size smollm2 --tokens 6 --repeats 1 --rungs 3 --device cpu --json"
    assert main(["bench", "ladder", *words.split(), str(path)]) == 0
    written = json.loads(path.read_text(encoding="utf-8"))
    assert (written["what"], written["n_params"]) == ("ladder", small.n_params)
    assert (written["n_prompt"], written["n_new"]) == (1, 6)
    assert [row["equal_tokens"] for row in written["rungs"]] == [6]
