"""python -m nanogpt bench load: throughput and latency under a stream of requests."""

from __future__ import annotations

import argparse
from math import inf
from pathlib import Path

from ..bench.ladder import sharpened
from ..bench.load import CHARS, LATENCIES, LoadedServer, bound, load, poisson, schemes
from ..bench.roofline import peak_arithmetic, read_bandwidth
from ..bench.tables import number_of, table
from ..checkpoint import load_checkpoint
from ..config import SIZES
from ..convert import pack_heads
from ..model import GPT
from ..serving.native_steps import BACKENDS, choose_backend
from ..timing import summary_text
from . import common

RUNNING = 32  # most texts in a step
LIMITS = {"ttft": 0.5, "tpot": 0.05}  # seconds: what a good request meets


def run(args: argparse.Namespace) -> int:
    """Measure, print the table and write the JSON. Exit code 1: tokens differ, requests failed."""
    name = Path(args.checkpoint).stem if args.checkpoint else args.size
    path = common.json_path(args.json, f"load-{'server' if args.url else name}.json")
    device = common.measured_device(args)
    saved = load_checkpoint(args.checkpoint) if args.checkpoint else None
    model = saved.model if saved else None if args.url else sharpened(GPT(SIZES[args.size]))
    if model:
        packed = pack_heads(model) if model.config.per_head else model  # the same function, sooner
        model = packed.to(device.device).eval()
    chars = saved.tokenizer.chars if saved else CHARS
    asked = {"n": args.requests, "repeats": args.repeats, "limits": LIMITS}
    asked["block_size"] = (model.config if model else SIZES[args.size]).block_size
    measured = _server if args.url else _schemes
    result = {"what": "load", "model": name} | asked | measured(args, model, chars, asked)
    print(f"\n{report(result)}")
    common.write_result(path, device, result)
    return int(any(row["differ"] or row["failed"] for row in result["rows"]))


def _server(args: argparse.Namespace, model: GPT | None, chars: str, asked: dict) -> dict:
    """The server at --url; its texts are compared with those of the model, where there is one."""
    server = LoadedServer(args.url, chars)
    asked = asked | {"vocab_size": len(chars), "greedy": True, "model": model}
    rows = load({server.model: server}, args.rates, **asked)
    return {"server": args.url, "model": server.model, "rows": rows, "errors": dict(server.errors)}


def _schemes(args: argparse.Namespace, model: GPT, chars: str, asked: dict) -> dict:
    """Every scheme of our engine."""
    backend = choose_backend(model)[0]
    systems = schemes(model, backend=BACKENDS[backend], running=RUNNING)
    about = {"n_params": model.n_params, "backend": backend, "running": RUNNING}
    rows, c = load(systems, args.rates, vocab_size=len(chars), **asked), model.config
    device = model.lm_head.weight.device
    read = read_bandwidth(c.cache_bytes(c.block_size // 3, RUNNING), device=device)["high"]
    about |= {"peak": peak_arithmetic(device=device)["high"], "bandwidth": read}
    requests = poisson(args.requests, inf, len(chars), c.block_size)
    return about | {"bound": bound(c, requests, about["peak"], read), "rows": rows}


def report(r: dict) -> str:
    """The table of `load`, and what is to be said once."""
    if "server" in r:
        server = f"{r['server']}, {r['model']}, in real time"
    else:
        server = f"{r['n_params']:,} parameters, {r['backend']}, at most {r['running']} at once"
    asked = f"{number_of(r['n'], 'request')} of a block of {r['block_size']}"
    title = f"{asked}; {server}; {common.timings(r['repeats'])}; latencies in ms\n"
    errors = r.get("errors", {})
    notes = [f"{number_of(n, 'request')} failed: {reason}" for reason, n in errors.items()]
    at_once = [row for row in r["rows"] if row["rate"] is None and row["scheme"] != "prefix reuse"]
    if "bound" in r and at_once:
        speeds = ((row["scheme"], row["tokens_per_second"]["median"]) for row in at_once)
        shares = ", ".join(f"{scheme} {speed / r['bound']:.0%}" for scheme, speed in speeds)
        machine = f"{r['peak'] / 1e9:.0f} GFLOP/s and {r['bandwidth'] / 1e9:.0f} GB/s"
        notes += [f"\nall at once, {machine} allow {r['bound']:,.0f} tokens/s: {shares}"]
    return "\n".join([title, table([*map(_shown, r["rows"])]), *notes])


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


def options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    common.add_shared(parser, "--size", "--checkpoint", "--threads", "--device")
    how = {"type": float, "nargs": "+", "default": [5.0, 20.0, 80.0, inf], "metavar": "X"}
    add("--rates", **how, help="requests a second (5 20 80 inf)")
    add("--requests", **common.POSITIVE, default=64, help="requests at each rate (64)")
    add("--repeats", **common.POSITIVE, default=3, help="timed after a warm-up (3)")
    add("--url", metavar="URL", help="a server instead, greedy, as in http://127.0.0.1:8000")
    common.add_json(parser, "load-SIZE.json")
