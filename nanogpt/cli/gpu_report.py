"""python -m nanogpt gpu report: a whole run on a GPU, in one folder under the machine's name.

The texts of the CPU against those of the GPU, the ladder, the race, and all notebooks with the
profile `gpu`. The folder is complete or not there: `git add outputs/gpu` publishes it.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import torch

from ..benchmarks.decoding import ladder, sharpened
from ..benchmarks.entries import RACE
from ..benchmarks.training import compared, train_in_turns
from ..config.checks import check_int
from ..config.shapes import SIZES
from ..data.corpus import Corpus, load_corpus
from ..model.checkpoint import load_checkpoint
from ..model.gpt import GPT
from ..publishing import publish, runner
from ..system.device import Device, pick_device
from ..system.environment import environment
from ..system.files import PUBLISHED, ROOT, atomic_path, write_json
from ..verify.devices import across_devices
from . import bench_ladder, bench_train
from .common import OUTPUTS, command_parser, exit_code

WORK = OUTPUTS / "gpu-report"  # what stays there if something fails
REPORTS = ROOT / "outputs" / "gpu"


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 written, 1 a notebook failed or a text is wrong, 2 it could not be done."""
    args = options().parse_args(argv)
    return exit_code(lambda: run(args))


def run(args: argparse.Namespace) -> int:
    """Measure, run, and put the folder in its place. Raises ValueError without a GPU."""
    check_int("--seeds", args.seeds, 1)
    check_int("--repeats", args.repeats, 1)
    device, corpus = _gpu(), load_corpus()
    card = environment(device)
    target = REPORTS / slug(card["device_name"])
    print(f"{device}\n{corpus.banner or corpus}\nwhen all has passed: {target}", flush=True)
    WORK.mkdir(parents=True, exist_ok=True)
    publish.empty(WORK)
    found = {"equality": _equality(device, args.seeds)}
    found |= {f"ladder-{size}": _ladder(size, device, args.repeats) for size in args.sizes}
    found["race"] = _race(corpus, device, args.seeds)
    for name, result in found.items():
        write_json(WORK / "gpu" / f"{name}.json", {"environment": card, **result})
    text = report(card, corpus, found)
    with atomic_path(WORK / "README.md") as temporary:
        temporary.write_text(text, encoding="utf-8")
    print(text, flush=True)
    wrong = [row for row in found["equality"]["differences"] if not row["explained"]]
    passed = runner.run(runner.RunPlan(profile="gpu", out=WORK, source=args.source))
    if wrong or not passed:
        why = f"{len(wrong)} texts differ by more than rounding" if wrong else "a notebook failed"
        print(f"not published: {why}; what was made is in {WORK}")
        return 1
    publish.tidy(WORK)
    target.parent.mkdir(parents=True, exist_ok=True)
    publish.exchange(WORK, target)
    print(f"\nready to be published: git add {target.relative_to(ROOT)}")
    return 0


def slug(name: str) -> str:
    """A machine's name as the name of a folder: "NVIDIA H100 80GB" -> "nvidia-h100-80gb"."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def report(card: dict, corpus: Corpus, found: dict) -> str:
    """What was measured, as the README of the folder."""
    same, versions = found["equality"], f"torch {card['torch']}, CUDA {card['cuda']}"
    differ = [f"- {_differs(row)}" for row in same["differences"]]
    ladders = [bench_ladder.report(found[name]).strip() for name in found if "ladder" in name]
    return "\n".join(
        [
            f"# {card['device_name']}\n",
            f"{versions}, Python {card['python']}, commit {card['commit']}; {corpus.name}. The "
            f"notebooks are beside this file, as pages in html/index.html.\n",
            "## The same texts as on the CPU\n",
            f"{same['equal']} of {same['texts']} texts of {same['tokens']} tokens are equal; "
            f"logits differ by {same['max_logit_diff']:.1e} at most, the closest draw was decided "
            f"by {same['min_margin']:.1e}.",
            *differ,
            "\n## The ladder\n",
            *(f"```\n{text}\n```\n" for text in ladders),
            "## The race\n",
            f"```\n{bench_train.report(found['race']['rows'], corpus)}\n```\n",
        ]
    )


def options() -> argparse.ArgumentParser:
    """All options."""
    parser = command_parser("gpu report", "A whole run on a GPU, in one folder under its name.")
    add = parser.add_argument
    add("--seeds", type=int, default=3, metavar="N", help="of the race and of the texts (3)")
    add("--repeats", type=int, default=5, metavar="N", help="timed repeats of the ladder (5)")
    add("--sizes", nargs="+", choices=list(SIZES), default=["small", "lecture"])
    add("--source", type=Path, help=argparse.SUPPRESS)
    return parser


def _gpu() -> Device:
    if not torch.cuda.is_available():
        raise ValueError(
            f"gpu report needs an NVIDIA GPU, and torch {torch.__version__} sees none: run it on a "
            f"machine that has one, with a torch built for CUDA (pytorch.org)"
        )
    return pick_device("cuda")


def _equality(device: Device, seeds: int) -> dict:
    model = load_checkpoint(PUBLISHED / "checkpoints" / "small").model
    prompt, n_new = torch.zeros(1, 1, dtype=torch.int64), min(255, model.config.block_size)
    return across_devices(model, prompt, n_new, range(42, 42 + seeds), device.device)


def _ladder(size: str, device: Device, repeats: int) -> dict:
    model = sharpened(GPT(SIZES[size])).to(device.device)
    return ladder(model, n_new=min(255, model.config.block_size), repeats=repeats)


def _race(corpus: Corpus, device: Device, seeds: int) -> dict:
    runs = []
    for seed in range(1337, 1337 + seeds):
        runs += train_in_turns(RACE, corpus, seed=seed, device=device)
    return {"corpus": corpus.name, "sha256": corpus.sha256, "rows": compared(runs), "runs": runs}


def _differs(row: dict) -> str:
    why = "which rounding explains" if row["explained"] else "MORE THAN ROUNDING DOES"
    place = f"{row['way']}, seed {row['seed']}: from token {row['token']} on"
    return f"{place}, where the draw was decided by {row['margin']:.1e}, {why}"
