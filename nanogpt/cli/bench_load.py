"""python -m nanogpt bench load: throughput and latency under a stream of requests.

python -m nanogpt bench load --json                        random weights of the small shape
python -m nanogpt bench load --checkpoint PATH --rates 5,20,inf --peer hf
python -m nanogpt bench load --url http://127.0.0.1:8000   a server with OpenAI's completions
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ..benchmarks import batching_peer, remote, remote_load
from ..benchmarks.arrivals import Load
from ..benchmarks.decoding import sharpened
from ..benchmarks.load import load
from ..benchmarks.schemes import BACKENDS
from ..config.shapes import SIZES
from ..export.huggingface import exported
from ..model.checkpoint import load_checkpoint
from ..model.convert import pack_heads
from ..model.gpt import GPT
from ..system.device import pick_device
from ..system.environment import environment
from ..system.files import check_writable, write_json
from .common import add_json, add_shared, command_parser, exit_code, json_path, set_threads
from .load_table import report


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 measured, 1 tokens differ or requests failed, 2 no result, 130 stopped."""
    args = options().parse_args(argv)
    return exit_code(lambda: run(args))


def run(args: argparse.Namespace) -> int:
    """Measure as the options say, print the table and write the JSON."""
    rates = [_number("--rates", part) for part in args.rates.split(",")]
    limits = {name: ms / 1000 for name, ms in map(_limit, filter(None, args.goodput.split(",")))}
    name = Path(args.checkpoint).stem if args.checkpoint else args.size
    path = json_path(args.json, f"load-{'server' if args.url else name}.json")
    if args.url and args.peer:
        raise ValueError("--url measures a server as it is: leave --peer out, or --url")
    to = _others(args)
    set_threads(args.threads)
    device = pick_device(args.device)
    model, chars = _model(args, device.device)
    chosen = {"repeats": args.repeats, "limits": limits}
    if args.url:
        result = _of_server(args, rates, model, chars, chosen)
    else:
        result = {"model": name, **_of_engine(args, rates, model, chosen)}
    print(report(result))
    result = {"what": "load", "environment": environment(device), **result}
    if path:
        write_json(path, result)
    if args.add:
        path = args.add
        write_json(path, remote_load.add_rows(result, to))
    if path:
        print(f"\nwritten: {path}")
    wrong = [row for row in result["rows"] if row["equal"] is False or row.get("failed")]
    return 1 if wrong else 0


def _model(args: argparse.Namespace, device) -> tuple[GPT | None, str]:
    """The model, if one is needed, and the characters of prompts for a server."""
    chars = remote.CHARS
    if args.checkpoint:
        saved = load_checkpoint(args.checkpoint)
        model, chars = saved.model, saved.tokenizer.chars
    elif args.url:
        return None, chars
    else:
        model = sharpened(GPT(SIZES[args.size]))
    if model.config.per_head:  # the same function, sooner
        model = pack_heads(model)
    return model.to(device).eval(), chars


def _of_engine(args: argparse.Namespace, rates: list[float], model: GPT, chosen: dict) -> dict:
    asked = Load(args.requests, args.seed, args.shared, greedy=args.peer is not None)
    chosen |= {"backend": BACKENDS[args.backend], "running": args.running, "budget": args.budget}
    if args.peer:
        peer = batching_peer.continuous_batching(*exported(model), args.running)
        chosen["peers"] = {batching_peer.NAME: peer}
    result = load(model, rates, asked=asked, real=args.real, **chosen)
    return {"backend": args.backend, **result}


def _of_server(
    args: argparse.Namespace, rates: list[float], model: GPT | None, chars: str, chosen: dict
) -> dict:
    how = {"temperature": args.temperature, "timeout": args.timeout, "remote": args.remote}
    target = remote.Target(args.url, args.model, chars, **how)
    asked = Load(args.requests, args.seed, args.shared, greedy=True)
    block_size = (model.config if model else SIZES[args.size]).block_size
    chosen |= {"asked": asked, "block_size": block_size, "model": model, "label": args.label}
    return remote_load.remote_load(target, rates, **chosen)


def _others(args: argparse.Namespace) -> dict | None:
    """The result in the file of --add. Raises ValueError and OSError."""
    if not args.add:
        return None
    if not args.url:
        raise ValueError("--add takes the rows of a server: give --url, too")
    check_writable(args.add)
    try:
        found = json.loads(args.add.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"--add {args.add}: it is no JSON: {error}") from None
    if not isinstance(found, dict) or found.get("what") != "load":
        raise ValueError(f"--add {args.add}: it was not written by bench load --json")
    return found


def _number(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{option}: {text!r} is not a number") from None


def _limit(text: str) -> tuple[str, float]:
    name, _, ms = text.partition(":")
    return name, _number("--goodput", ms)


def options() -> argparse.ArgumentParser:
    """All options."""
    parser = command_parser("bench load", "Throughput and latency under a stream of requests.")
    add = parser.add_argument
    add("--size", choices=sorted(SIZES), default="small")
    add("--checkpoint", metavar="PATH", help="trained weights instead of random ones")
    add("--rates", default="5,20,80,inf", metavar="LIST", help="requests a second (5,20,80,inf)")
    add("--requests", type=int, default=64, metavar="N", help="requests at each rate (64)")
    add("--seed", type=int, default=1, metavar="N", help="of arrivals, lengths and prompts (1)")
    add("--shared", type=float, default=0.5, metavar="X", help="share that begin alike (0.5)")
    add("--repeats", type=int, default=3, metavar="N", help="timed repeats after a warm-up (3)")
    add(
        "--goodput",
        default="ttft:500,tpot:50",
        metavar="LIMITS",
        help="milliseconds that a good request meets: ttft, tpot, e2el (ttft:500,tpot:50)",
    )
    add_shared(parser, "--threads", "--device")
    add_json(parser, "load-SIZE.json")
    _add_engine(parser.add_argument_group("our engine"))
    _add_server(parser.add_argument_group("a server instead"))
    return parser


def _add_engine(group) -> None:
    add = group.add_argument
    add("--backend", choices=sorted(BACKENDS), default="modules")
    add("--running", type=int, default=32, metavar="N", help="most texts in a step (32)")
    add("--budget", type=int, default=64, metavar="N", help="most tokens in a chunked step (64)")
    add("--real", action="store_true", help="wait for arrivals, instead of a virtual clock")
    add(
        "--peer",
        choices=["hf"],
        help="beside Hugging Face's continuous batching of these weights, greedy, in real time "
        "(requirements-peers.txt)",
    )


def _add_server(group) -> None:
    add = group.add_argument
    add("--url", metavar="URL", help="its address, as in http://127.0.0.1:8000")
    add("--model", default="", metavar="NAME", help="the model that it is asked for (its first)")
    add("--label", metavar="NAME", help="its name in the table (the model's)")
    add("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy (0)")
    add("--timeout", type=float, default=60.0, metavar="S", help="seconds without a byte (60)")
    add("--remote", action="store_true", help="it may be another machine than this one")
    add("--add", type=Path, metavar="JSON", help="add its rows to a result of bench load --json")
