"""A server measured from outside: our own, and stand-ins that behave badly."""

import asyncio
import json
import threading
from contextlib import contextmanager
from math import inf

import pytest
import torch
from decoding_fixtures import build

from nanogpt.benchmarks import remote_load
from nanogpt.benchmarks.arrivals import Load
from nanogpt.benchmarks.measures import Answer, differences, measures
from nanogpt.benchmarks.remote import CHARS, Target, serve, understood
from nanogpt.cli.bench_load import main
from nanogpt.data.tokenizer import CharTokenizer
from nanogpt.server.running import running_server
from nanogpt.serving.request import Request

HEAD = "HTTP/1.1 {} X\r\nContent-Type: {}\r\nTransfer-Encoding: chunked\r\n\r\n"
ASKED = Load(n=6, seed=3, greedy=True)


def chunk(text):
    return f"{len(text.encode()):x}\r\n{text}\r\n"


def event(**data):
    return chunk(f"data: {json.dumps(data)}\r\n\r\n")


def piece(text, reason=None):
    return event(choices=[{"text": text, "finish_reason": reason}])


END = chunk("data: [DONE]\n\n") + chunk("")
STREAM = HEAD.format(200, "text/event-stream; charset=utf-8")
ANSWERS = {  # by the name of the model: what is sent, and whether the connection stays open
    "good": (STREAM + piece("a") + piece("bc", "length") + END, False),
    "counts": (
        STREAM + piece("a", "length") + event(choices=[], usage={"completion_tokens": 5}) + END,
        False,
    ),
    "json": (HEAD.format(200, "application/json") + chunk('{"text": "all"}') + chunk(""), False),
    "busy": (HEAD.format(503, "application/json") + chunk("come back later") + chunk(""), False),
    "dies": (STREAM + piece("a"), False),
    "stops": (STREAM + piece("a") + chunk(""), False),
    "fails": (STREAM + piece("a") + event(error={"message": "out of blocks"}) + END, False),
    "babbles": (STREAM + chunk("data: 7\n\n") + END, False),
    "hangs": (STREAM + piece("a"), True),
}


@contextmanager
def stand_in():
    """A server that answers as the name of the model says: its URL, and the bodies it got."""
    bodies, started = [], threading.Event()
    loop, ending = asyncio.new_event_loop(), asyncio.Event()

    async def answer(reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length:")[2].partition("\r")[0] or 0)
        body = json.loads(await reader.readexactly(length)) if length else {}
        bodies.append(body)
        plain, stays = ANSWERS[body.get("model", "json")]
        if body.get("model") == "good" and "ignore_eos" in body:
            plain = HEAD.format(400, "text/plain") + chunk("ignore_eos is unknown") + chunk("")
        writer.write(plain.encode())
        await writer.drain()
        if stays:
            await ending.wait()
        writer.close()

    async def run():
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        bodies.append(server.sockets[0].getsockname()[1])
        started.set()
        async with server:
            await ending.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    started.wait()
    try:
        yield f"http://127.0.0.1:{bodies.pop()}", bodies
    finally:
        loop.call_soon_threadsafe(ending.set)
        thread.join()
        loop.close()


@pytest.fixture(scope="module")
def server():
    with stand_in() as found:
        yield found


def requests(n=1):
    return Load(n=n, greedy=True).requests(len(CHARS), 16, inf)


def test_our_own_server_gives_generates_texts():
    model, tokenizer = build(torch.float32), CharTokenizer(CHARS[:13])
    with running_server(model, tokenizer) as url:
        target = Target(url, chars=tokenizer.chars)
        how = {"asked": ASKED, "block_size": 32, "repeats": 1, "limits": {"e2el": 60.0}}
        result = remote_load.remote_load(target, [500.0, inf], model=model, **how)
        other = build(torch.float32, seed=4)
        wrong = remote_load.remote_load(target, [inf], model=other, **how)["rows"][0]
    assert result["model"] == "nanogpt"
    for row in result["rows"]:
        assert (row["equal"], row["differences"], row["failed"]) == (True, [], 0)
        assert row["goodput"] == row["requests_per_second"]  # within 60 s
    assert not wrong["equal"]
    assert all(one["margin"] > 0 and not one["tie"] for one in wrong["differences"])


def test_a_server_may_not_know_what_is_not_in_the_interface(server):
    url, bodies = server
    target = Target(url, "good")
    bodies.clear()
    assert understood(target, requests()[0]) == {}
    assert [("ignore_eos" in body, body["temperature"]) for body in bodies] == [
        (True, 0),
        (False, 0),
    ]
    answers, errors, _ = serve(target, requests(3), {})
    assert not errors
    assert [answer.tokens for answer in answers.values()] == 3 * [["a", "b", "c"]]
    assert all(len(answer.moments) == 2 for answer in answers.values())
    answers, _, _ = serve(Target(url, "counts", temperature=0.5), requests(), {})
    assert len(answers[0].tokens) == 5
    assert (bodies[-1]["temperature"], bodies[-1]["seed"]) == (0.5, 0)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("json", 'is no stream of events, but application/json: {"text": "all"}'),
        ("busy", "HTTP 503: come back later"),
        ("dies", "the connection broke: peer closed connection"),
        ("stops", "the answer stopped after 1 events, without its end"),
        ("fails", "out of blocks"),
        ("babbles", "an event that is no JSON object: 7"),
        ("hangs", "no byte for 0.05 s"),
    ],
)
def test_what_goes_wrong_is_said_in_a_line(server, model, said):
    answers, errors, _ = serve(Target(server[0], model, timeout=0.05), requests(2), {})
    assert not answers
    assert len(errors) == 2
    assert all(said in why for why in errors.values())


def test_the_command_adds_a_curve_and_refuses_another_workload(server, tmp_path, capsys):
    path, options = tmp_path / "load.json", "--requests 2 --repeats 1 --rates inf --size article"
    command = f"--url {server[0]} --model good {options}"
    assert main([*command.split(), "--json", str(path)]) == 0
    assert "not compared" in capsys.readouterr().out
    assert main([*command.split(), "--label", "again", "--add", str(path)]) == 0
    assert main([*command.split(), "--label", "again", "--add", str(path)]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert [row["scheme"] for row in rows] == ["good", "again"]
    before = path.read_bytes()
    assert main([*command.split(), "--seed", "2", "--add", str(path)]) == 2
    assert "seed=1, and this with 2" in capsys.readouterr().err
    assert path.read_bytes() == before
    assert main([*command.replace("good", "busy").split()]) == 2
    assert "HTTP 503" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--url http://127.0.0.1:1", "nothing answers at http://127.0.0.1:1"),
        ("--url http://example.org", "example.org is another machine"),
        ("--url ftp://127.0.0.1", "give an address as in"),
        ("--url http://127.0.0.1:x", "give an address as in"),
        ("--url http://127.0.0.1:1 --timeout 0", "timeout=0.0: must be"),
        ("--url http://127.0.0.1:1 --rates 0", "rate=0.0: must be"),
        ("--add README.md", "give --url, too"),
        ("--url http://127.0.0.1:1 --peer hf", "leave --peer out"),
        ("--url http://127.0.0.1:1 --add README.md", "it is no JSON"),
    ],
)
def test_bad_options_for_a_server(words, said, capsys):
    assert main(words.split()) == 2
    assert said in capsys.readouterr().err


def test_a_text_that_ended_early_differs_without_a_margin():
    model, asked = build(), Request(torch.tensor([1, 2]), 3, id=0)
    ours = {0: [1, 2, 3]}
    assert differences(model, [asked], ours, ours) == []
    found = differences(model, [asked], ours, {0: [1]})
    assert found == [{"request": 0, "at": 1, "margin": None, "tie": False}]


def test_several_tokens_in_one_event_count_as_tokens():
    asked = Request(torch.tensor([1]), 5, arrival=1.0, id=0)
    got = measures([asked], {0: Answer(list("abcde"), [2.0, 4.0])}, {})
    assert (got["tokens_per_second"], got["tpot_p50"], got["itl_p50"]) == (5 / 4, 0.5, 2.0)
