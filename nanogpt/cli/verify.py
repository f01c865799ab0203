"""python -m nanogpt verify sweep: thousands of texts, decoded in two ways."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from ..system.files import ROOT, check_writable
from ..verify.sweep import passed, sweep, told


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m nanogpt verify", description="Are cached tokens uncached tokens?"
    )
    option = parser.add_argument
    option("what", choices=["sweep"])
    option("--sequences", type=int, default=1000, help="texts to decode in two ways (1000)")
    option("--seed", type=int, default=0, help="another thousand (0)")
    option("--dtype", choices=["float32", "float64", "bfloat16"], default="float32")
    option(
        "--exact", action="store_true", help="in exact mode, where the logits must be the same bits"
    )
    option(
        "--json",
        metavar="PATH",
        help="result; an unfinished one is gone on with (outputs/run/sweep-….json)",
    )
    args = parser.parse_args(argv)
    name = args.dtype + "-exact" * args.exact
    path = Path(args.json or ROOT / "outputs" / "run" / f"sweep-{name}.json")
    torch.set_num_threads(1)
    try:
        if args.sequences < 1:
            raise ValueError(f"--sequences {args.sequences}: at least 1")
        if args.dtype == "bfloat16" and not args.exact:
            raise ValueError(
                "--dtype bfloat16 needs --exact: outside of exact mode its tokens may differ"
            )
        check_writable(path)
        result = sweep(
            args.sequences, seed=args.seed, dtype=args.dtype, in_exact=args.exact, path=path
        )
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"\nstopped; the same command goes on from {path}", file=sys.stderr)
        return 130
    print(told(result), f"\nwritten: {path}")
    return 0 if passed(result) else 1
