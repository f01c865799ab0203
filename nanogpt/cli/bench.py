"""python -m nanogpt bench ladder: how fast does this machine decode?"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from ..benchmarks.decoding import ladder, spread_out
from ..benchmarks.peers import hugging_face
from ..benchmarks.timing import spread
from ..config.shapes import SIZES
from ..model.checkpoint import load_checkpoint
from ..model.gpt import GPT
from ..system.device import pick_device
from ..system.environment import environment
from ..system.files import ROOT, check_writable, write_json


def show(result: dict) -> None:
    """The table, for a terminal."""
    limits = result["limits"]
    read, peak, floor = limits["read"], limits["peak"], limits["floor"]["median"]
    print(
        f"\n{result['n_params']:,} parameters, batch 1, {result['n_new']} tokens after a prompt of one, "
        f"median of {result['repeats']} in turns [lowest – highest]\n"
    )
    ratio = f"ratio to rung {result['baseline']}"
    print(f"   {'':30}{'tokens/s':>26}{ratio:>24}  tokens  first build, again (s)")
    for row in result["rungs"] + result["peers"]:
        head = f"{row.get('rung', ''):3}{row['label']:30}"
        if "unavailable" in row:
            print(f"{head} not here: {row['unavailable']}")
            continue
        equal = {True: "equal", False: "differ", None: "own"}[row.get("equal")]
        built = (
            row.get("build_seconds", 0) > 0.01
        )  # else nothing is built: Python, or another's code
        build = f"{row['build_seconds']:6.1f}, {row['again_seconds']:.2f}" if built else ""
        speed = f"{spread(row['tokens_per_second'], 0):>26}{spread(row['speedup'], 1):>24}"
        print(f"{head}{speed}  {equal:8}{build}")
    print(
        f"\nread bandwidth {read['median'] / 1e9:.0f} GB/s over {limits['weight_bytes'] / 1e6:.1f} MB, "
        f"peak {peak['median'] / 1e9:.0f} GFLOP/s (one thread; {read['how']}, {peak['how']})"
    )
    print(f"floor: every weight read once for each token, {floor:,.0f} tokens/s")
    best = result["best"]
    if best:
        share = f"{best['share_of_floor']:.0%} of that floor"
        if best["share_of_floor"] > 1:
            share += (
                " (it is one thread's, and moves with what else uses the memory: repeat the run)"
            )
        print(f"best at the same weights and tokens: rung {best['rung']}, {share}")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m nanogpt bench", description="How fast does this machine decode?"
    )
    add = parser.add_argument
    add(
        "what",
        choices=["ladder", "train", "speculate"],
        help="ladder: decoding; the others: … train --help",
    )
    add("--size", choices=sorted(SIZES), default="small")
    add("--checkpoint", metavar="PATH", help="trained weights instead of drawn ones")
    add("--tokens", type=int, help="new tokens (255, or as many as the block allows)")
    add("--repeats", type=int, default=5, help="counted repeats, after one warm-up (5)")
    add("--threads", type=int, default=1, help="CPU threads (1)")
    add("--rungs", help="only these, as in 1467")
    add("--peer", choices=["hf"], help="add Hugging Face generate (requirements-peers.txt)")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto")
    add("--dtype", choices=["float32", "bfloat16"], default="float32")
    add(
        "--json",
        nargs="?",
        const="",
        metavar="PATH",
        help="write the figures (outputs/run/ladder-SIZE.json)",
    )
    args = parser.parse_args(argv)
    name = Path(args.checkpoint).stem if args.checkpoint else args.size
    path = Path(args.json or ROOT / "outputs" / "run" / f"ladder-{name}.json")
    try:
        if args.json is not None:
            check_writable(path)  # better known before the measuring than after
        if args.repeats < 1 or args.threads < 1:
            raise ValueError(
                f"--repeats {args.repeats}, --threads {args.threads}: both must be at least 1"
            )
        torch.set_num_threads(args.threads)
        device = pick_device(args.device)
        model = (
            load_checkpoint(args.checkpoint).model
            if args.checkpoint
            else spread_out(GPT(SIZES[args.size]))
        )
        model = model.to(device=device.device, dtype=getattr(torch, args.dtype)).eval()
        n_new = min(255, model.config.block_size) if args.tokens is None else args.tokens
        peers = hugging_face(model, n_new) if args.peer else {}
        result = ladder(model, n_new=n_new, repeats=args.repeats, only=args.rungs, peers=peers)
        show(result)
        if args.json is not None:
            about = {"model": name, "dtype": args.dtype, "environment": environment(device)}
            write_json(path, {**about, **result})
            print(f"\nwritten: {path}")
    except (ValueError, OSError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped: nothing was written", file=sys.stderr)
        return 130
    return 0
