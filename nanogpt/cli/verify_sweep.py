"""python -m nanogpt verify sweep: thousands of texts, decoded with and without a cache."""

from __future__ import annotations

import argparse

from .common import POSITIVE, add_json, json_path, measured_device, write_result


def run(args: argparse.Namespace) -> int:
    """Sweep as the options say and print the result. Exit code 1: a mismatch."""
    from ..verify.sweep import describe, passed, sweep

    if args.dtype == "bfloat16" and not args.exact:
        raise ValueError("--dtype bfloat16 needs --exact: without it its tokens may differ")
    path = json_path(args.json, f"sweep-{args.dtype}{'-exact' * args.exact}.json")
    device = measured_device(args)
    result = sweep(args.sequences, seed=args.seed, dtype=args.dtype, in_exact=args.exact)
    print(describe(result))
    write_result(path, device, {"what": "sweep"} | result)
    return 0 if passed(result) else 1


def options(parser: argparse.ArgumentParser) -> None:
    """All options."""
    parser.epilog = "The result is written at the end; a sweep that is stopped leaves none."
    add = parser.add_argument
    add("--sequences", **POSITIVE, default=1000, help="texts to decode twice, at least (1000)")
    add("--seed", type=int, default=0, metavar="N", help="another seed, other models and texts (0)")
    add("--dtype", choices=["float32", "float64", "bfloat16"], default="float32")
    add("--exact", action="store_true", help="in exact mode: the logits must be the same bits")
    add_json(parser, "sweep-DTYPE.json, always")
    parser.set_defaults(json="", threads=1)
