"""python -m nanogpt bench load: throughput and latency under a stream of requests.

python -m nanogpt bench load --json                        random weights of the small shape
python -m nanogpt bench load --checkpoint PATH --rates 5 20 inf
python -m nanogpt bench load --url http://127.0.0.1:8000   a server with OpenAI's completions
"""

from __future__ import annotations

import argparse
from math import inf
from pathlib import Path

from ..benchmarks.arrivals import LATENCIES, Workload
from ..benchmarks.decoding import sharpened
from ..benchmarks.load import load, schemes
from ..benchmarks.peers import CHARS, HTTPServer
from ..benchmarks.roofline import Limits
from ..benchmarks.timing import number_of, summary_text
from ..config.shapes import SIZES
from ..model.checkpoint import load_checkpoint
from ..model.convert import pack_heads
from ..model.gpt import GPT
from ..serving.native import BACKENDS, choose_backend
from ..system.console import table
from ..training.throughput import share_text
from . import common

RUNNING = 32  # most texts in a step
LIMITS = {"ttft": 0.5, "tpot": 0.05}  # seconds: what a good request meets


def run(args: argparse.Namespace) -> int:
    """Measure, print the table and write the JSON. Exit code 1: tokens differ, requests failed."""
    if args.url and args.backend:
        raise ValueError("--url measures a server as it is: leave --backend out, or --url")
    name = Path(args.checkpoint).stem if args.checkpoint else args.size
    path = common.json_path(args.json, f"load-{'server' if args.url else name}.json")
    device = common.measured_device(args)
    saved = load_checkpoint(args.checkpoint) if args.checkpoint else None
    model = saved.model if saved else None if args.url else sharpened(GPT(SIZES[args.size]))
    if model:
        packed = pack_heads(model) if model.config.per_head else model  # the same function, sooner
        model = packed.to(device.device).eval()
    measured = _server if args.url else _schemes
    result = {"what": "load", "model": name}
    result |= measured(args, model, saved.tokenizer.chars if saved else CHARS)
    print(f"\n{report(result)}")
    common.write_result(path, device, result)
    return int(any(row["differ"] or row["failed"] for row in result["rows"]))


def _server(args: argparse.Namespace, model: GPT | None, chars: str) -> dict:
    """The server at --url; its texts are compared with those of the model, where there is one."""
    server = HTTPServer(args.url, chars=chars)
    about = {"server": args.url, "model": server.model, "clock": "real"}
    about |= _load(args, {server.model: server}, model, chars, greedy=True)
    return about | {"errors": dict(server.errors)}


def _schemes(args: argparse.Namespace, model: GPT, chars: str) -> dict:
    """Every scheme of our engine, and the machine's limits."""
    backend, c = args.backend or choose_backend(model)[0], model.config
    dtype = str(model.lm_head.weight.dtype).removeprefix("torch.")
    systems = schemes(model, backend=BACKENDS[backend], running=RUNNING)
    machine = Limits(model, c.cache_bytes(c.block_size // 3, RUNNING))
    about = {"backend": backend, "dtype": dtype, "clock": "virtual"}
    return about | _load(args, systems, model, chars, machine=machine)


def _load(args, systems: dict, model: GPT | None, chars: str, machine=None, greedy=False) -> dict:
    sizes = {"vocab_size": len(chars)}
    sizes["block_size"] = (model.config if model else SIZES[args.size]).block_size
    measured = {"repeats": args.repeats, "limits": LIMITS, "model": model, "machine": machine}
    workload = Workload(args.requests, greedy=greedy)
    return load(systems, args.rates, workload=workload, **sizes, **measured)


def report(r: dict) -> str:
    """The tables of `load`, or of a server, and what is to be said once."""
    asked = Workload(r["n"], r["seed"], r["shared"], r["greedy"])
    if "server" in r:
        who = f"{r['server']}, {r['model']}"
    else:
        how = f"at most {r['running']} at once, chunks of {r['budget']} tokens"
        who = f"{r['n_params']:,} parameters, {r['backend']}, {r['dtype']}; {how}"
    about = f"{r['clock']} clock; {common.timings(r['repeats'])}"
    lines = [f"{asked}; block {r['block_size']}", f"{who}; {about}; latencies in ms\n"]
    lines += [table([*map(_shown, r["rows"])])]
    for why, n in r.get("errors", {}).items():
        lines.append(f"{number_of(n, 'request')} failed: {why}")
    if bounds := r.get("bounds"):
        lines += [
            f"\nthe last rate: each token read at {bounds['peak'] / 1e9:.0f} GFLOP/s, keys and "
            f"values of each text that decodes at {bounds['bandwidth'] / 1e9:.0f} GB/s\n",
            table([*map(_bounded, bounds["rows"])]),
        ]
    return "\n".join(lines)


def _bounded(row: dict) -> dict:
    return {
        "": row["scheme"],
        "tokens read for each drawn": f"{row['read']:.2f}",
        "bound (µs a drawn token)": f"{1e6 * row['least']:.1f}",
        "taken (µs)": f"{1e6 * row['taken']:.1f}",
        "share": share_text(row["least"] / row["taken"]),
    }


def _shown(row: dict) -> dict:
    words = {None: "not compared", 0: "equal", 1: "1 text differs"}
    equal = words.get(row["differ"], f"{row['differ']} texts differ")
    equal += f", {row['failed']} failed" * bool(row["failed"])
    shown = {
        "rate": "inf" if row["rate"] is None else f"{row['rate']:g}",
        "": row["scheme"][:24],
        "tokens/s": f"{row['tokens_per_second']['median']:,.0f}",
        "ratio": summary_text(row["ratio"], 2) if row["ratio"] else "",
    }
    for name in LATENCIES:
        pair = (row[f"{name}_p50"], row[f"{name}_p95"])
        times = ("–" if time is None else f"{1000 * time['median']:.2f}" for time in pair)
        shown[f"{name.upper()} p50, p95"] = ", ".join(times)
    return shown | {"goodput": f"{row['goodput']['median']:.1f}", "tokens": equal}


def options() -> argparse.ArgumentParser:
    """All options."""
    about = "Throughput and latency under a stream of requests."
    parser = common.Parser("bench load", about)
    add = parser.add_argument
    common.add_shared(parser, "--size", "--checkpoint", "--threads", "--device")
    how = {"type": common.above_0, "nargs": "+", "default": [5.0, 20.0, 80.0, inf], "metavar": "X"}
    add("--rates", **how, help="requests a second (5 20 80 inf)")
    add("--requests", **common.POSITIVE, default=64, help="requests at each rate (64)")
    add("--repeats", **common.POSITIVE, default=3, help="timed after a warm-up (3)")
    add("--backend", choices=sorted(BACKENDS), help="our engine's (native, where it can be built)")
    add(
        "--url", metavar="URL", help="instead a server, greedy, in real time: http://127.0.0.1:8000"
    )
    common.add_json(parser, "load-SIZE.json")
    return parser


main = common.main_of(options, run)
