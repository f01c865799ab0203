"""What only a GPU can show: a list of commands, most important first, within a time limit.

It stands in this room because its steps are commands of this package, of every room below.
GPUs are lent for minutes. So every step is a process with its own limit, its result is saved as
soon as it ends, and the next call goes on with what is left.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from ..bench.tables import table
from ..files import OURS, ROOT, read_json, write_json

_GRACE = 10  # seconds from SIGTERM to SIGKILL, for saving results and ending kernels


class Ended(Enum):
    """How a step ended."""

    PASSED = "passed"
    FAILED = "failed"
    OUT_OF_TIME = "out of time"


@dataclass(frozen=True)
class StepResult:
    """What is kept of a step that has ended, besides its log and its output."""

    ended: Ended
    seconds: float


@dataclass(frozen=True)
class ReportStep:
    """A command of the report."""

    name: str
    command: tuple[str, ...]  # the interpreter's arguments; OUT is the report's folder
    seconds: int  # its limit
    output: str = ""  # the file or folder in OUT with its results, besides its log


def _bench(output: str, words: str, seconds: int) -> ReportStep:
    command = f"-m nanogpt bench {words} --device cuda --json OUT/{output}.json"
    return ReportStep(output, tuple(command.split()), seconds, f"{output}.json")


def _notebook(number: str, seconds: int) -> ReportStep:
    """A notebook in a folder of its own run, which has the model that the first one trains."""
    command = f"-m nanogpt run {number} --profile gpu --no-html --out OUT/run"
    return ReportStep(f"notebook-{number}", tuple(command.split()), seconds, "run")


REPORT_STEPS = (
    ReportStep("tests", ("-m", "pytest", "-m", "gpu"), 240),
    _bench("ladder-small", "ladder --size small", 90),
    _bench("ladder-lecture", "ladder --size lecture", 120),
    _bench("ladder-smollm2", "ladder --size smollm2 --repeats 3", 150),
    _bench(
        "gain-smollm2",
        "gain --size smollm2 --batch 1 8 64 --lengths 16 64 128 255 512 1024 2047 --repeats 3",
        120,
    ),
    _bench(
        "gain-smollm2-1.7b",
        "gain --size smollm2-1.7b --batch 1 8 --lengths 16 64 255 1024 --repeats 3",
        90,
    ),
    _bench(
        "gain-lecture",
        "gain --size small lecture --batch 1 8 64 --lengths 1 16 64 128 255 --repeats 3",
        60,
    ),
    # Its validation loss was below nanoGPT's 1.4697 with every seed and on every machine so far;
    # its log has the seconds of each evaluation.
    ReportStep(
        "train",
        tuple("-m nanogpt train --recipe keeper --bf16 --device cuda --overwrite".split())
        + ("--out", "OUT/train"),
        150,
        "train.jsonl",
    ),
    # None of these has ever run on a GPU.
    _notebook("05", 150),
    _notebook("07", 120),
    _notebook("09", 120),
    _notebook("04", 90),
    _notebook("06", 180),
    _notebook("08", 120),
    _notebook("11", 180),
    _notebook("12", 120),
)


def run_report(out: Path, steps: Sequence[ReportStep], total: float) -> bool:
    """Run the steps that have not passed, for at most `total` seconds; returns whether all have.

    Steps that have never ended come first, then those that failed or ran out of time. A step whose
    limit is longer than the time left is skipped, because a shorter one may still fit.
    """
    begun = time.monotonic()
    # 1. What is left from earlier calls; sorting keeps the order of importance.
    before = {step.name: outcome(out, step) for step in steps}
    left = [step for step in steps if not _passed(before[step.name])]
    left.sort(key=lambda step: before[step.name] is not None)
    # 2. Run what fits.
    for step in left:
        if step.seconds <= total - (time.monotonic() - begun):
            print(f"{step.name}: at most {step.seconds} s", flush=True)
            run_step(out, step)
    # 3. What there is now, and how to go on.
    after = {step.name: outcome(out, step) for step in steps}
    print(f"\n{table([_row(step, after[step.name]) for step in steps])}\n\nin {out}")
    missing = [name for name, found in after.items() if not _passed(found)]
    if missing:
        print(f"left: {', '.join(missing)}; the same command goes on with them")
    print(f"to run a step again, delete its file in {out / 'steps'}")
    return not missing


def outcome(out: Path, step: ReportStep) -> StepResult | None:
    """How the step ended the last time; None if it never did."""
    state = read_json(_state_path(out, step))
    return StepResult(Ended(state["ended"]), state["seconds"]) if state else None


def _passed(found: StepResult | None) -> bool:
    return found is not None and found.ended is Ended.PASSED


def _row(step: ReportStep, found: StepResult | None) -> dict[str, str]:
    """A step in the table at the end."""
    log = f"steps/{step.name}.log"
    return {
        "step": step.name,
        "result": found.ended.value if found else "not run",
        "seconds": f"{found.seconds:.0f}" if found else "",
        "limit": f"{step.seconds}",
        "see": (step.output or log) if _passed(found) else log if found else "",
    }


def run_step(out: Path, step: ReportStep) -> None:
    """Run a step and write its log and, at its end, its state, atomically."""
    path = _state_path(out, step)
    path.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, *(word.replace("OUT", str(out)) for word in step.command)]
    begun = time.monotonic()
    with path.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a group of its own, which ends as a whole
        )
        try:
            state = Ended.FAILED if process.wait(step.seconds) else Ended.PASSED
        except subprocess.TimeoutExpired:
            state = Ended.OUT_OF_TIME
        finally:  # also after a Ctrl-C
            _end_group(process)
    seconds = round(time.monotonic() - begun, 1)
    print(f"{step.name}: {state.value} after {seconds:.0f} s", flush=True)
    result = {"format": f"{OURS} step", "name": step.name, "command": list(step.command)}
    write_json(path, result | {"limit": step.seconds, "seconds": seconds, "ended": state.value})


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process and its children, if there are any left."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _state_path(out: Path, step: ReportStep) -> Path:
    return out / "steps" / f"{step.name}.json"
