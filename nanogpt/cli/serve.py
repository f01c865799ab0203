"""python -m nanogpt serve: a model behind HTTP, with the completions part of OpenAI's interface.

python -m nanogpt serve                           the one that ships, at http://127.0.0.1:8000
python -m nanogpt serve MINE --port 0             another checkpoint, at a free port
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import sys
import urllib.request
from contextlib import contextmanager
from pathlib import Path

from ..system.files import WEIGHTS
from .common import add_shared, command_parser, exit_code, set_threads

LENGTH = 100  # characters of the first text


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 ended by Ctrl-C, 1 its engine failed, 2 it could not be started."""
    args = options().parse_args(argv)
    with _ended_by_signals():
        return exit_code(lambda: run(args))


@contextmanager
def _ended_by_signals():
    """SIGTERM, and a terminal that closes, end the server as Ctrl-C does."""
    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {
        number: signal.signal(number, signal.default_int_handler)
        for number in (getattr(signal, name) for name in names)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run(args: argparse.Namespace) -> int:
    """Start the server, ask it for one text, and stay."""
    from ..model.checkpoint import load_checkpoint
    from ..server.running import serving

    set_threads(args.threads)
    saved = load_checkpoint(args.checkpoint)
    server = _server(args, saved)
    prompt, expected = _expected(saved)  # before anybody is served with this model
    try:
        with serving(server, args.host, args.port) as url:
            if args.host not in ("127.0.0.1", "localhost", "::1"):
                print(f"open to all who reach {args.host}: it asks for no password")
            _first(url, server.name, prompt, expected)
            if not args.once:
                print("Ctrl-C ends it", flush=True)
            while not args.once and server.thread.is_alive():
                server.thread.join(1.0)
    except KeyboardInterrupt:
        print("\nending", flush=True)
    except OSError:
        if not server.thread.failure:
            raise
    if server.thread.failure:
        print(f"error: {server.trouble}", file=sys.stderr)
    return int(server.thread.failure is not None)


def _server(args: argparse.Namespace, saved):
    """The server, not started yet."""
    from ..model.convert import pack_heads
    from ..server.server import Server
    from ..serving.native import BACKENDS, choose_backend
    from ..system.device import pick_device

    device = pick_device(args.device)
    model = saved.model.to(device.device).eval()
    backend, why = (args.backend, "") if args.backend else choose_backend(saved.model)
    print(f"{saved}\n{backend} steps{f': {why}' if why else ''}, {device}", flush=True)
    if backend == "modules" and model.config.per_head:  # the same function, sooner
        model = pack_heads(model)
    limits = {limit: getattr(args, limit) for limit in ("running", "waiting", "timeout")}
    name = Path(args.checkpoint).stem
    return Server(model, saved.tokenizer, name=name, backend=BACKENDS[backend], **limits)


def _expected(saved) -> tuple[str, str]:
    """A prompt, and the greedy text that `generate` writes after it."""
    import torch

    from ..decoding.generate import complete
    from ..decoding.sampling import SamplingParams

    chars, block = saved.tokenizer.chars, saved.model.config.block_size
    prompt = "KING:" if set("KING:") <= set(chars) and block > 5 else chars[0]
    n, tokens = max(1, min(LENGTH, block - len(prompt))), saved.tokenizer.encode(prompt)[None]
    with torch.no_grad():
        tokens = tokens.to(saved.model.lm_head.weight.device)
        text = complete(saved.model, tokens, n, SamplingParams(greedy=True))[0]
    return prompt, saved.tokenizer.decode(text[len(prompt) :])


def _first(url: str, name: str, prompt: str, expected: str) -> None:
    """Ask for one greedy text, compare it with generate's, and say how to ask for others."""
    fields = {"model": name, "prompt": prompt, "max_tokens": len(expected), "temperature": 0}
    address, body = f"{url}/v1/completions", json.dumps(fields)
    with urllib.request.urlopen(address, body.encode(), timeout=60) as answer:
        found = json.load(answer)["choices"][0]["text"]
    print(f"{url} is ready; its first text:\n\n{prompt}{found}\n")
    if found == expected:
        print(f"the same as generate's: {len(found)} characters of {len(expected)}")
    else:
        same = len(os.path.commonprefix([found, expected]))
        print(f"NOT the same as generate's from character {same} on: {expected[same:]!r}")
    curl = f"curl {address} -H 'Content-Type: application/json' -d {shlex.quote(body)}"
    print(f"\n{curl}\n", flush=True)


def options() -> argparse.ArgumentParser:
    """All options."""
    parser = command_parser("serve", "Serve a model over HTTP: /v1/completions, as OpenAI's.")
    add = parser.add_argument
    small = WEIGHTS / "small"
    add("checkpoint", nargs="?", default=small, help="the one that ships, without")
    add("--host", default="127.0.0.1", help="where to listen (127.0.0.1: this machine alone)")
    add("--port", type=int, default=8000, metavar="N", help="0: any free one (8000)")
    add("--backend", choices=["native", "modules"], help="native, where it can be built")
    add("--running", type=int, default=64, metavar="N", help="most requests in a step (64)")
    add("--waiting", type=int, default=256, metavar="N", help="most that wait beside them (256)")
    add("--timeout", type=float, default=60.0, metavar="S", help="seconds of a request (60)")
    add("--once", action="store_true", help="end after the first text")
    add_shared(parser, "--threads", "--device")
    return parser
