"""Throughput and latency under load: requests that arrive whether or not the server is ready."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from math import inf

from ..config.checks import check_int, check_positive
from ..model.gpt import GPT
from ..serving.request import Request
from ..system.console import Progress
from .arrivals import Load
from .measures import Answer, differences, measures, summarised
from .schemes import SCHEMES, Run, Scheme, Settings
from .step_cost import fit
from .timing import summary

Peer = Callable[[list[Request]], dict[int, Answer]]  # another system, in real time
Done = dict[float, dict[str, list[Run]]]  # the runs at each rate, by name


def load(
    model: GPT,
    rates: Sequence[float],
    *,
    asked: Load | None = None,
    repeats: int = 3,
    schemes: Sequence[Scheme] = SCHEMES,
    peers: dict[str, Peer] | None = None,
    **settings,
) -> dict:
    """Serve the same requests under every scheme, at each rate (requests a second; inf: at once).

    The schemes, and `peers` in real time, take turns, repeat by repeat, after a warm-up of each.
    `settings` are those of Settings. Returns plain data: `rows` for each rate and scheme, as `_row`
    makes them; `line`, what a step costs; `simulated`, rows of the schemes as replayed on that
    line; `static`, what continuous batching gains over static batches. Raises ValueError.
    """
    asked, how, peers = asked or Load(), Settings(**settings), peers or {}
    check_rates(rates, repeats)
    serve = {scheme.name: partial(how.serve, model, scheme) for scheme in schemes}
    serve |= {name: lambda those, peer=peer: Run(peer(those)) for name, peer in peers.items()}
    done: Done = {rate: {name: [] for name in serve} for rate in rates}
    with Progress((1 + len(rates) * repeats) * len(serve), "load") as bar:
        for name, run in serve.items():
            bar.update(note=name)
            run(_requests(model, replace(asked, n=min(asked.n, 8)), inf))
        for rate, name in [(rate, name) for rate in rates for name in list(serve) * repeats]:
            bar.update(note=name)
            done[rate][name].append(serve[name](_requests(model, asked, rate)))
    steps = [run.steps for own in done.values() for scheme in schemes for run in own[scheme.name]]
    about = {"n_params": model.n_params, "block_size": model.config.block_size, **asdict(asked)}
    about |= {"running": how.running, "budget": how.budget, "repeats": repeats}
    about |= {"limits": how.limits, "clock": "real" if how.real else "virtual", "line": fit(steps)}
    pairs = [(rate, name) for rate in rates for name in serve]
    about["rows"] = [_row(model, asked, how, rate, done[rate], name) for rate, name in pairs]
    about["simulated"] = simulated(model, asked, how, rates, about["line"], schemes)
    return about | {"static": _static(model, asked, how, done, about["simulated"])}


def _requests(model: GPT, asked: Load, rate: float) -> list[Request]:
    return asked.requests(model.config.vocab_size, model.config.block_size, rate)


def _row(model: GPT, asked: Load, how: Settings, rate: float, done: dict, name: str) -> dict:
    """Summaries over the repeats of all measures; `ratio`, its speed over the first scheme's.

    `bookkeeping` is the share of the time outside the backend, sampling included. `equal` says
    whether its tokens are the first scheme's. A peer has `ours`, the speed of our fastest scheme
    over its own, and its texts may differ at ties: `differences`.
    """
    base, own, requests = next(iter(done.values())), done[name], _requests(model, asked, rate)
    row = {"rate": None if rate == inf else rate, "scheme": name}
    row["equal"] = all(run.tokens == base[0].tokens for run in own)
    row["ratio"] = _over(own, base)
    row |= summarised(requests, [run.answers for run in own], how.limits)
    if own[0].bookkeeping is not None:
        return row | {"bookkeeping": summary(run.bookkeeping for run in own)}
    parted = [differences(model, requests, base[0].tokens, run.tokens) for run in own]
    row["differences"] = max(parted, key=len)
    row["equal"] = all(one["tie"] for runs in parted for one in runs)
    best = max((runs for runs in done.values() if runs[0].steps is not None), key=_median_speed)
    return row | {"ours": _over(best, own)}


def _over(own: list[Run], base: list[Run]) -> dict:
    """How many times as fast, pair by pair."""
    return summary(a.speed / b.speed for a, b in zip(own, base, strict=True))


def _median_speed(runs: list[Run]) -> float:
    return summary(run.speed for run in runs)["median"]


def simulated(
    model: GPT,
    asked: Load,
    how: Settings,
    rates: Sequence[float],
    line: dict,
    schemes: Sequence[Scheme] = SCHEMES,
) -> list[dict]:
    """Throughput and latencies of the schemes as replayed on a line: plain numbers, in seconds."""
    rows, shown = [], ("tokens_per_second", "goodput", "ttft_p95", "e2el_p50", "e2el_p95")
    for rate in rates:
        requests = _requests(model, replace(asked, greedy=True), rate)
        for scheme in schemes:
            answers = how.replay(model, scheme, requests, line).answers
            got = measures(requests, answers, how.limits)
            rows.append({"rate": None if rate == inf else rate, "scheme": scheme.name})
            rows[-1] |= {key: got[key] for key in shown}
    return rows


def _static(model: GPT, asked: Load, how: Settings, done: Done, rows: list[dict]) -> dict | None:
    """What continuous batching gains over static batches when all is asked at once.

    `bound` is E[max] / mean of the lengths in a batch: the places that are idle. `simulated` counts
    the prompts, and the end, when nobody waits any more. None without these runs.
    """
    runs = done.get(inf, {})
    if not {"continuous", "static batches"} <= set(runs):
        return None
    lengths = [request.max_new_tokens for request in _requests(model, asked, inf)]
    batches = [lengths[i : i + how.running] for i in range(0, len(lengths), how.running)]
    bound = sum(len(batch) * max(batch) for batch in batches) / sum(lengths)
    speed = {row["scheme"]: row["tokens_per_second"] for row in rows if row["rate"] is None}
    expected = speed["continuous"] / speed["static batches"]
    measured = _over(runs["continuous"], runs["static batches"])
    return {"bound": bound, "simulated": expected, "measured": measured}


def check_rates(rates: Sequence[float], repeats: int) -> None:
    """Raises ValueError unless there are rates above 0, and repeats."""
    check_int("repeats", repeats, 1)
    if not rates:
        raise ValueError("rates=[]: give at least one, in requests a second")
    for rate in rates:
        if rate != inf:
            check_positive("rate", rate)
