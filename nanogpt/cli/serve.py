"""python -m nanogpt serve: a model behind HTTP, with the completions part of OpenAI's interface."""

from __future__ import annotations

import argparse
import gc
import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..files import KEEPER
from .common import add_lesson, add_shared, set_threads, weights_for

if TYPE_CHECKING:
    from ..decoder.checkpoint import Checkpoint
    from ..serving.completions import Reader
    from ..serving.http import Server


def run(args: argparse.Namespace) -> int:
    """Start the server, say how to ask it, and stay until a signal ends it.

    Exit code 0 then, as a server is always ended so; 1: the server failed.
    """
    from ..decoder.checkpoint import load_checkpoint
    from ..serving.http import listening

    set_threads(args.threads)
    args.checkpoint = weights_for(args, KEEPER)
    server = _server(args, load_checkpoint(args.checkpoint))
    gc.freeze()  # or a search for garbage, now and then, looks through all of PyTorch: 0.1 s
    try:
        where = (args.host, args.port, args.allow_host, args.allow_origin)
        with listening(server, *where) as url:
            if args.host not in ("127.0.0.1", "localhost", "::1"):
                print(f"open to all who reach {args.host}: it asks for no password")
            _introduce(url, server.reader)
            while server.thread.is_alive():
                server.thread.join(1.0)
    except KeyboardInterrupt:
        print("\nending", flush=True)
    if server.failure:
        print(f"error: {server.trouble}", file=sys.stderr)
    return int(server.failure is not None)


def _introduce(url: str, reader: Reader) -> None:
    """Say that it is ready, and a request that this model can answer."""
    chars = reader.tokenizer.chars
    prompt = "KING:" if set("KING:") <= set(chars) and reader.longest > 5 else chars[0]
    body = json.dumps({"model": reader.name, "prompt": prompt, "max_tokens": 16})
    print(f"{url} is ready; ask it, as in\n")
    print(f"curl {url}/v1/completions -H 'Content-Type: application/json' -d {shlex.quote(body)}")
    print("\nCtrl-C ends it", flush=True)


def _server(args: argparse.Namespace, saved: Checkpoint) -> Server:
    """The server, not started yet."""
    from ..decoder.pack import as_decoder
    from ..decoder.standard import not_standard
    from ..device import pick_device
    from ..serving.http import Server
    from ..serving.native_steps import BACKENDS, choose_backend

    device = pick_device(args.device)
    model = saved.model.to(device.device).eval()
    limits = {limit: getattr(args, limit) for limit in ("running", "waiting", "timeout")}
    name = Path(args.checkpoint).stem
    if args.lesson:
        from ..series.practice import lesson_of, model_with
        from ..serving.modules import ModuleBackend

        model = model_with(lesson_of(args.lesson, "Head"), model)
        note = "blocks of the scheduler stand where your cache would"
        print(f"{saved}\n{note}, {device}", flush=True)
        return Server(model, saved.tokenizer, name=name, backend=ModuleBackend, **limits)
    backend, reason = (args.backend, "") if args.backend else choose_backend(saved.model)
    print(f"{saved}\n{backend} steps{f': {reason}' if reason else ''}, {device}", flush=True)
    if backend == "modules" and not_standard(model) is None:
        model = as_decoder(model)  # the same function, faster
    return Server(model, saved.tokenizer, name=name, backend=BACKENDS[backend], **limits)


def options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("checkpoint", nargs="?", default=KEEPER, help="its path (the model that ships)")
    add("--host", default="127.0.0.1", help="where to listen (127.0.0.1: this machine alone)")
    add("--port", type=int, default=8000, metavar="N", help="0: any free one (8000)")
    add("--allow-host", action="append", default=[], metavar="NAME", help="its name behind a proxy")
    pages = "a page that may ask it, as http://localhost:3000; *: all"
    add("--allow-origin", action="append", default=[], metavar="URL", help=pages)
    add("--backend", choices=["native", "modules"], help="native, where it can be built")
    add_lesson(parser, "its heads serve")
    add("--running", type=int, default=64, metavar="N", help="most requests in a step (64)")
    add("--waiting", type=int, default=256, metavar="N", help="most that wait beside them (256)")
    add("--timeout", type=float, default=60.0, metavar="S", help="seconds of a request (60)")
    add_shared(parser, "--threads", "--device")


CALLS = {"serve": (options, run)}
