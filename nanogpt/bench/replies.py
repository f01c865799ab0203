"""What came back under load, and when: replies, and the latencies that follow from them.

The terms are those of vLLM's serving benchmark. TTFT, time to first token, counts from the arrival,
including time in the queue. TPOT of a request of n tokens is (E2EL - TTFT) / (n - 1), undefined for
n = 1. ITL is every gap of every request. Goodput counts the requests per second that meet every
limit.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import torch

from ..serving.sequence import Request

LATENCIES = ("ttft", "tpot", "itl", "e2el")


class Reply(NamedTuple):
    """A request's reply: tokens, and when they arrived, in seconds after the start.

    A server may send several tokens at once, so there may be fewer moments than tokens. A token is
    None if the server did not say which it was. `text` is the reply's text if only that is known.
    """

    tokens: list[int | None]
    moments: list[float]
    text: str | None = None


Replies = dict[Hashable, Reply]  # one run's replies, by request id
System = Callable[[list[Request]], Replies]  # serves the requests of one run


def measures(
    requests: Sequence[Request], replies: Replies, limits: dict[str, float]
) -> dict[str, float | None]:
    """Throughput, goodput and latencies (p50 and p95, in seconds) of one run.

    `limits` are seconds for ttft, tpot and e2el; a good request meets all of them. Requests without
    a reply are left out, and do not count as good.
    """
    each = [_latencies(r.arrival, replies[r.id]) for r in requests if r.id in replies]
    good = sum(all(max(one[key], default=0) <= limits[key] for key in limits) for one in each)
    out: dict[str, float | None] = {
        "tokens_per_second": tokens_per_second(replies),
        "goodput": good / _end(replies),
    }
    for key in LATENCIES:
        values = torch.tensor([x for one in each for x in one[key]], dtype=torch.float64)
        for percent in (50, 95):
            quantile = values.quantile(percent / 100).item() if len(values) else None
            out[f"{key}_p{percent}"] = quantile
    return out


def _end(replies: Replies) -> float:
    """Seconds from the start to the last token."""
    return max(reply.moments[-1] for reply in replies.values())


def tokens_per_second(replies: Replies) -> float:
    return sum(len(reply.tokens) for reply in replies.values()) / _end(replies)


def _latencies(arrival: float, reply: Reply) -> dict[str, list[float]]:
    """One request's latencies: every gap for itl, at most one value for the others."""
    n = len(reply.tokens)
    moments = reply.moments
    ttft = moments[0] - arrival
    e2el = moments[-1] - arrival
    tpot = [(e2el - ttft) / (n - 1)] if n > 1 else []
    itl = [b - a for a, b in zip(moments, moments[1:], strict=False)]
    return {"ttft": [ttft], "tpot": tpot, "itl": itl, "e2el": [e2el]}
