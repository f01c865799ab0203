"""`load` for a server elsewhere: the same requests, the same measures, rows for the same table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from math import inf

from ..decoding.generate import complete
from ..decoding.sampling import SamplingParams
from ..model.gpt import GPT
from ..serving.request import Request
from ..system.console import Progress
from .arrivals import Load
from .load import check_rates
from .measures import check_limits, differences, summarised
from .remote import Failed, Served, Target, first_model, serve, understood
from .timing import summary

SAME = ("n", "seed", "shared", "block_size", "limits")  # of results that stand in one table


def remote_load(
    target: Target,
    rates: Sequence[float],
    *,
    asked: Load,
    block_size: int,
    repeats: int = 3,
    limits: dict[str, float] | None = None,
    model: GPT | None = None,
    label: str | None = None,
) -> dict:
    """Serve the requests of `load` by a server, at each rate, after a warm-up of at most 8.

    With the `model` of the same weights, greedy texts are compared with generate's. Returns the
    `rows` of `load` with `label` as their scheme; `failed` are requests without a whole answer, by
    reason in `errors`, and `busy` is the share of the time that this client needed of one core.
    Raises ValueError, and Failed where a whole run has no answer.
    """
    limits = limits or {}
    check_rates(rates, repeats)
    check_limits(limits)
    if not target.model:
        target = replace(target, model=first_model(target))
    sizes, rows, ours = (len(target.chars), block_size), [], None
    if model and not target.temperature:
        ours = _generated(model, asked.requests(*sizes, inf))
    with Progress(1 + len(rates) * repeats, "load") as bar:
        warm = replace(asked, n=min(asked.n, 8)).requests(*sizes, inf)
        extras = understood(target, warm[0])
        _answered(target, serve(target, warm, extras))
        for rate in rates:
            requests, runs = asked.requests(*sizes, rate), []
            for _ in range(repeats):
                bar.update(note=f"{rate:g} a second")
                runs.append(_answered(target, serve(target, requests, extras)))
            row = {"rate": None if rate == inf else rate, "scheme": label or target.model}
            row |= _row(requests, runs, limits)
            rows.append(row | _compared(model, target, requests, runs, ours))
    about = {"server": target.url, "model": target.model, **asdict(asked), "block_size": block_size}
    about |= {"repeats": repeats, "limits": limits, "clock": "real"}
    return about | {"greedy": not target.temperature, "rows": rows}


def add_rows(result: dict, to: dict) -> dict:
    """The other result with these rows, too; rows of the same scheme are replaced.

    Raises ValueError when it is of other requests.
    """
    for name in SAME:
        if to.get(name) != result[name]:
            raise ValueError(
                f"it was measured with {name}={to.get(name)!r}, and this with {result[name]!r}: "
                f"give the same options, or --json for a file of its own"
            )
    schemes = {row["scheme"] for row in result["rows"]}
    kept = [row for row in to["rows"] if row["scheme"] not in schemes]
    return to | {"rows": kept + result["rows"]}


def _answered(target: Target, served: Served) -> Served:
    if not served.answers:
        raise Failed(f"{target.url}: no request was answered: {next(iter(served.errors.values()))}")
    return served


def _row(requests: list[Request], runs: list[Served], limits: dict) -> dict:
    errors = Counter(why for run in runs for why in run.errors.values())
    row = {"ratio": None, "failed": max(len(run.errors) for run in runs), "errors": dict(errors)}
    row["busy"] = summary(run.busy for run in runs)
    return row | summarised(requests, [run.answers for run in runs], limits)


def _generated(model: GPT, requests: list[Request]) -> dict[int, list[int]]:
    greedy, device, out = SamplingParams(greedy=True), model.lm_head.weight.device, {}
    for request in requests:
        prompt = request.prompt[None].to(device)
        tokens = complete(model, prompt, request.max_new_tokens, greedy)
        out[request.id] = tokens[0, len(request.prompt) :].tolist()
    return out


def _compared(model, target: Target, requests: list, runs: list[Served], ours: dict | None) -> dict:
    """Whether the texts that came whole are ours; ties that rounding explains are listed."""
    if ours is None:
        return {"equal": None}
    number, parted = {char: i for i, char in enumerate(target.chars)}, []
    for run in runs:
        texts = {name: answer.tokens for name, answer in run.answers.items()}
        theirs = {name: [number.get(char, -1) for char in text] for name, text in texts.items()}
        whole = [request for request in requests if request.id in theirs]
        parted.append(differences(model, whole, ours, theirs))
    equal = all(one["tie"] for found in parted for one in found)
    return {"equal": equal, "differences": max(parted, key=len)}
