"""Clients of a server: no proxy for one on this machine; an error names the proxy for others."""

import json
import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from nanogpt.bench.arrivals import poisson
from nanogpt.bench.loaded_server import LoadedServer
from nanogpt.verify.server import RemoteServer, proxy_for

PROXY = "http://proxy.example:3128"


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Without the proxies of the machine that runs the tests."""
    for name in ("http", "https", "all", "no", "ftp"):
        monkeypatch.delenv(f"{name}_proxy", raising=False)
        monkeypatch.delenv(f"{name}_PROXY".upper(), raising=False)
    return monkeypatch


HERE = [
    "http://127.0.0.1:8000",
    "http://localhost:8000/v1",
    "http://LOCALHOST",
    "https://localhost:8000",
    "http://[::1]:8000",
    "http://127.8.9.1:8000",
    "http://0.0.0.0:8000",
]


@pytest.mark.parametrize("url", HERE)
def test_a_server_on_this_machine_has_no_proxy(environment, url):
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        environment.setenv(name, PROXY)
    assert proxy_for(url) is None


OTHERS = {  # the environment and the address, and how the proxy is shown (None: there is none)
    "upper case": ({"HTTP_PROXY": PROXY}, "http://far.example:1", f"HTTP_PROXY={PROXY}"),
    "lower case": ({"http_proxy": PROXY}, "http://far.example:1", f"http_proxy={PROXY}"),
    "https": ({"HTTPS_PROXY": PROXY}, "HTTPS://far.example", f"HTTPS_PROXY={PROXY}"),
    "the other scheme": ({"HTTPS_PROXY": PROXY}, "http://far.example", None),
    "all, as in urllib": ({"ALL_PROXY": PROXY}, "http://far.example", None),
    "an empty value": ({"HTTP_PROXY": ""}, "http://far.example", None),
    "no scheme": ({"HTTP_PROXY": "p.example:1"}, "http://far.example", "HTTP_PROXY=p.example:1"),
    "a password": (
        {"HTTP_PROXY": "http://me:se@cret@p.example:1"},
        "http://far.example",
        "HTTP_PROXY=http://***@p.example:1",
    ),
    "a password, no scheme": (
        {"HTTP_PROXY": "me:secret@p.example:1"},
        "http://far.example",
        "HTTP_PROXY=***@p.example:1",
    ),
    "another name for this machine": (
        {"HTTP_PROXY": PROXY},
        "http://localhost.far.example",
        f"HTTP_PROXY={PROXY}",
    ),
    "its host excluded": (
        {"HTTP_PROXY": PROXY, "NO_PROXY": "a.example,.far.example"},
        "http://x.far.example:1",
        None,
    ),
    "its port excluded": (
        {"HTTP_PROXY": PROXY, "no_proxy": "far.example:1"},
        "http://far.example:1",
        None,
    ),
    "another host excluded": (
        {"HTTP_PROXY": PROXY, "NO_PROXY": "a.example"},
        "http://far.example",
        f"HTTP_PROXY={PROXY}",
    ),
}


@pytest.mark.parametrize("case", OTHERS)
def test_the_proxy_for_another_host_is_shown_without_its_password(environment, case):
    variables, url, shown = OTHERS[case]
    for name, value in variables.items():
        environment.setenv(name, value)
    proxy = proxy_for(url)
    if shown is None:
        assert proxy is None
        return
    assert proxy.address in variables.values()
    assert proxy.about.startswith(f"{shown} (NO_PROXY=")


# ------------------------------------------------------------------ requests


class _Handler(BaseHTTPRequestHandler):
    """A server of one model that answers "a", or a proxy that forbids everything."""

    def do_GET(self):
        self.answer({"data": [{"id": "good"}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        choice = {"text": "a", "finish_reason": "length"}
        self.answer({"choices": [choice]}, stream=body.get("stream"))

    def answer(self, content, stream=False):
        self.server.asked.append(self.path)
        text = json.dumps(content)
        data = (f"data: {text}\n\ndata: [DONE]\n\n" if stream else text).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@contextmanager
def listening(status=200):
    """The server in a thread."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.status = status
    server.asked = []
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=[0.01], daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def closed():
    """An address where connections are refused: the port is taken, and nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.mark.parametrize("kind", [RemoteServer, LoadedServer])
def test_requests_to_this_machine_do_not_go_through_the_proxy(environment, kind):
    with listening() as server, listening(403) as proxy:
        environment.setenv("HTTP_PROXY", proxy.url)
        remote = kind(server.url)
        assert remote.ask([{"prompt": "a"}])[0]["text"] == "a"
        if kind is LoadedServer:
            assert len(remote(poisson(2, 100.0, 5, 16))) == 2
    assert server.asked
    assert not proxy.asked


@pytest.mark.parametrize("kind", [RemoteServer, LoadedServer])
def test_a_proxy_that_forbids_a_request_is_named(environment, kind):
    with listening(403) as proxy:
        environment.setenv("HTTP_PROXY", proxy.url.replace("//", "//me:secret@"))
        shown = proxy.url.replace("//", r"//\*\*\*@")
        with pytest.raises(
            ConnectionError, match=f"through the proxy HTTP_PROXY={shown} "
        ) as error:
            kind("http://far.example:8000")
    assert proxy.asked == ["http://far.example:8000/v1/models"]
    shown = proxy.url.replace("//", "//***@")
    assert f"through the proxy HTTP_PROXY={shown} (" in str(error.value)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("address", ["{}", "http://{}", "http://", "socks5://{}"])
def test_a_proxy_that_does_not_work_is_named(environment, closed, address):
    environment.setenv("http_proxy", address.format(closed))
    with pytest.raises(ConnectionError, match="no server answers at .* through the proxy http_pro"):
        RemoteServer("http://far.example:8000")


def test_a_load_test_of_another_host_goes_through_the_proxy(environment):
    with listening() as proxy:
        environment.setenv("HTTP_PROXY", proxy.url)
        replies = LoadedServer("http://far.example:8000")(poisson(2, 100.0, 5, 16))
    assert len(replies) == 2
    assert proxy.asked[-2:] == ["http://far.example:8000/v1/completions"] * 2


@pytest.mark.parametrize("url", ["far.example:8000", "ftp://far.example", "http://[::1", ""])
def test_a_malformed_address_is_refused(url):
    with pytest.raises(ValueError, match=r"is not a server's address: write http://HOST:PORT"):
        RemoteServer(url)
