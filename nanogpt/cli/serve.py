"""python -m nanogpt serve: serve a model over HTTP, with OpenAI's completions and chat API."""

from __future__ import annotations

import argparse
import gc
import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..files import KEEPER
from .common import add_lesson, add_shared, set_threads, weights_for
from .pretrained import SOURCES, TOKENIZER, load_on, short_name, size_text

if TYPE_CHECKING:
    from ..decoder.checkpoint import Checkpoint
    from ..model import LanguageModel
    from ..serving.parser import RequestParser
    from ..serving.server import Server


def run(args: argparse.Namespace) -> int:
    """Start the server, print how to query it, and run until a signal ends it.

    The exit code is then 0, the normal end of a server; 1: the server failed.
    """
    from ..decoder.checkpoint import load_checkpoint
    from ..serving.app import check_origin
    from ..serving.http import bind, listening

    set_threads(args.threads)
    # What can be wrong is found before the model is loaded, which may take a minute.
    for origin in args.allow_origin:
        check_origin(origin)
    if not all(args.name or ["a name"]):
        raise ValueError("--name '': write a name, or leave it out for the checkpoint's")
    for one in bind(args.host, args.port):  # is the port free?
        one.close()
    if args.tokenizer and not args.model:
        raise ValueError("--tokenizer is for --model: leave it out")
    if args.model:
        server = _pretrained_server(args)
    else:
        args.checkpoint = weights_for(args, KEEPER)
        server = _server(args, load_checkpoint(args.checkpoint))
    gc.collect()  # weights packed by native code
    gc.freeze()  # otherwise a garbage collection now and then scans all of PyTorch: 0.1 s
    try:
        where = (args.host, args.port, args.allow_host, args.allow_origin)
        with listening(server, *where) as url:
            if args.host not in ("127.0.0.1", "localhost", "::1"):
                print(f"warning: open to everyone who can reach {args.host}, without a password")
            _introduce(url, server.parser)
            while server.thread.is_alive():
                server.thread.join(1.0)
    except KeyboardInterrupt:
        print("\nending", flush=True)
    if server.failure:
        print(f"error: {server.trouble}", file=sys.stderr)
    return int(server.failure is not None)


def _introduce(url: str, parser: RequestParser) -> None:
    """Print that it is ready, and a request that this model can answer."""
    from ..data import CharTokenizer
    from ..serving.texts import template_of

    tokenizer = parser.tokenizer
    path = "/v1/completions"
    asked: dict[str, object] = {"prompt": "The"}
    if isinstance(tokenizer, CharTokenizer):
        fits = set("KING:") <= set(tokenizer.chars) and parser.longest > 5
        letter = next(filter(str.isalpha, tokenizer.chars), tokenizer.chars[0])
        asked = {"prompt": "KING:" if fits else letter}
    elif template_of(tokenizer):
        path = "/v1/chat/completions"
        asked = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}
    body = json.dumps({"model": parser.name, **asked, "max_tokens": 16})
    print(f"{url} is ready; for example\n")
    print(f"curl {url}{path} -H 'Content-Type: application/json' -d {shlex.quote(body)}")
    print("\nCtrl-C ends it", flush=True)


def _pretrained_server(args: argparse.Namespace) -> Server:
    """The server of a pretrained model, not started yet."""
    from ..device import pick_device
    from ..serving.native_steps import BACKENDS
    from ..serving.server import Server

    if args.lesson or args.checkpoint != KEEPER:
        other = "--lesson" if args.lesson else f"the checkpoint {args.checkpoint}"
        raise ValueError(
            f"--model {args.model} and {other}: only one model is served; leave one out"
        )
    device = pick_device(args.device)
    model, tokenizer = load_on(device.device, args.model, tokenizer=args.tokenizer)
    backend, note = _backend_for(args, model)
    print(f"{args.model}: {size_text(model)}\n{note}, {device}", flush=True)
    server = Server(
        model,
        tokenizer,
        **_names(args, short_name(args.model)),
        backend=BACKENDS[backend],
        **_limits(args),
    )
    n = server.engine.positions
    memory = model.cache_bytes(n) / 1e9
    longest = server.parser.longest
    print(f"texts of up to {longest:,} tokens; caches of {n:,}, up to {memory:.1f} GB", flush=True)
    return server


def _server(args: argparse.Namespace, saved: Checkpoint) -> Server:
    """The server, not started yet."""
    from ..decoder.pack import as_decoder
    from ..decoder.standard import not_standard
    from ..device import pick_device
    from ..serving.native_steps import BACKENDS
    from ..serving.server import Server

    device = pick_device(args.device)
    model = saved.model.to(device.device).eval()
    names = _names(args, Path(args.checkpoint).stem)
    if args.lesson:
        if args.backend == "native":
            raise ValueError(
                "--lesson serves your heads, which native code does not run: leave out --backend"
            )
        from ..course.practice import lesson_of, model_with
        from ..serving.modules import ModuleBackend

        model = model_with(lesson_of(args.lesson, "Head"), model)
        note = "the scheduler's blocks replace your cache"
        print(f"{saved}\n{note}, {device}", flush=True)
        return Server(model, saved.tokenizer, backend=ModuleBackend, **names, **_limits(args))
    backend, note = _backend_for(args, saved.model)
    print(f"{saved}\n{note}, {device}", flush=True)
    if backend == "modules" and not_standard(model) is None:
        model = as_decoder(model)  # the same function, faster
    return Server(model, saved.tokenizer, backend=BACKENDS[backend], **names, **_limits(args))


def _names(args: argparse.Namespace, usual: str) -> dict[str, Any]:
    """The name that responses give, and its aliases."""
    name, *aliases = args.name or [usual]
    return {"name": name, "aliases": aliases}


def _limits(args: argparse.Namespace) -> dict[str, Any]:
    """How many requests may run at a time, and the time limit of each."""
    usual = 600.0 if args.model else 60.0
    timeout = usual if args.timeout is None else args.timeout
    return {"running": args.running, "timeout": timeout}


def _backend_for(args: argparse.Namespace, model: LanguageModel) -> tuple[str, str]:
    """The name of the backend, and a note about it."""
    from ..serving.native_steps import choose_backend

    backend, reason = (args.backend, "") if args.backend else choose_backend(model)
    return backend, f"{backend} steps{f': {reason}' if reason else ''}"


def options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("checkpoint", nargs="?", default=KEEPER, help="its path (the bundled model)")
    add("--model", metavar="SOURCE", help=f"a pretrained model instead: {SOURCES}")
    named = "its name in responses (the checkpoint's); again: an alias that /v1/models lists too"
    add("--name", action="append", metavar="NAME", help=named)
    add("--tokenizer", type=Path, metavar="FOLDER", help=TOKENIZER)
    add("--host", default="127.0.0.1", help="address to listen on (127.0.0.1: only this machine)")
    add("--port", type=int, default=8000, metavar="N", help="0: any free port (8000)")
    add(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="its host name behind a proxy",
    )
    pages = "a web origin that may call it, for example http://localhost:3000; *: all"
    add("--allow-origin", action="append", default=[], metavar="URL", help=pages)
    add("--backend", choices=["native", "modules"], help="native, if it can be built")
    add_lesson(parser, "serve with your heads")
    add("--running", type=int, default=64, metavar="N", help="maximum requests per step (64)")
    limit = "time limit per request in seconds (60; with --model 600)"
    add("--timeout", type=float, metavar="S", help=limit)
    add_shared(parser, "--threads", "--device")


CALLS = {"serve": (options, run)}
