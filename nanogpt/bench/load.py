"""Throughput and latency under load: several systems, or one server, at several rates.

The requests come from `arrivals`, what is measured from `replies`. A system is one of `schemes`, or
a `loaded_server`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from math import inf
from typing import Any

from ..serving.sequence import Request
from ..timing import Summary, interleave, summary
from .arrivals import Prompt, poisson
from .replies import Replies, Reply, System, measures, tokens_per_second


def load(
    systems: dict[str, System],
    rates: Sequence[float],
    *,
    n: int = 64,
    vocab_size: int,
    block_size: int,
    greedy: bool = False,
    repeats: int = 3,
    limits: dict[str, float] | None = None,
    prompt: Prompt | None = None,
    reference: System | None = None,
) -> list[dict[str, Any]]:
    """Serve the same n requests with every system, at each rate (per second; inf: at once).

    The systems are those of `schemes`, or a server. They are interleaved, repeat by repeat, after a
    warm-up with at most 8 requests. See `measures` for `limits` and `poisson` for `prompt`.

    Returns plain data, a row for each rate and system: summaries of all measures over the repeats,
    and the number of `failed` requests. `differ` counts the texts that differ from those of the
    `reference`, a system that is not timed, or without one from those of the first system; None if
    there is neither. With several systems, `ratio` is the speedup over the first one, pair by pair.
    Raises ValueError.
    """
    shape = (vocab_size, block_size, greedy, prompt)
    requests_at = {rate: poisson(n, rate, *shape) for rate in rates}
    every = poisson(n, inf, *shape)
    for system in systems.values():
        system(every[:8])
    texts = reference(every) if reference else None
    rows = []
    for rate, requests in requests_at.items():
        turns = {name: partial(system, requests) for name, system in systems.items()}
        done = interleave(turns, repeats, warmup=0)
        if len(systems) > 1:
            texts = texts or next(iter(done.values()))[0]
        for row in _rows(requests, done, texts, limits or {}):
            rows.append({"rate": None if rate == inf else rate, **row})
    return rows


def _rows(
    requests: list[Request],
    done: dict[str, list[Replies]],
    texts: Replies | None,
    limits: dict[str, float],
) -> Iterator[dict[str, Any]]:
    """One row per system at one rate, from all its runs."""
    base: list[float] = []
    for name, runs in done.items():
        speeds = [tokens_per_second(replies) for replies in runs]
        base = base or speeds
        row: dict[str, Any] = {
            "scheme": name,
            "failed": max(len(requests) - len(replies) for replies in runs),
            "differ": None,
            "ratio": None,
        }
        if texts:
            row["differ"] = max(_n_different(replies, texts) for replies in runs)
        if len(done) > 1:
            row["ratio"] = summary(a / b for a, b in zip(speeds, base, strict=True))
        each = [measures(requests, replies, limits) for replies in runs]
        for key in each[0]:
            row[key] = _summary_of_known([one[key] for one in each])
        yield row


def _n_different(replies: Replies, texts: Replies) -> int:
    return sum(_differs(reply, texts[i]) for i, reply in replies.items())


def _differs(reply: Reply, right: Reply) -> bool:
    """Whether a reply differs; compares its text if no tokens are known."""
    if reply.text is not None:
        return reply.text != right.text
    return reply.tokens != right.tokens


def _summary_of_known(values: list[float | None]) -> Summary | None:
    """A summary, or None if a run had nothing to measure."""
    known = [value for value in values if value is not None]
    return summary(known) if len(known) == len(values) else None
