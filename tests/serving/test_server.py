"""Our server: the tokens of generate, and nothing lost whatever clients do."""

import functools
import json
import socket
import threading
import urllib.request
from contextlib import suppress

import pytest
import torch
from conftest import tiny_model
from server_fixtures import (
    CHARS,
    HEAD,
    Counted,
    Gated,
    ask,
    events,
    expected,
    gated,
    post,
    send,
    stream,
    until,
)

from nanogpt.data import CharTokenizer
from nanogpt.sampling import PLAIN, SamplingParams
from nanogpt.serving import answers, http, server
from nanogpt.serving.completions import Completion
from nanogpt.serving.http import bind, listening
from nanogpt.serving.requests import Refused
from nanogpt.serving.server import Server

model = functools.cache(tiny_model)
LATE = Refused(504, "too late")


@pytest.fixture(scope="module")
def url():
    with listening(Server(model(), CHARS, name="tiny")) as url:
        yield url


@pytest.mark.parametrize(
    ("fields", "sampling"),
    [
        ({}, PLAIN),
        ({"temperature": 0}, SamplingParams(greedy=True)),
        ({"temperature": 0.7, "top_k": 4}, SamplingParams(0.7, top_k=4)),
        ({"top_p": 0.8}, SamplingParams(top_p=0.8)),
    ],
    ids=str,
)
def test_a_text_is_that_of_generate_whole_and_streamed(url, fields, sampling):
    asked = {"prompt": "abc", "max_tokens": 20, "seed": 5, **fields}
    text = expected(model(), "abc", 20, sampling, 5)
    code, answer = post(url, **asked)
    assert (code, answer["object"], answer["model"]) == (200, "text_completion", "tiny")
    assert answer["seed"] == 5
    assert answer["choices"] == [
        {"index": 0, "text": text, "logprobs": None, "finish_reason": "length"}
    ]
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 20, "total_tokens": 23}
    assert "".join(stream(url, **asked)) == text


def test_a_stream_ends_with_its_reason_and_its_counts(url):
    text = expected(model(), "abc", 20, seed=5)
    asked = {"prompt": "abc", "max_tokens": 20, "seed": 5, "stop": text[7]}
    *pieces, usage = events(url, **asked, stream_options={"include_usage": True})
    before = text[: text.index(text[7])]
    assert "".join(piece["choices"][0]["text"] for piece in pieces) == before
    reasons = [piece["choices"][0]["finish_reason"] for piece in pieces]
    assert reasons == [None] * (len(pieces) - 1) + ["stop"]
    assert usage["usage"]["completion_tokens"] == len(before) + 1


@torch.no_grad()
def test_an_evaluation_harness_gets_the_log_probabilities_of_its_prompts(url):
    prompts = [CHARS.encode(text).tolist() for text in ("abcdefg", "abcdefgh", "k" * 24, "la")]
    asked = {"model": "tiny", "temperature": 0, "max_tokens": 1, "logprobs": 1, "echo": True}
    code, answer = post(url, prompt=prompts, seed=1234, **asked)
    assert (code, answer["usage"]["completion_tokens"]) == (200, len(prompts)), answer
    for prompt, choice in zip(prompts, answer["choices"], strict=True):
        rows = model()(torch.tensor(prompt)[None])[0][0].double().log_softmax(-1)[:-1]
        own = rows[torch.arange(len(rows)), prompt[1:]].tolist()
        names = ("token_logprobs", "top_logprobs")
        values, top = (choice["logprobs"][name][1:-1] for name in names)
        assert values == pytest.approx(own, abs=1e-5)
        greedy = [value == max(best.values()) for value, best in zip(values, top, strict=True)]
        assert greedy == (rows.argmax(-1) == torch.tensor(prompt[1:])).tolist()


def test_a_prompt_is_given_back_with_its_log_probabilities_and_no_token_more(url):
    code, answer = post(url, prompt="abc", max_tokens=0, echo=True, logprobs=2)
    (choice,) = answer["choices"]
    shown = answer["choices"][0]["logprobs"]
    assert (code, choice["text"], choice["finish_reason"]) == (200, "abc", "length")
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 0, "total_tokens": 3}
    assert (shown["tokens"], shown["text_offset"]) == (["a", "b", "c"], [0, 1, 2])
    assert shown["token_logprobs"][0] is shown["top_logprobs"][0] is None
    assert all(len(top) in (2, 3) for top in shown["top_logprobs"][1:])


@pytest.mark.parametrize("shown", [{}, {"logprobs": 2, "n": 3}], ids=str)
def test_a_whole_answer_is_written_outside_of_the_event_loop(url, monkeypatch, shown):
    plain = Completion.choice
    threads = []

    def choice(self):
        threads.append(threading.current_thread().name)
        return plain(self)

    monkeypatch.setattr(Completion, "choice", choice)
    code, answer = post(url, prompt="abc", max_tokens=5, **shown)
    assert (code, len(answer["choices"])) == (200, shown.get("n", 1)) == (200, len(threads))
    assert "server" not in threads


def test_a_long_body_is_read_and_refused_and_answers_are_counted(url):
    with send(url) as connection:
        connection.recv(65536)
        connection.sendall(f"{HEAD}Content-Length: {2**26 + 1}\r\n\r\n".encode())
        with suppress(ConnectionError):
            connection.sendall(b" " * (2**26 + 1))
        answer = connection.recv(65536)
        assert b" 413 " in answer
        assert b"longer than 1,048,576 bytes" in answer
        connection.sendall(f"{HEAD}Content-Length: 15\r\n\r\n".encode() + b'{"prompt": "a"}')
        assert b" 200 " in connection.recv(65536)
    with urllib.request.urlopen(f"{url}/metrics") as response:
        found = dict(line.rsplit(" ", 1) for line in response.read().decode().splitlines())
    assert float(found['nanogpt_answers_total{status="413"}']) == 1
    assert not [name for name in found if "_created" in name]
    drawn = float(found["nanogpt_generated_tokens_total"])
    assert drawn >= float(found["nanogpt_ttft_seconds_count"]) > 0


@pytest.fixture(scope="module")
def guarded():
    server = Counted(model())
    with listening(server, allow_hosts=["Fox.example"]) as url:
        yield server, url


@pytest.mark.parametrize(
    ("headers", "status", "says"),
    [
        ({"Host": "localhost"}, 200, ""),
        ({"Host": "[::1]:8000"}, 200, ""),
        ({"Host": "fox.example"}, 200, ""),
        ({"Host": "evil.example"}, 403, "--allow-host evil.example if that is its name"),
        ({"Host": "127.0.0.1.evil.example:80"}, 403, "--allow-host"),
        ({"Host": "localhost", "Origin": "http://localhost"}, 200, ""),
        ({"Origin": "http://localhost:3000"}, 403, "pages from 'http://localhost:3000'"),
        ({"Content-Type": "text/plain"}, 415, "curl -H 'Content-Type: application/json'"),
        ({"Content-Type": "Application/JSON; charset=utf-8"}, 200, ""),
    ],
    ids=lambda value: str(value)[:60],
)
def test_no_page_from_elsewhere_is_let_in(guarded, headers, status, says):
    server, url = guarded
    before = server.drawn
    found = ask(url, "POST", "/v1/completions", '{"prompt": "a"}', headers)
    assert (found[0], says in str(found[1])) == (status, True), found
    assert (server.drawn > before) == (status == 200)
    if "Content-Type" not in headers:
        for method, path in [("GET", "/health"), ("GET", "/no"), ("OPTIONS", "/v1/models")]:
            assert (ask(url, method, path, headers=headers)[0] == 403) == (status == 403)


@pytest.mark.parametrize("streamed", [True, False])
def test_a_client_that_leaves_frees_its_blocks(streamed):
    with gated() as (server, url, gate):
        for connection in [send(url, prompt="ab", max_tokens=20, stream=streamed) for _ in "12"]:
            gate.open(1)
            until(lambda: server.drawn)
            connection.close()
        until(lambda: not server.answers)
        gate.open()
        until(lambda: server.free)
        assert server.drawn < 40


@pytest.mark.parametrize("streamed", [True, False])
def test_a_choice_that_met_its_stop_leaves_the_engine_while_others_go_on(streamed):
    text_of = functools.cache(lambda seed: expected(model(), "ab", 20, seed=seed))
    # A seed whose text holds a character early that the text of the next seed never has.
    seed, stop = next(
        (seed, char)
        for seed in range(100)
        for char in text_of(seed)[2:4]
        if char not in text_of(seed + 1)
    )
    text = text_of(seed)
    n = text.index(stop) + 1
    body = {"prompt": "ab", "max_tokens": 20, "seed": seed, "n": 2, "stop": stop}
    with gated() as (server, url, gate):
        with send(url, **body, stream=streamed):
            running = server.engine.scheduler.running
            # The two choices may come to the engine in one step or in two: count none of them.
            for step in range(1, 20):
                until(lambda step=step: gate.calls == step)
                if any(answer.reason for answer in server.answers.values()):
                    break
                gate.open(1)
            gate.open(1)  # the step that had begun already
            until(lambda: [one.request.seed for one in running] == [seed + 1])
            assert len(server.answers) == 2
            gate.open()
            until(lambda: not server.answers)
        assert 20 + n <= server.drawn < 30  # of 40
    with listening(Server(model(), CHARS)) as url:
        choices = post(url, **body)[1]["choices"]
    assert [one["finish_reason"] for one in choices] == ["stop", "length"]
    assert choices[0]["text"] == text[: n - 1]
    assert choices[1]["text"] == expected(model(), "ab", 20, seed=seed + 1)


def test_beyond_the_limit_a_request_is_told_to_try_again():
    with gated(running=1, waiting=1) as (server, url, gate):
        waiting = [send(url, prompt="ab", max_tokens=2) for _ in "12"]
        until(lambda: len(server.answers) == 2)
        with send(url, prompt="ab") as refused:
            answer = refused.recv(65536)
        assert b"429" in answer
        assert b"retry-after: 1" in answer
        assert b'"code": "rate_limit_exceeded"' in answer
        gate.open()
        for connection in waiting:
            assert b"200 OK" in connection.recv(65536)
            connection.close()


def test_a_limit_of_time_ends_an_answer_before_and_after_it_has_begun():
    def expire():
        (answer,) = server.answers.values()
        server.loop.call_soon_threadsafe(answer.end, LATE)

    with gated() as (server, url, gate):
        with send(url, prompt="ab") as connection:
            until(lambda: gate.calls)  # its first step has begun
            expire()
            assert b"504" in connection.recv(65536)
        gate.open(1)
        until(lambda: server.drawn == 1)  # of a request that has ended
        found = stream(url, prompt="ab", max_tokens=9, seed=3)
        for char in expected(model(), "ab", 2, seed=3):
            gate.open(1)  # tokens that are ready together would be one piece
            assert next(found) == char
        expire()
        with pytest.raises(ValueError, match="too late"):
            next(found)


def test_the_time_of_an_answer_is_the_servers():
    with gated(timeout=0.05) as (_server, url, _gate):
        code, body = post(url, prompt="ab")
        assert (code, body["error"]["message"]) == (504, "the answer took longer than 0.05 s")


@pytest.mark.parametrize("rest", [b"", b"{"])
def test_a_client_that_leaves_while_its_body_arrives_is_no_error(rest, caplog):
    server = Counted(model())
    with listening(server) as url:
        with send(url) as connection:
            assert b" 400 " in connection.recv(65536)
            connection.sendall(f"{HEAD}Content-Length: 15\r\n\r\n".encode() + rest)
        name = "nanogpt_answers_total"
        until(lambda: server.metrics.registry.get_sample_value(name, {"status": "499"}) == 1)
        assert post(url, prompt="ab")[0] == 200
    assert not caplog.records


@pytest.fixture
def unread(monkeypatch):
    """A server, and a connection that has asked for a stream and not read it: all is drawn."""

    def narrow(*where):
        sockets = bind(*where)
        for listener in sockets:  # what is sent does not fit into the system's buffers
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        return sockets

    monkeypatch.setattr(http, "bind", narrow)
    monkeypatch.setattr(answers, "GRACE", 0.01)
    served = Counted(tiny_model(block_size=256))
    with listening(served) as url:
        with send(url, 1, prompt="ab", max_tokens=200, n=10, seed=5, stream=True) as connection:
            until(lambda: served.drawn == 2000)
            yield served, connection
        until(lambda: not served.answers)
    served.engine.audit()


def test_a_client_that_does_not_read_does_not_keep_its_handler(unread):
    served, connection = unread
    found = list(served.answers.values())
    assert len(found) == 10  # they are all written, and not read
    served.loop.call_soon_threadsafe(found[0].end, LATE)
    until(lambda: not served.answers)
    with suppress(ConnectionError):  # the connection has ended, too
        while connection.recv(65536):
            pass


def test_a_client_that_reads_late_gets_the_whole_stream(unread):
    served, connection = unread
    until(lambda: all(one.reason for one in served.answers.values()))
    data = b""
    while not data.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
        piece = connection.recv(65536)
        assert piece, "the end is missing"
        data += piece
    assert data.count(b'"finish_reason": "length"') == 10


@pytest.mark.parametrize(("kind", "status"), [(ValueError, 400), (RuntimeError, 500)])
def test_a_request_that_the_engine_does_not_take_ends_alone(monkeypatch, capfd, kind, status):
    def add(request):
        raise kind("no room")

    server = Server(model(), CHARS)
    with listening(server) as url:
        with monkeypatch.context() as patch:
            patch.setattr(server.engine, "add", add)
            code, body = post(url, prompt="ab")
        assert code == status
        assert "no room" in body["error"]["message"]
        code, body = post(url, prompt="ab", max_tokens=3, seed=7)
        assert code == 200
        assert body["choices"][0]["text"] == expected(model(), "ab", 3, seed=7)
        assert ask(url, "GET", "/health")[0] == 200
    assert ("Traceback" in capfd.readouterr().err) == (status == 500)


def test_a_step_that_fails_ends_every_request_and_health_says_so(capfd):
    with gated() as (server, url, gate):
        real = gate.step

        def fails():
            if server.drawn:
                raise RuntimeError("out of luck")
            return real()

        gate.step = fails
        waiting = [send(url, prompt="ab", max_tokens=9)]
        gate.open(1)
        until(lambda: server.drawn)
        waiting += [send(url, prompt="ab", max_tokens=9)]
        until(lambda: len(server.answers) == 2)
        gate.open()
        for connection in waiting:
            assert b"500" in connection.recv(65536)
            connection.close()
        for code, body in (post(url, prompt="a"), ask(url, "GET", "/health")):
            assert code == 500
            assert "out of luck" in body["error"]["message"]
        assert server.free
    assert "RuntimeError: out of luck" in capfd.readouterr().err


def test_the_engine_sleeps_when_nothing_runs():
    server = Server(model(), CHARS)
    rounds = []
    ready = server._has_step
    server._has_step = lambda: rounds.append(1) or ready()
    with listening(server) as url:
        assert post(url, prompt="ab", max_tokens=3)[0] == 200
        until(lambda: len(rounds) == 4)  # one a token, and one that waits
        for _ in range(20):
            ask(url, "GET", "/health")
        assert len(rounds) == 4


def test_an_end_lets_answers_finish_and_takes_no_more():
    server = Server(model(), CHARS)
    before = set(threading.enumerate())
    gate = Gated(server.engine)
    found = []
    opens = threading.Thread(target=lambda: (until(lambda: server.draining), gate.open()))
    with listening(server) as url:
        connection = send(url, prompt="abc", max_tokens=20, seed=5)
        until(lambda: server.answers)
        opens.start()
    while data := connection.recv(65536):
        found.append(data)
    connection.close()
    body = json.loads(b"".join(found).partition(b"\r\n\r\n")[2])
    assert body["choices"][0]["text"] == expected(model(), "abc", 20, seed=5)
    with pytest.raises(OSError, match="refused"):
        post(url, prompt="a")
    assert not [t for t in set(threading.enumerate()) - before if t.name in ("engine", "server")]


def test_an_end_that_takes_too_long_is_an_error_for_those_who_wait(monkeypatch):
    monkeypatch.setattr(server, "DRAIN", 0.05)
    with gated() as (served, url, _):
        connection = send(url, prompt="abc", max_tokens=20)
        until(lambda: served.answers)
    assert b"503" in connection.recv(65536)
    connection.close()


def test_a_server_checks_its_numbers():
    for wrong in ({"running": 0}, {"waiting": -1}, {"timeout": 0.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Server(model(), CHARS, **wrong)
    with pytest.raises(ValueError, match="vocabulary"):
        Server(model(), CharTokenizer("ab"))
