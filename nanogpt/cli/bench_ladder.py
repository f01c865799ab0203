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
from ..system.console import table
from ..system.device import Device
from . import common


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 measured, 2 it could not be, 130 stopped."""
    return common.exit_code(lambda: run(options().parse_args(argv)))


def run(args: argparse.Namespace) -> None:
    """Measure as the options say, print the table and write the JSON."""
    check_int("--repeats", args.repeats, 1)
    name = Path(args.checkpoint).stem if args.checkpoint else args.size
    path = common.json_path(args.json, f"ladder-{name}.json")
    device = common.measured_device(args)
    model = _model(args, device)
    n_new = min(255, model.config.block_size) if args.tokens is None else args.tokens
    peers = hugging_face(model, n_new) if args.peer else {}
    result = ladder(model, n_new=n_new, repeats=args.repeats, only=args.rungs, peers=peers)
    print(report(result))
    common.write_result(path, device, {"model": name, "dtype": args.dtype} | result)


def _model(args: argparse.Namespace, device: Device) -> GPT:
    if args.checkpoint:
        model = load_checkpoint(args.checkpoint).model
    else:
        model = sharpened(GPT(SIZES[args.size]))
    return model.to(device=device.device, dtype=getattr(torch, args.dtype)).eval()


def report(result: dict) -> str:
    """The result of `ladder` as text for a terminal."""
    limits, best = result["limits"], result["best"]
    read, peak, bound = limits["read"], limits["peak"], summary_text(limits["roofline"], 0)
    n_params, one = result["n_params"], "one thread; " * (limits["device"] == "cpu")
    rows = [row for row in result["rungs"] + result["peers"] if "unavailable" not in row]
    lines = [
        f"\n{n_params:,} parameters, {limits['dtype']}, batch 1, {result['n_new']} tokens "
        f"after a prompt of one, medians of {result['repeats']} in turns [lowest – highest]\n",
        table([_shown(row, result["baseline"]) for row in rows]),
        *(
            f"{row['rung']}  {row['label']}: not here: {row['unavailable']}"
            for row in result["rungs"]
            if "unavailable" in row
        ),
        f"\nread bandwidth {read['median'] / 1e9:.0f} GB/s over {limits['weight_bytes'] / 1e6:.1f} "
        f"MB, peak {peak['median'] / 1e9:.0f} GFLOP/s ({one}{read['how']}, {peak['how']})",
        f"roofline bound, where every weight is read once for each token: {bound} tokens/s",
    ]
    if best:
        share = best["share_of_bound"]["median"]
        note = " (it is one thread's and moves with other use of the memory: repeat the run)"
        lines.append(
            f"best at the same weights and tokens: rung {best['rung']}, {share:.0%} of that bound"
            f"{note * (share > 1)}"
        )
    return "\n".join(lines)


def _shown(row: dict, baseline: str) -> dict:
    # Below that nothing is built: it is Python, or other people's code.
    built = row.get("build_seconds", 0) > 0.01
    return {
        "rung": row.get("rung", ""),
        "": row["label"],
        "tokens/s": summary_text(row["tokens_per_second"], 0),
        f"ratio to rung {baseline}": summary_text(row["speedup"], 1),
        "tokens": {True: "equal", False: "differ", None: "own"}[row.get("equal")],
        "first build, again (s)": (
            f"{row['build_seconds']:.1f}, {row['again_seconds']:.2f}" if built else ""
        ),
    }


def options() -> argparse.ArgumentParser:
    """All options."""
    parser = common.command_parser("bench ladder", "How fast does this machine decode?")
    add = parser.add_argument
    common.add_shared(
        parser, "--size", "--checkpoint", "--tokens", "--repeats", "--threads", "--device"
    )
    add("--rungs", metavar="NUMBERS", help="only these, as in 1467")
    add("--peer", choices=["hf"], help="add Hugging Face's generate (transformers)")
    add("--dtype", choices=["float32", "bfloat16"], default="float32")
    common.add_json(parser, "ladder-SIZE.json")
    return parser
