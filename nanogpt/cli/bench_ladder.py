"""python -m nanogpt bench ladder: how fast does this machine decode?"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from ..bench.ladder import Peer, hugging_face, jax_scan, ladder, sharpened
from ..bench.tables import table
from ..bench.throughput import share_text
from ..checkpoint import load_checkpoint
from ..config import SIZES
from ..convert import pack_heads
from ..export.huggingface import exported
from ..model import GPT
from ..timing import summary_text
from . import common


def run(args: argparse.Namespace) -> None:
    """Measure as the options say, print the table and write the JSON."""
    name = Path(args.checkpoint).stem if args.checkpoint else args.size
    path = common.json_path(args.json, f"ladder-{name}.json")
    device = common.measured_device(args)
    about = {"what": "ladder", "model": name, "dtype": args.dtype}
    if args.checkpoint:
        saved = load_checkpoint(args.checkpoint)
        model, about["checkpoint"] = saved.model, saved.sha256
    else:
        model = sharpened(GPT(SIZES[args.size]))
    model = model.to(device=device.device, dtype=getattr(torch, args.dtype)).eval()
    n_new = common.n_tokens(args, model.config.block_size)
    peers = _peers(args.peer, model)
    result = ladder(model, n_new=n_new, repeats=args.repeats, only=args.rungs, peers=peers)
    print(report(result))
    common.write_result(path, device, about | result)


def _peers(names: list[str], model: GPT) -> dict[str, Peer]:
    weight = model.lm_head.weight
    if names and (weight.device.type, weight.dtype) != ("cpu", torch.float32):
        raise ValueError("--peer computes float32 on the CPU: give --device cpu --dtype float32")
    packed = pack_heads(model) if model.config.per_head else model
    try:
        peers = hugging_face(exported(packed)) if "hf" in names else {}
        return peers | (jax_scan(packed) if "jax" in names else {})
    except ImportError as error:
        raise ImportError(f"{error}: pip install '.[peers]'") from error


def report(result: dict) -> str:
    """The result of `ladder` as text for a terminal."""
    limits, best, rungs = result["limits"], result["best"], result["rungs"]
    read, peak, bound = limits["read"], limits["peak"], summary_text(limits["roofline"], 0)
    lines = [
        f"\n{result['n_params']:,} parameters, {limits['dtype']}, {result['n_new']} tokens of one "
        f"text after a prompt of one; {common.timings(result['repeats'])}\n",
        table([_shown(row) for row in rungs if "unavailable" not in row]),
    ]
    absent = [row for row in rungs if "unavailable" in row]
    lines += [f"{row['rung']}  {row['label']}: not here: {row['unavailable']}" for row in absent]
    lines += [
        f"\nread bandwidth {read['median'] / 1e9:.0f} GB/s over {limits['step_bytes'] / 1e6:.1f} "
        f"MB ({read['how']}), peak {peak['median'] / 1e9:.0f} GFLOP/s ({peak['how']})",
        f"roofline bound, where a token reads all weights and its cache once: {bound} tokens/s",
    ]
    if best:
        share = share_text(best["share_of_bound"]["median"])
        lines.append(f"best at equal weights and tokens: rung {best['rung']}; its share: {share}")
    return "\n".join(lines)


def _shown(row: dict) -> dict:
    build = row.get("build_seconds", 0)
    return {
        "rung": row["rung"],
        "": row["label"],
        "tokens/s": summary_text(row["tokens_per_second"], 0),
        "ratio to the first": summary_text(row["speedup"], 1),
        "tokens": "equal" if row["equal"] else "differ",
        "build (s)": f"{build:.1f}" if build > 0.05 else "",  # below that nothing is built
    }


def options(parser: argparse.ArgumentParser) -> None:
    common.add_shared(parser, "--size", "--checkpoint", "--tokens")
    common.add_shared(parser, "--repeats", "--threads", "--device")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--rungs", metavar="NUMBERS", help="only these, as in 1467")
    peer = "beside the same weights in transformers, in JAX: pip install '.[peers]'"
    parser.add_argument("--peer", nargs="+", choices=["hf", "jax"], default=[], help=peer)
    common.add_json(parser, "ladder-SIZE.json")
