"""A server measured from outside: our own, and a stand-in that behaves badly."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import inf

import pytest
import torch
from decoding_fixtures import build

from nanogpt.bench.load import CHARS, LoadedServer, drive, load, poisson
from nanogpt.cli import main
from nanogpt.data import CharTokenizer
from nanogpt.serving.batch import BatchEngine
from nanogpt.serving.http import listening
from nanogpt.serving.server import Server


def event(**data):
    return f"data: {json.dumps(data)}\r\n\r\n"


def piece(text, reason=None):
    return event(choices=[{"text": text, "finish_reason": reason}])


END = "data: [DONE]\n\n"
USAGE = event(choices=[], usage={"completion_tokens": 5})
ANSWERS = {  # by the name of the model: what is sent
    "good": piece("\n") + piece(" !", "length") + END,
    "counts": piece("a", "length") + USAGE + END,
    "stops": piece("a"),
    "fails": piece("a") + event(error={"message": "out of blocks"}) + END,
    "busy": "come back later",
}


@pytest.fixture(scope="module")
def server():
    """A server that answers as the name of the model says: its URL, and the bodies it got."""
    bodies = []

    class StandIn(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            self.answer(200, '{"data": [{"id": "good"}]}')

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            bodies.append(body)
            name = body["model"]
            self.answer(503 if name == "busy" else 200, ANSWERS[name])

        def answer(self, status, text):
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), StandIn) as stand_in:
        thread = threading.Thread(target=stand_in.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{stand_in.server_port}", bodies
        stand_in.shutdown()
        thread.join()


def requests(n=1):
    return poisson(n, inf, len(CHARS), 16, greedy=True)


def texts_of(model):
    """A system that answers as this model does, on the virtual clock."""
    return lambda requests: drive(BatchEngine(model), requests)


def test_our_own_server_gives_our_texts():
    model = build(torch.float32)
    tokenizer = CharTokenizer(CHARS[:13])
    how = {"vocab_size": 13, "block_size": 32, "repeats": 1, "limits": {"e2el": 1e6}}
    how |= {"n": 6, "greedy": True}
    with listening(Server(model, tokenizer)) as url:
        server = LoadedServer(url, chars=tokenizer.chars)
        rows = load({server.model: server}, [500.0, inf], reference=texts_of(model), **how)
        other = texts_of(build(torch.float32, seed=4))
        wrong = load({"other": server}, [inf], reference=other, **how)[0]
    for row in rows:
        assert (row["scheme"], row["differ"], row["failed"]) == ("nanogpt", 0, 0)
        assert row["goodput"]["median"] > 0
    assert wrong["differ"] > 0


def test_a_server_gets_what_its_interface_names_and_gives_texts_or_counts(server):
    url, bodies = server
    target = LoadedServer(url)
    bodies.clear()
    replies = target(requests(3))
    fields = {"model", "prompt", "max_tokens", "temperature", "stream", "stream_options"}
    assert [(body["model"], set(body)) for body in bodies] == 3 * [("good", fields)]
    assert [reply.tokens for reply in replies.values()] == 3 * [[0, 1, 2]]
    assert all(len(reply.moments) == 2 for reply in replies.values())
    assert not target.errors
    target.model = "counts"
    (reply,) = target(requests()).values()
    assert reply.tokens == 5 * [None]


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("busy", "HTTP 503: come back later"),
        ("stops", "stopped after 1 event and"),
        ("fails", "out of blocks"),
    ],
)
def test_a_failure_of_the_server_is_an_error_of_one_line(server, model, said):
    target = LoadedServer(server[0])
    target.model = model
    with pytest.raises(OSError, match=said):
        target(requests(2))


def test_the_command_prints_a_row_of_a_server(server, tmp_path, capsys):
    path = tmp_path / "load.json"
    options = "--requests 2 --repeats 1 --rates inf --size article"
    assert main(["bench", "load", "--url", server[0], *options.split(), "--json", str(path)]) == 0
    said = capsys.readouterr().out
    assert "good" in said
    assert "not compared" in said
    assert [row["scheme"] for row in json.loads(path.read_text(encoding="utf-8"))["rows"]] == [
        "good"
    ]
