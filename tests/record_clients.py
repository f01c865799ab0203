"""Write client_bodies.json again: the bodies that the installed clients send, with their versions.

    python tests/record_clients.py

in an environment with `pip install -e ".[test,clients]"`. Each call of client_calls.py is made to a
server that answers every request with one short text, streamed where that is asked for.
"""

from __future__ import annotations

import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path

from client_calls import CALLS, QUIET

FILE = Path(__file__).with_name("serving") / "client_bodies.json"
ANSWER = "ok"
USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


class Handler(BaseHTTPRequestHandler):
    """Keeps the body of each request, and answers."""

    def do_POST(self) -> None:
        # 1. Keep what was asked.
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.received.append((self.path, body))
        # 2. Answer as the API does: one object, or events that end with [DONE].
        if not body.get("stream"):
            return self.answer("application/json", json.dumps(self.event(body, "message")))
        events = [json.dumps(self.event(body, "delta"))]
        if (body.get("stream_options") or {}).get("include_usage"):
            events.append(json.dumps(self.event(body, "delta") | {"choices": []}))
        text = "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"])
        return self.answer("text/event-stream", text)

    def event(self, body: dict, name: str) -> dict:
        """An answer or a part of it, to which chats refer as `name`."""
        choice = {"index": 0, "finish_reason": "stop", "logprobs": None}
        kind = "text_completion"
        if "prompt" in body:
            choice["text"] = ANSWER
        else:
            choice[name] = {"role": "assistant", "content": ANSWER, "refusal": None}
            kind = "chat.completion" + ".chunk" * (name == "delta")
        head = {"id": "1", "object": kind, "created": 1, "model": body["model"]}
        return head | {"choices": [choice], "usage": USAGE}

    def answer(self, kind: str, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args) -> None:
        pass


def recorded() -> list[dict]:
    """Each body that is sent, once, with the calls that send it."""
    # 1. A server on this machine that answers at once.
    rows: dict[str, dict] = {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for call in CALLS:
        # 2. The call. One that is refused by `serve` gets an answer here that it cannot use.
        server.received = []
        try:
            call.run(f"http://127.0.0.1:{server.server_port}")
        except Exception as error:
            print(f"{call}: {type(error).__name__}: {str(error)[:60]!r}")
        assert server.received, call
        # 3. One body for each question, without the client's repetitions.
        for path, body in server.received[: len(call.questions)]:
            row = {"path": path, "refused": call.refused, "body": body}
            row = rows.setdefault(json.dumps(row, sort_keys=True), row | {"clients": []})
            row["clients"].append(f"{call.package} {version(call.package)}: {call}")
    server.shutdown()
    return [*rows.values()]


def main() -> None:
    os.environ.update(QUIET)
    lines = [json.dumps(row, sort_keys=True) for row in recorded()]
    FILE.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")
    print(f"{len(lines)} bodies in {FILE}")


if __name__ == "__main__":
    main()
