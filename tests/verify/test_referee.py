"""The referee acquits what is sound and convicts what is not: ours, others', traps, servers."""

import functools
import json
import random
import socket
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
import torch
from conftest import tiny_model
from parts import Tiny, small
from rows import quick
from server_fixtures import CHARS
from shapes import ROPE

from nanogpt import DynamicCache, referee
from nanogpt.cli import main
from nanogpt.kv_referee import objects
from nanogpt.kv_referee.report import Mistake
from nanogpt.model import Head
from nanogpt.serving.http import listening
from nanogpt.serving.modules import ModuleBackend
from nanogpt.serving.server import Server
from nanogpt.verify.architectures import small as architecture
from nanogpt.verify.server import RemoteServer

# Small models of these architectures run in float64, with more than one kind of position and mask.
SOUND = "gpt2 llama opt bloom gemma3_text phi olmo3"


OURS = {"heads": tiny_model, "batched": lambda: tiny_model(False)}
OURS["rope, window"] = lambda: small(**ROPE, window=6, sinks=2).model


@pytest.mark.parametrize("kind", quick(OURS, "batched"))
def test_our_caches_are_acquitted(kind):
    model = OURS[kind]().train()
    report = referee(model, tokens=0)
    assert report.verdict in ("equal", "rounding"), report
    assert not report.bugs
    ways = " ".join(f.way for f in report.findings)
    kinds = [
        "DynamicCache",
        "StaticCache",
        "PagedCache",
    ]
    if getattr(model.config, "window", None) is not None:
        kinds.append("RollingCache")
    assert all(kind in ways for kind in kinds)
    assert model.training, "it is left as it was"
    assert "float64" in str(report)


# ------------------------------------------------------------------ the reader's own classes


class OwnHead(Head):
    """A reader's head."""


class OwnCache:
    """A reader's cache: one method, and no more."""

    k = v = pos = None

    def __init__(self, capacity):
        self.capacity = capacity

    def update(self, k, v, pos):
        if self.k is not None:
            k = torch.cat([self.k, k], -2)
            v = torch.cat([self.v, v], -2)
            pos = torch.cat([self.pos, pos])
        self.k = k
        self.v = v
        self.pos = pos
        return k, v, pos


class Blind(OwnCache):
    """The newest token does not see itself."""

    def update(self, k, v, pos):
        k, v, pos = super().update(k, v, pos)
        return k, v, torch.where(pos == pos.max(), pos + 1, pos)


def test_a_reader_s_head_and_caches_are_judged_by_themselves():
    model = tiny_model(head=OwnHead, block_size=48)
    sound = referee(model, caches=[OwnCache])
    assert sound.verdict in ("equal", "rounding")
    ways = [one.way for one in sound.not_offered]
    assert "OwnCache, rejected drafts taken back, in 24 tokens" in ways
    assert "it has no rewind(n)" in str(sound)
    both = referee(model, caches=[OwnCache, Blind])
    assert both.verdict == "bug"
    assert {f.way.split(",")[0] for f in both.bugs} == {"Blind"}
    scope = {"MODEL": model, "CACHES": [OwnCache, Blind]}
    exec(both.bugs[0].code, scope)
    assert not scope["moved"].abs().max() < 0.01  # it may be NaN


@pytest.mark.parametrize("caches", [[], [torch.nn.Identity]], ids=str)
def test_a_class_that_is_no_cache_is_refused(caches):
    with pytest.raises(ValueError, match="cache"):
        referee(tiny_model(), caches=caches)
    with pytest.raises(ValueError, match="and a GPT"):
        referee(Tiny(), caches=[OwnCache])


def test_two_functions_of_one_dtype_are_enough():
    model = tiny_model()

    def plain(ids):
        return model(ids)[0].detach()

    def start(rows):
        pieces = []

        def read(ids):
            pieces.append(ids)
            return plain(torch.cat(pieces, 1))[:, -ids.shape[1] :]

        return SimpleNamespace(read=read)

    given = SimpleNamespace(vocab_size=13, longest=24, plain=plain, start=start)
    report = referee(given)
    assert report.verdict in ("equal", "rounding")
    assert "only in float32" in str(report)


# ------------------------------------------------------------------ what a report says


def test_rounding_shrinks_with_the_dtype_and_a_bug_does_not():
    class Coarse(Tiny):  # keys stored in fewer bits than the model has
        def store(self, cache, layer, k, v):
            return super().store(cache, layer, k.bfloat16().to(k.dtype) if cache.t else k, v)

    report = referee(Coarse())
    assert report.verdict == "bug"
    first = next(f for f in report.bugs if "a prompt of 12, then single tokens" in f.way)
    assert 1e-4 < first.size < 10
    assert first.position == 12
    assert first.mistake is Mistake.ROUNDING
    assert "float32 alone shifts the uncached logits by" in first.words
    scope = {"MODEL": Coarse()}
    exec(report.bugs[0].code, scope)
    assert float(scope["moved"].abs().max()) > 1e-4


def test_a_plain_pass_that_looks_ahead_is_the_culprit():
    class Ahead(Tiny):
        def plain(self, ids):
            logits = super().plain(ids)
            return logits + ids[:, -1, None, None] * torch.arange(29)

        def step(self, cache, ids, mask):
            logits = super().step(cache, ids, mask)
            return logits + cache.kept * ids[..., None] * torch.arange(29)

    report = referee(Ahead())
    (bug,) = [f for f in report.bugs if f.way.startswith("the plain pass, with later tokens")]
    assert "looks ahead" in bug.words
    sound = [f for f in report.findings if f.verdict.sound]
    assert "its cache, a prompt of 12, then single tokens to 24" in {f.way for f in sound}


def test_nan_has_words_of_its_own():
    model = tiny_model()
    model.lm_head.weight.data.fill_(torch.nan)
    assert "its logits are NaN" in str(referee(model))

    class Poisoned(Tiny):
        def sees(self, cache, ids, mask):
            sees = super().sees(cache, ids, mask)
            return sees & False if cache.t > 20 else sees

    words = [bug.words for bug in referee(Poisoned()).bugs]
    assert any("NaN in float64 from token 21 on" in one for one in words)


@pytest.mark.parametrize("seed", range(3))
def test_dropout_in_the_plain_pass_is_no_rounding(seed):
    class Dropout(Tiny):
        def plain(self, ids):
            return torch.nn.functional.dropout(super().plain(ids), 0.2)

    (bug,) = referee(Dropout(seed), seed=seed).findings
    assert "dropout is on" in str(bug)
    assert bug.verdict == "bug"


def test_a_plain_pass_that_stops_says_at_what():
    class Short(Tiny):
        longest = 32  # rows of its table of positions

    model = Short()
    model.longest = 1024
    assert "it stops at 1 texts of 40 tokens, after others" in str(referee(model))


@pytest.mark.parametrize("wrong", [None, "llama", torch.nn.Linear(2, 2)], ids=str)
def test_an_object_that_is_no_model_is_refused(wrong):
    with pytest.raises(ValueError, match="plain"):
        referee(wrong)


STRANGE = {
    "logits must be floats": {"read": lambda ids: ids.numpy()},
    "returned NoneType: logits must be a tensor": {"read": lambda ids: None},
    r"plain\(ids\) returned str: logits must be a tensor": {"plain": lambda ids: "logits"},
    "vocab_size='20': must be an integer": {"vocab_size": "20"},
    "longest='9': must be an integer": {"longest": "9"},
}


@pytest.mark.parametrize("message", STRANGE)
def test_the_outputs_of_an_object_are_checked(message):
    given = {"vocab_size": 20, "plain": lambda ids: torch.zeros(*ids.shape, 20)}
    given |= {"read": given["plain"], **STRANGE[message]}
    given["start"] = lambda rows: SimpleNamespace(read=given["read"])
    with pytest.raises(ValueError, match=message):
        referee(SimpleNamespace(**given))


def test_a_model_of_which_a_block_holds_no_cache_is_refused():
    model = tiny_model(False)
    del model.blocks[1].sa.cache
    with pytest.raises(ValueError, match="has no `cache`: set self.cache"):
        referee(model)


def test_a_model_that_reads_too_little_is_refused():
    with pytest.raises(ValueError, match="reads 9 tokens: 16 are needed"):
        referee(tiny_model(block_size=9))
    report = referee(tiny_model(block_size=16), caches=[DynamicCache], tokens=0)
    assert report.verdict in ("equal", "rounding")


def test_a_model_without_float64_says_what_it_cannot_exclude(monkeypatch):
    monkeypatch.setattr(objects, "available_memory", lambda: 1)
    report = referee(tiny_model(), caches=[DynamicCache], tokens=0)
    assert "torch.float64 needs" in str(report)
    assert report.verdict in ("equal", "rounding")


# ------------------------------------------------------------------ models of transformers


@pytest.mark.release
def test_architectures_of_transformers_are_acquitted():
    """By shorter texts than usual; past a window of theirs all the same."""
    pytest.importorskip("transformers")
    for kind in SOUND.split():
        report = referee(architecture(kind), tokens=0)
        ways = " ".join(finding.way for finding in report.findings)
        assert "rewind" in ways or "drafts" in ways, report
        print(f"{kind:14} {report.verdict:9} {[f.verdict for f in report.padding]}")
        assert report.verdict in ("equal", "rounding"), report


SHORT = ["--tokens", "0"]


@pytest.mark.release
def test_padding_is_told_apart_from_the_cache(capsys):
    pytest.importorskip("transformers")
    assert main(["verify", "class", "llama", *SHORT]) == 0
    said = capsys.readouterr().out
    assert "LlamaForCausalLM: equal" in said
    assert "padding without a cache: equal: left padding of" in said


@pytest.mark.release
def test_the_model_that_ships_is_acquitted():
    assert main(["verify", "model", *SHORT]) == 0


@pytest.mark.parametrize("part", ["", "model.layers.1"])
def test_a_forward_set_on_an_instance_is_refused(part):
    pytest.importorskip("transformers")
    model = architecture("llama").model
    module = model.get_submodule(part)
    usual = module.forward
    module.forward = functools.wraps(usual)(lambda *args, **kwargs: usual(*args, **kwargs))
    with pytest.raises(ValueError, match="another forward, set on the instance"):
        referee(model)


@pytest.mark.release
@pytest.mark.parametrize("kind", ["bert", "mamba"])
def test_transformers_adds_no_lines(kind, capfd):
    pytest.importorskip("transformers")
    main(["verify", "class", kind, "--tokens", "0"])
    assert capfd.readouterr().err.count("\n") <= 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("class no-such-kind", "builds no small 'no-such-kind'"),
        ("class openai-gpt", "has no cache that can be used"),
        ("model nowhere", "no checkpoint at nowhere.safetensors"),
        ("model .", "is a folder without checkpoints"),
        ("model damaged", "transformers loads no model from"),
        ("server http://127.0.0.1:9", "no server answers at http://127.0.0.1:9"),
        ("server localhost:8000", "'localhost:8000' is not a server's address: write http://"),
        ("server ftp://x", "is not a server's address"),
        ("server http://[bad", "is not a server"),
        ("model http://localhost:8000", "`verify server` takes addresses"),
    ],
)
def test_a_subject_that_cannot_be_judged_is_one_line_and_exit_code_2(
    words, message, capsys, tmp_path, monkeypatch
):
    if words.startswith(("class", "model damaged")):
        pytest.importorskip("transformers")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "config.json").write_text("{", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert main(["verify", *words.split()]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert message in said[-1]
    assert said[-1].startswith("error: ")


# ------------------------------------------------------------------ servers


@pytest.mark.release
def test_our_server_is_acquitted():
    server = Server(tiny_model(False, vocab_size=13), CHARS, backend=ModuleBackend)
    with listening(server) as url:
        assert main(["verify", "server", url]) == 0
        echoed = [f.way for f in referee(url).findings if "echoed" in f.way]
        assert echoed == ["log-probabilities drawn, against echoed"]
        assert referee(OffByOne(url)).verdict == "bug"


class OffByOne(RemoteServer):
    """A server that shows with each echoed token the log-probability of the next one."""

    def ask(self, requests):
        answers = super().ask(requests)
        for asked, answer in zip(requests, answers, strict=True):
            if asked.get("echo"):
                answer["logprobs"] = [*answer["logprobs"][1:], 0.0]
        return answers


class Answers:
    """A server in a sentence: what it answers to requests that come together."""

    def __init__(self, text):
        self.text = text
        self.asked = []

    def ask(self, requests):
        answers = []
        for i, request in enumerate(requests):
            made = self.text(self, request, i, requests)
            answers.append({"text": made[: request["max_tokens"]], "logprobs": None})
        self.asked += requests
        return answers


def drawn(seed, prompt):
    return "".join(chr(97 + (hash((seed, prompt)) >> 3 * i) % 26) for i in range(12))


def continued(prompt, n=12):
    text = prompt
    for _ in range(n):
        text += chr(97 + (sum(map(ord, text[-3:])) * 7 + len(text)) % 26)
    return text[len(prompt) :]


def honest(server, request, i, requests):
    if request["temperature"] == 0:
        return continued(request["prompt"])
    return drawn(request.get("seed", random.random()), request["prompt"])


FAULTS = {
    "the neighbour's text": lambda s, r, i, all: honest(s, all[max(0, i - 1)], i, all),
    "a seed that a neighbour without one spoils": lambda s, r, i, all: (
        honest(s, r if all[-1].get("seed", 1) or len(all) == 1 else r | {"seed": len(all)}, i, all)
        if "seed" in all[-1] or r["temperature"] == 0
        else drawn(random.random(), r["prompt"])
    ),
    "one seed for all": lambda s, r, i, all: honest(
        s, r if r["temperature"] == 0 else r | {"seed": 42}, i, all
    ),
    "the second time": lambda s, r, i, all: (
        honest(s, r, i, all) if r not in s.asked else "zzzz" * 3
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_server_that_mixes_requests_is_convicted_and_an_honest_one_is_not(fault):
    assert referee(Answers(honest)).verdict == "equal"
    assert referee(Answers(FAULTS[fault])).verdict == "bug"


class Listening(ThreadingHTTPServer):
    """A server that lets the referee's requests wait: those that it refuses come a second later."""

    request_queue_size = 128


@pytest.mark.parametrize("answer", [b"nonsense", b'{"data": [{"id": "m"}]}'], ids=str)
def test_a_server_that_answers_nonsense_is_one_line(answer, capsys):
    class Nonsense(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer)

        do_POST = do_GET

        def log_message(self, *arguments):
            pass

    with Listening(("127.0.0.1", 0), Nonsense) as http:
        threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
        assert main(["verify", "server", f"http://127.0.0.1:{http.server_port}"]) == 2
        http.shutdown()
    assert len(capsys.readouterr().err.splitlines()) == 1


def odd(choice, **model):
    """What a server answers to each path."""
    data = [{"id": "m", **model}]
    return {"models": {"data": data}, "completions": {"choices": [choice]}}


DEEP = b'{"data": ' + b"[" * 100_000
ODD = {
    "a length that is a text": odd({"text": "abc"}, max_model_len="many"),
    "a length of 12": odd({"text": "abc"}, max_model_len=12),
    "null among log-probabilities": odd(
        {"text": "ab", "logprobs": {"tokens": ["a", "b"], "token_logprobs": [None, -1.0]}}
    ),
    "tokens that are numbers": odd(
        {"text": "ab", "logprobs": {"tokens": [1, 2], "token_logprobs": [-1.0, -2.0]}}
    ),
    "a text that is null": odd({"text": None}),
    "JSON nested too deep": {"models": DEEP, "completions": DEEP},
}


@pytest.mark.parametrize("kind", ODD)
def test_an_odd_server_ends_in_a_verdict_or_one_line(kind, capsys):
    class Odd(BaseHTTPRequestHandler):
        def do_GET(self):
            answer = ODD[kind][self.path.rsplit("/", 1)[-1]]
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer if isinstance(answer, bytes) else json.dumps(answer).encode())

        do_POST = do_GET

        def log_message(self, *arguments):
            pass

    with Listening(("127.0.0.1", 0), Odd) as http:
        threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
        code = main(["verify", "server", f"http://127.0.0.1:{http.server_port}"])
        http.shutdown()
    said = capsys.readouterr()
    assert code in (0, 1, 2, 3)
    assert (code == 2) == said.err.startswith("error: ")


# The requests, counted from 0, whose connection is reset before an answer; a part of the report.
RESETS = {
    "none": ((), "equal"),
    "the third": ({3}, "a connection was reset once, and its request was sent again"),
    "two far apart": ({5, 40}, "a connection was reset 2 times"),
    "two in a row": ({60, 61}, "it answered before, but now: no server answers"),
}


@pytest.mark.parametrize("which", RESETS)
def test_a_connection_that_was_reset_once_is_no_bug(which):
    resets, words = RESETS[which]
    counted = iter(range(10**9))

    class Resetting(BaseHTTPRequestHandler):
        def do_GET(self):
            self.answer({"data": [{"id": "m", "max_model_len": 60}]})

        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if next(counted) in resets:
                linger = struct.pack("ii", 1, 0)  # a reset, not an orderly end
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                self.connection.close()
                return
            prompt = "".join(map(str, asked["prompt"]))
            drawn = {**asked, "prompt": prompt, "temperature": asked.get("temperature", 1)}
            text = honest(None, drawn, 0, [])[: asked["max_tokens"]]
            self.answer({"choices": [{"text": text}]})

        def answer(self, body):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *arguments):
            pass

    class Quiet(Listening):
        def handle_error(self, request, client_address):
            pass

    with Quiet(("127.0.0.1", 0), Resetting) as http:
        threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
        report = referee(f"http://127.0.0.1:{http.server_port}")
        http.shutdown()
    assert words in str(report), report
    assert report.verdict.sound == (which != "two in a row")
