"""What a stream of requests got: throughput and latencies, and texts that differ, explained.

The terms are those of vLLM's serving benchmark. TTFT, time to first token, counts from the arrival,
the queue included. TPOT of a request of n tokens is (E2EL - TTFT) / (n - 1), and there is none for
n = 1. ITL is every gap of every request. Goodput counts the requests a second that meet every
limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from ..config.checks import check_positive
from ..model.gpt import GPT
from ..serving.request import Request
from .timing import summary

LATENCIES = ("ttft", "tpot", "itl", "e2el")
LIMITED = ("ttft", "tpot", "e2el")  # what a request can be asked to meet
ROUNDING = 256 * torch.finfo(torch.float32).eps  # of the largest logit: what two programs may add


class Answer(NamedTuple):
    """What a request got: tokens, and seconds after the start at which they were there.

    A server may send several tokens at once: then there are fewer moments than tokens.
    """

    tokens: list
    moments: list[float]


def check_limits(limits: dict[str, float]) -> None:
    """Raises ValueError unless these are seconds for some of LIMITED."""
    for name, limit in limits.items():
        if name not in LIMITED:
            raise ValueError(f"a limit on {name!r}: choose from {', '.join(LIMITED)}")
        check_positive(name, limit)


def measures(
    requests: Sequence[Request], answers: dict[int, Answer], limits: dict[str, float]
) -> dict:
    """Throughput, goodput and latencies of one run, in seconds; each of these as p50 and p95.

    `limits` are seconds for ttft, tpot and e2el, all of which a request must meet. Requests without
    an answer are left out, and a good one needs an answer.
    """
    each = [_of_request(r.arrival, answers[r.id]) for r in requests if r.id in answers]
    end = max(moments[-1] for _, moments in answers.values())
    good = sum(all((one[key] or 0.0) <= limit for key, limit in limits.items()) for one in each)
    n_tokens = sum(len(tokens) for tokens, _ in answers.values())
    out = {"tokens_per_second": n_tokens / end, "requests_per_second": len(each) / end}
    out |= {"goodput": good / end, "seconds": end}
    for key in LATENCIES:
        values = [one[key] for one in each if one[key] is not None]
        pooled = [gap for gaps in values for gap in gaps] if key == "itl" else values
        for percent in (50, 95):
            out[f"{key}_p{percent}"] = percentile(pooled, percent)
    return out


def summarised(
    requests: Sequence[Request], runs: Sequence[dict[int, Answer]], limits: dict[str, float]
) -> dict:
    """`measures` of several runs, each a summary over them; None where a run has none."""
    each = [measures(requests, answers, limits) for answers in runs]
    columns = {key: [one[key] for one in each] for key in each[0]}
    return {key: None if None in column else summary(column) for key, column in columns.items()}


def _of_request(arrival: float, answer: Answer) -> dict:
    n, moments = len(answer.tokens), answer.moments
    ttft, e2el = moments[0] - arrival, moments[-1] - arrival
    gaps = [b - a for a, b in zip(moments, moments[1:], strict=False)]
    tpot = (e2el - ttft) / (n - 1) if n > 1 else None
    return {"ttft": ttft, "e2el": e2el, "itl": gaps, "tpot": tpot}


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Between the two values next to it, linearly; None of no values."""
    if not values:
        return None
    return torch.tensor(values, dtype=torch.float64).quantile(percent / 100).item()


def differences(
    model: GPT, requests: Sequence[Request], ours: dict[int, list], theirs: dict[int, list]
) -> list[dict]:
    """Where greedy texts part: {"request", "at", "margin", "tie"} for each request that differs.

    `margin` is the distance, in our logits, from our token to theirs, given the tokens before. It
    is a `tie` when rounding alone may cover it. A text that only ended early has no margin.
    """
    found = []
    for request in requests:
        own, other = ours[request.id], theirs.get(request.id, [])
        if own == other:
            continue
        pairs = enumerate(zip(own, other, strict=False))
        at = next((i for i, (a, b) in pairs if a != b), None)
        one = {"request": request.id, "at": len(other) if at is None else at}
        found.append(one | {"margin": None, "tie": False})
        if at is not None:
            found[-1] |= _margin(model, request.prompt.tolist() + own[:at], own[at], other[at])
    return found


@torch.no_grad()
def _margin(model: GPT, tokens: list[int], own: int, other: int) -> dict:
    weight = model.lm_head.weight
    logits = model(torch.tensor([tokens], device=weight.device))[0][0, -1].double()
    margin = float(logits[own] - logits[other])
    return {"margin": margin, "tie": margin <= ROUNDING * float(logits.abs().max())}
