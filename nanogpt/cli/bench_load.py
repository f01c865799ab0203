"""python -m nanogpt bench load: throughput and latency under a stream of requests.

python -m nanogpt bench load --json                        random weights of the small shape
python -m nanogpt bench load --checkpoint PATH --rates 5,20,inf
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..benchmarks.arrivals import Load
from ..benchmarks.decoding import sharpened
from ..benchmarks.load import BACKENDS, load
from ..benchmarks.timing import summary_text
from ..config.shapes import SIZES
from ..model.checkpoint import load_checkpoint
from ..model.convert import pack_heads
from ..model.gpt import GPT
from ..system.device import pick_device
from ..system.environment import environment
from ..system.files import write_json
from .common import add_json, add_shared, command_parser, exit_code, json_path, set_threads


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 measured, 1 tokens differ between schemes, 2 it could not be, 130 stopped."""
    args = options().parse_args(argv)
    return exit_code(lambda: run(args))


def run(args: argparse.Namespace) -> int:
    """Measure as the options say, print the table and write the JSON."""
    rates = [_number("--rates", part) for part in args.rates.split(",")]
    limits = {name: ms / 1000 for name, ms in map(_limit, filter(None, args.goodput.split(",")))}
    asked = Load(args.requests, args.seed, args.shared)
    name = Path(args.checkpoint).stem if args.checkpoint else args.size
    path = json_path(args.json, f"load-{name}.json")
    set_threads(args.threads)
    device = pick_device(args.device)
    if args.checkpoint:
        model = load_checkpoint(args.checkpoint).model
    else:
        model = sharpened(GPT(SIZES[args.size]))
    if model.config.per_head:  # the same function, sooner
        model = pack_heads(model)
    model = model.to(device.device).eval()
    chosen = {"backend": BACKENDS[args.backend], "running": args.running, "budget": args.budget}
    chosen |= {"repeats": args.repeats, "limits": limits, "real": args.real}
    result = {"model": name, "backend": args.backend} | load(model, rates, asked=asked, **chosen)
    print(report(result))
    if path:
        write_json(path, {"what": "load", "environment": environment(device), **result})
        print(f"\nwritten: {path}")
    return 0 if all(row["equal"] for row in result["rows"]) else 1


def _number(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{option}: {text!r} is not a number") from None


def _limit(text: str) -> tuple[str, float]:
    name, _, ms = text.partition(":")
    return name, _number("--goodput", ms)


def report(result: dict) -> str:
    """The result of `load` as text for a terminal."""
    r = result
    heads = ("TTFT p50", "p95", "ITL p50", "p95", "E2EL p95")
    return "\n".join(
        [
            f"\n{r['n_params']:,} parameters, {r['backend']}; {r['requests']} requests, at most "
            f"{r['running']} at once, chunks of {r['budget']} tokens; {r['clock']} clock; medians "
            f"of {r['repeats']} in turns; latencies in ms\n",
            f"{'rate':>6}  {'scheme':16}{'tokens/s':>9}{'ratio':>22}"
            + "".join(f"{head:>9}" for head in heads)
            + f"{'goodput':>9}{'books':>7}  tokens",
            *(_row(row) for row in r["rows"]),
        ]
    )


def _row(row: dict) -> str:
    keys = ("ttft_p50", "ttft_p95", "itl_p50", "itl_p95", "e2el_p95")
    rate = "inf" if row["rate"] is None else f"{row['rate']:g}"
    speed, ratio = f"{row['tokens_per_second']['median']:,.0f}", summary_text(row["ratio"], 2)
    times = "".join(f"{1000 * row[key]['median']:9.1f}" if row[key] else f"{'':9}" for key in keys)
    goodput, books = row["goodput"]["median"], row["bookkeeping"]["median"]
    equal = "equal" if row["equal"] else "differ"
    numbers = f"{speed:>9}{ratio:>22}{times}{goodput:9.1f}{books:7.0%}"
    return f"{rate:>6}  {row['scheme']:16}{numbers}  {equal}"


def options() -> argparse.ArgumentParser:
    """All options."""
    parser = command_parser("bench load", "Throughput and latency under a stream of requests.")
    add = parser.add_argument
    add("--size", choices=sorted(SIZES), default="small")
    add("--checkpoint", metavar="PATH", help="trained weights instead of random ones")
    add("--backend", choices=sorted(BACKENDS), default="modules")
    add("--rates", default="5,20,80,inf", metavar="LIST", help="requests a second (5,20,80,inf)")
    add("--requests", type=int, default=64, metavar="N", help="requests at each rate (64)")
    add("--seed", type=int, default=1, metavar="N", help="of arrivals, lengths and prompts (1)")
    add("--shared", type=float, default=0.5, metavar="X", help="share that begin alike (0.5)")
    add("--running", type=int, default=32, metavar="N", help="most texts in a step (32)")
    add("--budget", type=int, default=64, metavar="N", help="most tokens in a chunked step (64)")
    add("--repeats", type=int, default=3, metavar="N", help="timed repeats after a warm-up (3)")
    add(
        "--goodput",
        default="ttft:500,tpot:50",
        metavar="LIMITS",
        help="milliseconds that a good request meets: ttft, tpot, e2el (ttft:500,tpot:50)",
    )
    add("--real", action="store_true", help="wait for arrivals, instead of a virtual clock")
    add_shared(parser, "--threads", "--device")
    add_json(parser, "load-SIZE.json")
    return parser
