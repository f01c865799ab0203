"""python -m nanogpt bench load: throughput and latency under a stream of requests.

python -m nanogpt bench load --json                        random weights of the small shape
python -m nanogpt bench load --checkpoint PATH --rates 5 20 inf --peer hf
python -m nanogpt bench load --url http://127.0.0.1:8000   a server with OpenAI's completions
"""

from __future__ import annotations

import argparse
from math import inf
from pathlib import Path

from ..benchmarks.arrivals import LATENCIES, Workload
from ..benchmarks.decoding import sharpened
from ..benchmarks.load import BACKENDS, load, schemes
from ..benchmarks.peers import CHARS, HUGGING_FACE, HTTPServer, continuous_batching
from ..benchmarks.timing import summary_text
from ..config.shapes import SIZES
from ..export.huggingface import exported
from ..model.checkpoint import load_checkpoint
from ..model.convert import pack_heads
from ..model.gpt import GPT
from ..system.console import table
from ..system.device import Device
from . import common


def run(args: argparse.Namespace) -> int:
    """Measure, print the table and write the JSON. Exit code 1: tokens differ, requests failed."""
    if args.url and args.peer:
        raise ValueError("--url measures a server as it is: leave --peer out, or --url")
    name = Path(args.checkpoint).stem if args.checkpoint else args.size
    path = common.json_path(args.json, f"load-{'server' if args.url else name}.json")
    device = common.measured_device(args)
    model, chars = _model(args, device)
    systems, about = _systems(args, model, chars)
    result = {"what": "load", "model": name, **about} | load(
        systems,
        args.rates,
        vocab_size=len(chars),
        block_size=(model.config if model else SIZES[args.size]).block_size,
        workload=Workload(args.requests, greedy=bool(args.url or args.peer)),
        repeats=args.repeats,
        limits={"ttft": args.ttft / 1000, "tpot": args.tpot / 1000},
        model=model,
    )
    if args.url:
        (server,) = systems.values()
        result["errors"] = dict(server.errors)
    print(report(result))
    common.write_result(path, device, result)
    return int(any(row["differ"] or row["failed"] for row in result["rows"]))


def _systems(args: argparse.Namespace, model: GPT | None, chars: str) -> tuple[dict, dict]:
    """What is measured, by name, and what is to be said of it."""
    if args.url:
        server = HTTPServer(args.url, args.model, chars)
        return {server.model: server}, {"server": args.url, "model": server.model, "clock": "real"}
    systems = schemes(model, backend=BACKENDS[args.backend], running=args.running)
    if args.peer:
        systems[HUGGING_FACE] = continuous_batching(*exported(model), args.running)
    return systems, {"backend": args.backend, "clock": "virtual"}


def _model(args: argparse.Namespace, device: Device) -> tuple[GPT | None, str]:
    """The model, None for a server of unknown weights, and the characters of its prompts."""
    if args.checkpoint:
        saved = load_checkpoint(args.checkpoint)
        model, chars = saved.model, saved.tokenizer.chars
    elif args.url:
        return None, CHARS
    else:
        model, chars = sharpened(GPT(SIZES[args.size])), CHARS
    packed = pack_heads(model) if model.config.per_head else model  # the same function, sooner
    return packed.to(device.device).eval(), chars


def report(r: dict) -> str:
    """The table of `load`, or of a server, and what is to be said once."""
    if "server" in r:
        who = f"{r['server']}, {r['model']}"
    else:
        how = f"at most {r['running']} at once, chunks of {r['budget']} tokens"
        who = f"{r['n_params']:,} parameters, {r['backend']}; {how}"
    requests = f"{r['n']} request{'s' * (r['n'] != 1)}"
    about = f"{requests}; {r['clock']} clock; {common.timings(r['repeats'])}"
    lines = [f"\n{who}; {about}; latencies in ms\n", table([*map(_shown, r["rows"])])]
    lines += [f"failed, {n} ×: {why}" for why, n in r.get("errors", {}).items()]
    return "\n".join(lines)


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
    for name, ms in (("--ttft", 500), ("--tpot", 50)):
        text = f"milliseconds that a good request meets, for the goodput ({ms})"
        add(name, type=common.above_0, default=ms, metavar="MS", help=text)
    common.add_json(parser, "load-SIZE.json")
    add = parser.add_argument_group("our engine").add_argument
    add("--backend", choices=sorted(BACKENDS), default="modules")
    add("--running", **common.POSITIVE, default=32, help="most texts in a step (32)")
    peer = "beside Hugging Face's continuous batching of these weights, greedy, in real time"
    add("--peer", choices=["hf"], help=f"{peer} (transformers)")
    add = parser.add_argument_group("a server instead, greedy and in real time").add_argument
    add("--url", metavar="URL", help="its address, as in http://127.0.0.1:8000")
    add("--model", default="", metavar="NAME", help="the model that it is asked for (its first)")
    return parser


main = common.main_of(options, run)
