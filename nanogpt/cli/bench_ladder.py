"""python -m nanogpt bench ladder: how fast does this machine decode?"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from ..benchmarks.decoding import ladder, sharpened
from ..benchmarks.peers import hugging_face
from ..benchmarks.timing import summary_text
from ..config.checks import check_int
from ..config.shapes import SIZES
from ..model.checkpoint import load_checkpoint
from ..model.gpt import GPT
from ..system.device import Device, pick_device
from ..system.environment import environment
from ..system.files import write_json
from .common import add_json, add_shared, command_parser, exit_code, json_path, set_threads


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 measured, 2 it could not be, 130 stopped."""
    args = options().parse_args(argv)
    return exit_code(lambda: run(args))


def run(args: argparse.Namespace) -> None:
    """Measure as the options say, print the table and write the JSON."""
    check_int("--repeats", args.repeats, 1)
    name = Path(args.checkpoint).stem if args.checkpoint else args.size
    path = json_path(args.json, f"ladder-{name}.json")
    set_threads(args.threads)
    device = pick_device(args.device)
    model = _model(args, device)
    n_new = min(255, model.config.block_size) if args.tokens is None else args.tokens
    peers = hugging_face(model, n_new) if args.peer else {}
    result = ladder(model, n_new=n_new, repeats=args.repeats, only=args.rungs, peers=peers)
    print(report(result))
    if path:
        about = {"model": name, "dtype": args.dtype, "environment": environment(device)}
        write_json(path, about | result)
        print(f"\nwritten: {path}")


def _model(args: argparse.Namespace, device: Device) -> GPT:
    if args.checkpoint:
        model = load_checkpoint(args.checkpoint).model
    else:
        model = sharpened(GPT(SIZES[args.size]))
    return model.to(device=device.device, dtype=getattr(torch, args.dtype)).eval()


def report(result: dict) -> str:
    """The result of `ladder` as text for a terminal."""
    ratio = f"ratio to rung {result['baseline']}"
    lines = [
        f"\n{result['n_params']:,} parameters, batch 1, {result['n_new']} tokens after a prompt of "
        f"one, median of {result['repeats']} in turns [lowest – highest]\n",
        f"   {'':30}{'tokens/s':>26}{ratio:>24}  tokens  first build, again (s)",
        *map(_row, result["rungs"] + result["peers"]),
        *_limits(result["limits"], result["best"]),
    ]
    return "\n".join(lines)


def _row(row: dict) -> str:
    head = f"{row.get('rung', ''):3}{row['label']:30}"
    if "unavailable" in row:
        return f"{head} not here: {row['unavailable']}"
    equal = {True: "equal", False: "differ", None: "own"}[row.get("equal")]
    speed = f"{summary_text(row['tokens_per_second'], 0):>26}{summary_text(row['speedup'], 1):>24}"
    # Below that nothing is built: it is Python, or other people's code.
    built = row.get("build_seconds", 0) > 0.01
    build = f"{row['build_seconds']:6.1f}, {row['again_seconds']:.2f}" if built else ""
    return f"{head}{speed}  {equal:8}{build}"


def _limits(limits: dict, best: dict | None) -> list[str]:
    read, peak, bound = limits["read"], limits["peak"], limits["roofline"]
    where = "one thread; " if limits["device"] == "cpu" else ""
    lines = [
        f"\nread bandwidth {read['median'] / 1e9:.0f} GB/s over {limits['weight_bytes'] / 1e6:.1f} "
        f"MB, peak {peak['median'] / 1e9:.0f} GFLOP/s ({where}{read['how']}, {peak['how']})",
        f"roofline bound, where every weight is read once for each token: {summary_text(bound, 0)} "
        f"tokens/s",
    ]
    if best:
        share = best["share_of_bound"]["median"]
        note = " (it is one thread's and moves with other use of the memory: repeat the run)"
        lines.append(
            f"best at the same weights and tokens: rung {best['rung']}, {share:.0%} of that bound"
            f"{note * (share > 1)}"
        )
    return lines


def options() -> argparse.ArgumentParser:
    """All options."""
    parser = command_parser("bench ladder", "How fast does this machine decode?")
    add = parser.add_argument
    add("--size", choices=sorted(SIZES), default="small")
    add("--checkpoint", metavar="PATH", help="trained weights instead of random ones")
    add("--tokens", type=int, metavar="N", help="new tokens (255, or as many as the block allows)")
    add("--repeats", type=int, default=5, metavar="N", help="timed repeats after a warm-up (5)")
    add_shared(parser, "--threads", "--device")
    add("--rungs", metavar="NUMBERS", help="only these, as in 1467")
    add("--peer", choices=["hf"], help="add Hugging Face generate (requirements-peers.txt)")
    add("--dtype", choices=["float32", "bfloat16"], default="float32")
    add_json(parser, "ladder-SIZE.json")
    return parser
