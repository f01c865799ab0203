"""Thousands of random texts, each decoded in two ways: do the tokens differ anywhere?"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import torch

from ..system.console import Progress
from ..system.environment import environment
from ..system.files import write_json
from ..system.lock import held
from .cases import Case, draw_case, run_case

KEPT_MISMATCHES = 1000
CASES_BETWEEN_WRITES = 50


def new_result(seed: int, dtype: str, in_exact: bool) -> dict:
    """The result of a sweep before its first case."""
    counts = ("cases", "sequences", "tokens", "mismatched", "explained")
    return {
        **{"seed": seed, "dtype": dtype, "exact": in_exact},
        **dict.fromkeys(counts, 0),
        **{"mismatches": [], "logits": 0, "differing_logits": 0},
        **{"max_logit_diff": 0.0, "min_margin": None, "ways": {}},
    }


def add_case(result: dict, case: Case, found: dict) -> dict:
    """The result and one more case, as a new dict: a Ctrl-C counts all of a case or nothing."""
    result = dict(result)
    for key in ("sequences", "tokens", "logits", "differing_logits"):
        result[key] += found[key]
    result["cases"] += 1
    result["mismatched"] += len(found["mismatches"])
    result["explained"] += sum(m.get("explained", False) for m in found["mismatches"])
    result["mismatches"] = (result["mismatches"] + found["mismatches"])[:KEPT_MISMATCHES]
    result["max_logit_diff"] = max(result["max_logit_diff"], found["max_logit_diff"])
    least = result["min_margin"]
    result["min_margin"] = found["min_margin"] if least is None else min(least, found["min_margin"])
    result["ways"] = dict(Counter(result["ways"]) + Counter({case.way: found["sequences"]}))
    return result


def sweep(
    sequences: int,
    *,
    seed: int = 0,
    dtype: str = "float32",
    in_exact: bool = False,
    path: Path | None = None,
) -> dict:
    """Run cases until `sequences` texts have been decoded. With `path`, a sweep resumes.

    The file is written now and then and at the end, also after a Ctrl-C. Raises ValueError for a
    file of another sweep, or one that another run is writing.
    """
    lock = held(path.with_name(f".{path.name}.lock"), f"to {path}") if path else nullcontext()
    with lock:
        return _sweep(sequences, seed, dtype, in_exact, path)


def _sweep(sequences: int, seed: int, dtype: str, in_exact: bool, path: Path | None) -> dict:
    result = new_result(seed, dtype, in_exact)
    if path and path.is_file():
        result = read_result(path, result)
    try:
        with Progress(sequences, "texts", done=result["sequences"]) as bar:
            while result["sequences"] < sequences:
                case = draw_case(seed, result["cases"], dtype, in_exact)
                found = run_case(seed, case, in_exact)
                result = add_case(result, case, found)
                bar.update(found["sequences"])
                if path and result["cases"] % CASES_BETWEEN_WRITES == 0:
                    write_json(path, result | {"environment": environment()})
    finally:
        if path:
            write_json(path, result | {"environment": environment()})
    return result


def read_result(path: Path, new: dict) -> dict:
    """What an earlier run of the same sweep has counted. Raises ValueError for any other file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        result = {key: found[key] for key in new}
        for key, value in new.items():
            if value is not None and type(result[key]) is not type(value):
                raise TypeError(f"{key}={result[key]!r}")
        its_torch = found["environment"]["torch"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is not a result of a sweep ({error}): delete it, or name another file"
        ) from None
    facts = [(key, new[key], result[key]) for key in ("seed", "dtype", "exact")]
    for name, wanted, stored in [*facts, ("torch", torch.__version__, its_torch)]:
        if wanted != stored:
            raise ValueError(
                f"{path} was started with {name} {stored}, and this is {wanted}: name another file"
            )
    return result


def passed(result: dict) -> bool:
    """Whether there is no mismatch that is not allowed.

    In exact mode not one bit of a logit may differ. In float64 no token may; in other dtypes
    tokens may where the draw's margin explains it.
    """
    if result["exact"]:
        return result["mismatched"] == result["differing_logits"] == 0
    return result["mismatched"] == (result["explained"] if result["dtype"] != "float64" else 0)


def describe(result: dict) -> str:
    """The result in two lines."""
    r, mode = result, " in exact mode" if result["exact"] else ""
    return (
        f"{r['sequences']:,} texts, {r['tokens']:,} tokens, {r['dtype']}{mode}: "
        f"{r['mismatched']} differ ({r['explained']} of them explained by their margin)\n"
        f"{r['differing_logits']:,} of {r['logits']:,} logits differ, at most by "
        f"{r['max_logit_diff']:.1e}; the closest draw was decided by {r['min_margin']:.1e}"
    )
