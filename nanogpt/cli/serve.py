"""python -m nanogpt serve: a model behind HTTP, with the completions part of OpenAI's interface.

python -m nanogpt serve                           the one that ships, at http://127.0.0.1:8000
python -m nanogpt serve MINE --port 0             another checkpoint, at a free port
python -m nanogpt serve --with transformers       an export of it, served by another program
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path

from ..system.files import PUBLISHED
from .common import add_shared, command_parser, exit_code, set_threads

SERVERS = ("nanogpt", "transformers", "vllm")
LENGTH = 100  # characters of the first answer


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 ended by Ctrl-C, 1 another program's server died, 2 it could not be started."""
    args = options().parse_args(argv)
    with _ended_by_signals():
        return exit_code(lambda: run(args))


@contextmanager
def _ended_by_signals():
    """SIGTERM, and a terminal that closes, end what was started, as Ctrl-C does."""
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

    set_threads(args.threads)
    if args.server != "nanogpt":
        return _peer(args, load_checkpoint(args.checkpoint))
    from ..server.running import bound, serving

    saved, name = load_checkpoint(args.checkpoint), Path(args.checkpoint).stem
    with (
        bound(args.host, args.port) as sockets,  # before the work: the port may be in use
        serving(_server(args, saved, name), sockets) as url,
        _until_stopped(),
    ):
        if args.host not in ("127.0.0.1", "localhost", "::1"):
            print(f"open to all who reach {args.host}: it asks for no password")
        _first(url, name, saved)
        _stay(args.once)
    return 0


def _server(args: argparse.Namespace, saved, name: str):
    """Our own server, not started yet."""
    from ..engines.toolchain import CannotBuild
    from ..model.convert import pack_heads
    from ..server.server import Limits, Server
    from ..serving.modules import ModuleBackend
    from ..serving.native import NativeBackend
    from ..system.device import pick_device

    device = pick_device(args.device)
    model = saved.model.to(device.device).eval()
    limits = Limits(args.running, args.waiting, timeout=args.timeout)
    settings = {"name": name, "limits": limits}
    why = NativeBackend.supports(model)
    if args.backend != "modules" and not why:
        try:
            server = Server(model, saved.tokenizer, backend=NativeBackend, **settings)
            print(f"{saved}\nnative code, one thread", flush=True)
            return server
        except CannotBuild as error:
            why = str(error)
    if args.backend == "native":
        raise ValueError(f"--backend native: {why}")
    print(f"{saved}\nPyTorch's modules, {device}" + (f" ({why})" if why else ""), flush=True)
    if model.config.per_head:  # the same function, sooner
        model = pack_heads(model)
    return Server(model, saved.tokenizer, backend=ModuleBackend, **settings)


def _peer(args: argparse.Namespace, saved) -> int:
    """Another program's server, on 127.0.0.1, until it ends or is ended."""
    from ..server.child import Died, free_port
    from ..server.peers import PEERS, peer_server
    from ..server.running import bound

    if args.host != "127.0.0.1":
        raise ValueError(f"--host {args.host}: only our own server is started elsewhere")
    with bound(args.host, args.port):  # it may be in use
        pass
    peer, port = PEERS[args.server], args.port or free_port()
    own = str(peer.home) if peer.home and peer.home.is_file() else sys.executable
    print(f"{saved}\nstarting {peer.name} with an export of it", flush=True)
    say = Said(peer.name)
    try:
        with peer_server(peer, saved, args.python or own, port, say=say) as (child, name):
            say.end()
            with _until_stopped():
                try:
                    _first(f"http://127.0.0.1:{port}", name, saved)
                except (OSError, ValueError):
                    child.check("at its first request", wait=1.0)
                    raise
                _stay(args.once, child)
            return 0
    except Died as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


class Said:
    """How long a start takes: a line that changes on a terminal, else one every five seconds."""

    def __init__(self, name: str):
        self.name, self.last, self.tty = name, 0.0, sys.stdout.isatty()

    def __call__(self, seconds: float) -> None:
        if seconds - self.last >= (0.5 if self.tty else 5):
            self.last = seconds
            print(
                f"{self.name} is starting: {seconds:.0f} s", end="\r" * self.tty or "\n", flush=True
            )

    def end(self) -> None:
        print(end="\n" * (self.tty and self.last > 0))


def _first(url: str, name: str, saved) -> None:
    """Stream one greedy text, compare it with ours, and say how to ask for others."""
    import torch

    from ..decoding.generate import complete
    from ..decoding.sampling import SamplingParams
    from ..server.client import stream

    chars, block = saved.tokenizer.chars, saved.model.config.block_size
    prompt = "KING:" if set("KING:") <= set(chars) and block > 5 else chars[0]
    n, tokens = max(1, min(LENGTH, block - len(prompt))), saved.tokenizer.encode(prompt)
    fields = {"model": name, "prompt": prompt, "max_tokens": n, "temperature": 0}
    print(f"{url} is ready; its first text:\n\n{prompt}", end="", flush=True)
    found = ""
    for piece in stream(url, **fields):
        found += piece
        print(piece, end="", flush=True)
    device = saved.model.lm_head.weight.device
    with torch.no_grad():
        ours = complete(saved.model, tokens[None].to(device), n, SamplingParams(greedy=True))
        ours = saved.tokenizer.decode(ours[0, len(tokens) :])
        print(f"\n\n{_compared(saved, prompt, ours, found)}")
    body = shlex.quote(json.dumps(fields))
    print(
        f"\ncurl {url}/v1/completions -H 'Content-Type: application/json' -d {body}\n", flush=True
    )


def _compared(saved, prompt: str, ours: str, found: str) -> str:
    """Whether the text is that of `generate`; if not, where they part and by how little."""
    if found == ours:
        return f"the same as generate's: {len(ours)} characters of {len(ours)}"
    same = len(os.path.commonprefix([ours, found]))
    text = saved.tokenizer.encode(prompt + ours[:same])[None]
    device = saved.model.lm_head.weight.device
    first, second = saved.model(text.to(device))[0][0, -1].topk(2).values.tolist()
    return (
        f"NOT the same as generate's from character {same} on: it has {found[same : same + 1]!r}, "
        f"ours {ours[same : same + 1]!r}, by logits that are {first - second:.2g} apart"
    )


def _stay(once: bool, child=None) -> None:
    """For ever, unless asked for one text alone. Raises Died when the child ends."""
    if not once:
        print("Ctrl-C ends it", flush=True)
    while not once:
        time.sleep(0.5 if child else 3600)
        if child:
            child.check("after it had been ready")


@contextmanager
def _until_stopped():
    """Ctrl-C and SIGTERM end the block, and nothing is wrong."""
    try:
        yield
    except KeyboardInterrupt:
        print("\nending", flush=True)


def options() -> argparse.ArgumentParser:
    """All options."""
    parser = command_parser("serve", "Serve a model over HTTP: /v1/completions, as OpenAI's.")
    add = parser.add_argument
    small = PUBLISHED / "checkpoints" / "small"
    add("checkpoint", nargs="?", default=small, help="the one that ships, without")
    add("--with", dest="server", choices=SERVERS, default="nanogpt", help="which server (nanogpt)")
    add("--host", default="127.0.0.1", help="where to listen (127.0.0.1: this machine alone)")
    add("--port", type=int, default=8000, metavar="N", help="0: any free one (8000)")
    add("--backend", choices=["native", "modules"], help="native, where it can be built")
    add("--running", type=int, default=64, metavar="N", help="most requests in a step (64)")
    add("--waiting", type=int, default=256, metavar="N", help="most that wait beside them (256)")
    add("--timeout", type=float, default=60.0, metavar="S", help="seconds of a request (60)")
    add("--once", action="store_true", help="end after the first text")
    add("--python", metavar="PATH", help="the Python that has the other server's packages")
    add_shared(parser, "--threads", "--device")
    return parser
