"""Requests by their shape: method, path, headers and framing, and the status that they get."""

import json
import socket
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest
from conftest import tiny_model
from server_fixtures import CHARS, JSON, Counted, events, expected, post

from nanogpt.serving.http import listening
from nanogpt.serving.server import Server

NAME = "org/tiny fox%é"
BODY = json.dumps({"prompt": "abc", "max_tokens": 5, "seed": 5})
STREAM = json.dumps({"prompt": "abc", "max_tokens": 5, "seed": 5, "stream": True})
HOST = "Host: localhost\r\n"
TYPE = "Content-Type: application/json\r\n"


@pytest.fixture(scope="module")
def url():
    with listening(Server(tiny_model(), CHARS, name=NAME, aliases=["fox:latest"])) as url:
        yield url


@pytest.fixture(scope="module")
def text():
    return expected(tiny_model(), "abc", 5, seed=5)


def ask(url: str, method: str, path: str, body=None, headers=None):
    """The answer, and its body."""
    connection = HTTPConnection(urlsplit(url).netloc, timeout=20)
    try:
        connection.request(method, path, body, JSON | (headers or {}))
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()


# method, path, body, headers, status, and what is in the body of the answer
REQUESTS = [
    ("GET", "/health", None, {}, 200, "ok"),
    ("GET", "/health?x=1&y", None, {}, 200, "ok"),
    ("GET", "/metrics", None, {}, 200, "nanogpt_requests_running"),
    ("GET", "/v1/models", None, {}, 200, '"max_model_len": 24'),
    ("GET", "/v1/models/org/tiny%20fox%25%C3%A9", None, {}, 200, '"object": "model"'),
    ("GET", "/v1/models/fox:latest", None, {}, 200, '"id": "fox:latest"'),
    ("GET", "/v1/models/gpt-4", None, {}, 404, "gpt-4"),
    ("GET", "/", None, {}, 404, "POST /v1/chat/completions, GET /v1/models"),
    ("GET", "/openapi.json", None, {}, 200, '"CompletionBody"'),
    ("GET", "/docs", None, {}, 200, "/openapi.json"),
    # Addresses of other servers, and of clients with another base URL.
    ("POST", "/v1/responses", BODY, {}, 404, "use POST /v1/chat/completions"),
    ("POST", "/api/chat", BODY, {}, 404, "use POST /v1/chat/completions"),
    ("POST", "/chat/completions", BODY, {}, 404, "end the client's base URL with /v1"),
    ("POST", "/v1/completions/completions", BODY, {}, 404, "end the client's base URL with /v1"),
    ("GET", "/models", None, {}, 404, "end the client's base URL with /v1"),
    ("POST", "/v1/chat/completions", BODY, {}, 400, "no chat template"),
    ("POST", "/v1/embeddings", BODY, {}, 404, "POST /v1/completions"),
    ("POST", "/v1/completions", BODY, {}, 200, "text_completion"),
    ("POST", "/v1/completions?api-version=2024-02-01", BODY, {}, 200, "text_completion"),
    ("POST", "/v1/completions", iter([BODY[:9].encode(), BODY[9:].encode()]), {}, 200, "text"),
    ("POST", "/v1/completions", None, {}, 400, "the body is empty"),
    ("POST", "/v1/completions", "{", {}, 400, "not JSON"),
    ("POST", "/v1/completions", "a" * 2**21, {}, 413, "longer than 1,048,576 bytes"),
    ("POST", "/v1/completions", iter([b" " * 2**20, b" "]), {}, 413, "longer than 1,048,576"),
    ("POST", "/v1/completions", BODY, {"Content-Type": "text/plain"}, 415, "application/json"),
    ("GET", "/v1/completions", None, {}, 405, "accepts POST, not GET"),
    ("DELETE", "/v1/models/tiny", None, {}, 405, "accepts GET, not DELETE"),
    ("OPTIONS", "/v1/completions", None, {"Origin": "http://evil.example"}, 403, "evil.example"),
]


@pytest.mark.parametrize("row", REQUESTS, ids=lambda row: f"{row[0]} {row[1]:.40} {row[4]}")
def test_a_request_gets_its_status_and_errors_are_json(url, row):
    method, path, body, headers, status, says = row
    answer, data = ask(url, method, path, body, headers)
    assert (answer.status, says in data.decode()) == (status, True), data
    if status >= 400:
        error = json.loads(data)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["type"] == "invalid_request_error"
        assert isinstance(error["code"], str | None)
        assert len(error["message"].splitlines()) == 1
    if status == 405:
        assert answer.headers["Allow"] in says


@pytest.mark.parametrize("allowed", ["http://fox.example:3000/", "*"])
def test_a_page_of_an_allowed_origin_may_ask(allowed):
    page = {"Origin": "http://fox.example:3000"}
    preflight = page | {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    with listening(Server(tiny_model(), CHARS), allow_origins=[allowed]) as url:
        asked, _ = ask(url, "OPTIONS", "/v1/completions", headers=preflight)
        assert (asked.status, asked.headers["Access-Control-Allow-Methods"]) == (200, "GET, POST")
        assert "authorization" in asked.headers["Access-Control-Allow-Headers"]
        for body, status in ((BODY, 200), (STREAM, 200), ("{", 400)):
            answer, _ = ask(url, "POST", "/v1/completions", body, page)
            assert answer.status == status
            assert answer.headers["Access-Control-Allow-Origin"] in ("*", page["Origin"])
        others, data = ask(url, "POST", "/v1/completions", BODY, {"Origin": "http://evil.example"})
        assert others.status == (200 if allowed == "*" else 403)
        assert allowed == "*" or b"--allow-origin http://evil.example" in data
        answer, _ = ask(url, "POST", "/v1/completions", BODY)
        assert "Access-Control-Allow-Origin" not in answer.headers


def raw(url: str, head: str, body: str = "", end: str = "\r\n") -> bytes:
    """All that comes back until the server closes the connection."""
    host, port = urlsplit(url).netloc.split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall((head + end + body).encode())
        return b"".join(iter(lambda: connection.recv(65536), b""))


def line(body: str) -> str:
    return f"Content-Length: {len(body)}\r\n"


CHUNKED = f"5\r\n{BODY[:5]}\r\n{len(BODY) - 5:X}\r\n{BODY[5:]}\r\n0\r\n\r\n"
POST = f"POST /v1/completions HTTP/1.1\r\n{HOST}{TYPE}"
CLOSE = "Connection: close\r\n"

# head and body; the server closes the connection after all
RAW = {
    "close": (POST + CLOSE + line(BODY), BODY),
    "close, streamed": (POST + CLOSE + line(STREAM), STREAM),
    "chunked": (POST + CLOSE + "Transfer-Encoding: chunked\r\n", CHUNKED),
    "HTTP/1.0": (f"POST /v1/completions HTTP/1.0\r\n{TYPE}" + line(BODY), BODY),
    "expect": (POST + CLOSE + "Expect: 100-continue\r\n" + line(BODY), BODY),
}


def written(answer: bytes) -> str:
    """The text of an answer, streamed or not."""
    head, _, body = answer.partition(b"\r\n\r\n")
    if b"content-length" in head:
        return json.loads(body)["choices"][0]["text"]
    lines = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: {")]
    return "".join(json.loads(line)["choices"][0]["text"] for line in lines)


@pytest.mark.parametrize("form", RAW)
def test_every_framing_gets_the_whole_answer(url, text, form):
    answer = raw(url, *RAW[form]).removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert written(answer) == text


def test_a_stream_to_a_client_of_http_1_0_has_no_chunks(url, text):
    """It ends with the connection."""
    answer = raw(url, f"POST /v1/completions HTTP/1.0\r\n{TYPE}{line(STREAM)}", STREAM)
    assert b"transfer-encoding" not in answer.partition(b"\r\n\r\n")[0].lower()
    assert answer.endswith(b"data: [DONE]\n\n")
    assert written(answer) == text


# Java's HttpClient asks for HTTP/2 in its first request, and goes on without it.
H2C = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAEAAEAAAAIA"}
OFFERS = {
    "none": {},
    "h2c": H2C,
}


@pytest.mark.parametrize("headers", OFFERS.values(), ids=OFFERS)
def test_connections_are_kept_for_the_next_request(url, text, headers, caplog):
    connection = HTTPConnection(urlsplit(url).netloc, timeout=20)
    for body in (BODY, STREAM, "{", BODY):
        connection.request("POST", "/v1/completions", body, JSON | headers)
        answer = connection.getresponse()
        data = answer.read()
        assert answer.status == (400 if body == "{" else 200)
        assert connection.sock is not None
        if body == BODY:
            assert json.loads(data)["choices"][0]["text"] == text
    connection.close()
    assert not caplog.records


def test_a_failure_is_json_in_one_line_and_logged(monkeypatch, caplog):
    server = Counted()

    def fail(data):
        raise RuntimeError("out of\nluck")

    monkeypatch.setattr(server.parser, "read", fail)
    with listening(server) as url:
        code, body = post(url, prompt="a")
        assert (code, body["error"]["type"], body["error"]["code"]) == (500, "server_error", None)
        assert body["error"]["message"] == "the server failed: RuntimeError"
    assert "out of\nluck" in caplog.text


def test_usage_comes_with_every_event_if_it_is_asked_for(url):
    options = {"include_usage": True, "continuous_usage_stats": True}
    found = list(events(url, prompt="abc", max_tokens=5, seed=5, stream_options=options))
    counts = [event["usage"]["completion_tokens"] for event in found]
    assert counts[-2:] == [5, 5]
    assert counts == sorted(counts)
    assert found[-1]["choices"] == []
    found = list(events(url, prompt="abc", max_tokens=5, stream_options={"include_usage": False}))
    assert all("usage" not in event for event in found)


def test_several_choices_of_several_prompts(url):
    code, body = post(url, prompt=["abc", "l"], n=2, max_tokens=5, seed=5)
    assert code == 200
    prompts = ["abc", "abc", "l", "l"]
    texts = [expected(tiny_model(), prompts[i], 5, seed=5 + i) for i in range(4)]
    assert [choice["text"] for choice in body["choices"]] == texts
    assert body["usage"] == {"prompt_tokens": 4, "completion_tokens": 20, "total_tokens": 24}
    streamed = ["", "", "", ""]
    for event in events(url, prompt=["abc", "l"], n=2, max_tokens=5, seed=5):
        (choice,) = event["choices"]
        streamed[choice["index"]] += choice["text"]
    assert streamed == texts


def test_a_text_that_does_not_fit_ends_with_the_context(url):
    code, body = post(url, prompt="abc", max_tokens=256, seed=5)
    (choice,) = body["choices"]
    assert (code, choice["finish_reason"]) == (200, "length")
    assert choice["text"] == expected(tiny_model(), "abc", 22, seed=5)
    assert body["usage"]["completion_tokens"] == 22
    assert post(url, prompt="abc", max_tokens=0)[1]["choices"][0]["text"] == ""
    assert post(url, prompt="abc", top_k=200, seed=5)[0] == 200


def test_fields_that_nobody_knows_are_logged_once_and_named_in_a_header(url, caplog):
    fields = {"prompt": "abc", "max_tokens": 3, "temprature": 1, "a b\r\n\u00e9": 2}
    many = {f"a field of tomorrow number {i}": i for i in range(100)}
    for stream in (False, True):
        answer, _ = ask(url, "POST", "/v1/completions", json.dumps(fields | {"stream": stream}))
        assert answer.headers["X-Ignored-Fields"] == "temprature, a b???"
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        'a client sent "temprature", which is ignored: did you mean temperature?',
        'a client sent "a b\\r\\n\\u00e9", which is ignored',
    ]
    answer, _ = ask(url, "POST", "/v1/completions", json.dumps(fields | many))
    assert len(answer.headers["X-Ignored-Fields"]) < 250
    caplog.clear()
    for end in "ab":  # names as long as a body are neither logged nor remembered as a whole
        ask(url, "POST", "/v1/completions", json.dumps(fields | {"y" * 10**5 + end: 1}))
    (record,) = caplog.records
    assert len(record.getMessage()) < 120
    answer, _ = ask(url, "POST", "/v1/completions", BODY)
    assert "X-Ignored-Fields" not in answer.headers


def test_any_name_of_a_model_is_answered_by_the_one_there_is(url):
    for name in (NAME, "fox:latest", "gpt-4o-mini", ""):
        code, body = post(url, prompt="abc", model=name, max_tokens=1)
        assert (code, body["model"]) == (200, NAME)
    listed = json.loads(ask(url, "GET", "/v1/models")[1])["data"]
    assert [model["id"] for model in listed] == [NAME, "fox:latest"]
