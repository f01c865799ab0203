"""python -m nanogpt bench processes: the same training by 1, 2 and 4 processes, and on two hosts.

python -m nanogpt bench processes --json        on this machine: it starts torchrun itself
torchrun --nnodes=2 … -m nanogpt bench processes --json PATH        on a cluster: one such group
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from ..benchmarks.cost_model import compare, elsewhere
from ..benchmarks.processes import Work, by_torchrun, killed_and_not, losses_apart, one_of_them
from ..benchmarks.timing import summary, summary_text
from ..config.checks import check_int
from ..system.device import pick_device
from ..system.environment import environment
from ..system.files import write_json
from ..system.hosts import NETWORKS
from ..training.distributed import joined, ranks, reports_errors
from .common import add_json, add_shared, command_parser, exit_code, json_path, set_threads


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 measured, 1 the killed run ended with other weights, 2 it could not be."""
    args = options().parse_args(argv)
    inside = "LOCAL_RANK" in os.environ  # torchrun started this very process
    return exit_code(lambda: (_member if inside else run)(args), speaks=reports_errors())


def _member(args: argparse.Namespace) -> None:
    """One process of a group: trains and measures with the others; the first one writes."""
    set_threads(args.threads)
    with joined(pick_device(args.device)) as device:
        result = one_of_them(_work(args), device)
        if not ranks().first:
            return
        print(f"\n{result['processes']} processes, {result['gradient_bytes']:,} bytes of gradients")
        print("\n".join(f"{name:24}{_ms(t)}" for name, t in result["timings"].items()))
        if path := json_path(args.json, "group.json"):
            write_json(path, result | {"environment": environment(device)})


def run(args: argparse.Namespace) -> int:
    """Start torchrun for each number of processes; print the tables and write JSON, a picture."""
    numbers, path, work = (
        _numbers(args.processes),
        json_path(args.json, "processes.json"),
        _work(args),
    )
    kinds = [(n, 1) for n in numbers] + [(n, 2) for n in numbers if n % 2 == 0]
    runs = []
    for n, agents in kinds:
        print(f"training with {_name(n, agents)} …", flush=True)
        runs.append(by_torchrun(n, work, agents=agents, network=args.network))
    result = {"what": "processes", "environment": environment(pick_device("cpu")), "runs": runs}
    result["apart"] = losses_apart(runs)
    alone = {run["processes"]: run["timings"] for run in runs if run["agents"] == 1}
    result["cost"] = compare(alone, runs[0]["gradient_bytes"], os.cpu_count() or 1)
    compute = summary(alone[1]["step"])["median"]
    result["elsewhere"] = elsewhere(compute, runs[0]["gradient_bytes"])
    if not args.no_kill:
        print("training again, with a process killed …", flush=True)
        result["killed"] = [killed_and_not(numbers[-1], agents=2, network=args.network)]
    print(report(result))
    if path:
        _write(path, result)
    return int(any(one["equal"] < one["tensors"] for one in result.get("killed", [])))


def _write(path: Path, result: dict) -> None:
    from ..notebook.plots import losses_by_processes, to_png
    from ..system.environment import conditions
    from ..system.files import atomic_path

    write_json(path, result)
    picture = path.with_suffix(".png")
    with atomic_path(picture) as temporary:
        figure = losses_by_processes(result["runs"], result["apart"])
        temporary.write_bytes(to_png(figure, conditions(result["environment"])))
    print(f"\nwritten: {path} and {picture.name}")


def report(result: dict) -> str:
    """The result as text for a terminal."""
    lines = ["\nthe same training: how far losses are from those of one process"]
    for run, apart in zip(result["runs"], result["apart"], strict=True):
        where = f", {run['network']}" if run["agents"] > 1 else ""
        name = _name(run["processes"], run["agents"]) + where
        lines.append(f"  {name:40}at most {max(apart):.1e} in {len(apart)} steps")
    cost = result["cost"]
    latency, bandwidth = cost["link"]["latency"] * 1e6, cost["link"]["bandwidth"] / 1e9
    lines.append(
        f"\na step on {cost['cores']} cores, {cost['gradient_bytes']:,} bytes of gradients; "
        f"measured between two processes: {latency:.0f} µs a round, {bandwidth:.2f} GB/s"
    )
    lines.append(f"  {'':9}  {'':56}predicted/measured")
    heads = f"{'median':>8}{'at best':>9}{'computing as measured together':>32}"
    lines.append(f"  {'processes':>9}  {'predicted, ms':28}{'measured, ms':28}{heads}")
    for row in cost["rows"]:
        predicted, step = (_ms(row[key]) for key in ("predicted", "step"))
        ratios = f"{row['off']:8.2f}{row['off_at_best']:9.2f}"
        ratios += f"{row['off_together']:32.2f}" if "off_together" in row else ""
        lines.append(f"  {row['processes']:>9}  {predicted:28}{step:28}{ratios}")
    for one in result.get("killed", []):
        lines.append(
            f"\nprocess {one['killed_rank']} of {one['processes']} killed after step "
            f"{one['killed_after']} ({one['network']}), started again, resumed: {one['equal']} of "
            f"{one['tensors']} saved tensors equal to the bit, at most {one['largest']:.1e} apart"
        )
    return "\n".join(lines)


def _ms(seconds: list[float] | dict) -> str:
    s = seconds if isinstance(seconds, dict) else summary(seconds)
    return summary_text({key: s[key] * 1000 for key in ("median", "low", "high")}, 2)


def _name(processes: int, agents: int) -> str:
    many = "es" if processes > 1 else ""
    return f"{processes} process{many}{' on two hosts' if agents > 1 else ''}"


def _work(args: argparse.Namespace) -> Work:
    return Work(args.steps, args.batch_size, args.repeats)


def _numbers(text: str) -> list[int]:
    """The numbers of processes, 1 and 2 among them: the cost model is measured with those."""
    try:
        numbers = sorted({1, 2, *(int(part) for part in text.split(","))})
    except ValueError:
        raise ValueError(f"--processes {text!r}: give numbers, as in 1,2,4") from None
    check_int("--processes", numbers[0], 1)
    if odd := [n for n in numbers if n not in (1, 2, 4, 8)]:
        raise ValueError(f"--processes {odd[0]}: choose from 1, 2, 4, 8, which share a batch")
    return numbers


def options() -> argparse.ArgumentParser:
    """All options."""
    about = "The same training by several processes: losses, a killed one, and what sending costs."
    parser = command_parser("bench processes", about)
    add = parser.add_argument
    add("--processes", default="1,2,4", metavar="LIST", help="how many (1,2,4)")
    add("--network", choices=NETWORKS, default="auto", help="of the two hosts (auto)")
    add("--steps", type=int, default=20, metavar="N", help="of training (20)")
    add("--batch-size", type=int, default=16, metavar="N", help="windows in a step (16)")
    add("--repeats", type=int, default=8, metavar="N", help="of each timing (8)")
    add("--no-kill", action="store_true", help="leave out the run with a killed process")
    add_shared(parser, "--device", "--threads")
    add_json(parser, "processes.json")
    return parser
