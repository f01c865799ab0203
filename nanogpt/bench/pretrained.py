"""The ladder of a pretrained model: time to first token, and decoding speed after it.

Engines decode the same prompt greedily, interleaved with other programs. Caches are as long
as the run needs. With a large vocabulary and a long context the two phases are very different:
the first token is compute-bound (a prefill of the whole prompt), the others are memory-bound (all
weights are read for each token).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypedDict

import torch
from torch import Tensor

from ..config import check_int
from ..decoder.model import Decoder
from ..engines.base import Engine
from ..engines.eager import Uncached
from ..engines.generation import generate
from ..sampling import SamplingParams
from ..timing import Summary, clock, interleave, summary
from .ladder import Rung, build_engine, chosen_rungs
from .roofline import Limits, LimitsData, work

_GREEDY = SamplingParams(greedy=True)
_USUAL = {"cpu": "13467"}  # rungs by the kind of device: a compiled step takes minutes to build

# Returns the n greedy tokens after a prompt (T,); calls its last argument at the first one.
Decode = Callable[[Tensor, int, Callable[[], None]], Tensor]


@dataclass(frozen=True)
class PretrainedPeer:
    """Another program on the same model."""

    decode: Decode
    weights: str  # their type, such as "F32"
    weight_bytes: int  # bytes of weights read per token
    kv_itemsize: int  # bytes per number in its cache


class _Timed(NamedTuple):
    """One run: its tokens (n,), the seconds to the first, and from there to the last."""

    tokens: Tensor
    first: float
    rest: float


class PretrainedRow(TypedDict, total=False):
    """One rung's result: why it is unavailable, or how fast it is."""

    rung: str
    label: str
    weights: str
    unavailable: str
    first_token: Summary  # seconds
    prompt_per_second: Summary  # prompt tokens
    tokens_per_second: Summary  # after the first
    speedup: Summary  # tokens_per_second over the first rung's, turn by turn
    read_per_second: Summary  # bytes of weights and cache read for these tokens
    equal_tokens: int  # length of the common prefix with the first rung's tokens


class PretrainedResult(TypedDict):
    """The result of `pretrained_ladder` as plain data."""

    n_params: int
    n_prompt: int
    n_new: int
    repeats: int
    limits: LimitsData
    rungs: list[PretrainedRow]


def pretrained_ladder(
    model: Decoder,
    prompt: Tensor,
    *,
    n_new: int = 64,
    repeats: int = 5,
    only: str | None = None,
    peers: dict[str, PretrainedPeer] | None = None,
) -> PretrainedResult:
    """Time every rung on this model: batch 1, n_new greedy tokens after a prompt (T,).

    The rungs and the `peers` are interleaved, repeat by repeat, after one warm-up each.
    `only` selects rungs, for example "1346"; None: all but the compiled step. Raises ValueError.
    """
    n_prompt = len(prompt)
    check_int("n_new", n_new, 2, max(2, model.config.block_size - n_prompt))
    device = model.device
    limits = Limits(model, n_new, n_prompt)
    prompt = prompt.to(device)
    rows: dict[Rung, PretrainedRow] = {}
    runs: dict[Rung, Callable[[], _Timed]] = {}
    dtype = str(model.dtype).removeprefix("torch.")
    needs: dict[Rung, float] = {}  # bytes per token
    for rung in chosen_rungs(device, only or _USUAL.get(device.type)):
        if rung.engine is None:
            continue
        engine, how = build_engine(rung.engine, model, n_prompt + n_new)
        rows[rung] = {"weights": "8-bit" if rung.itemsize == 1 else dtype}
        if engine is None:
            rows[rung] = {"unavailable": how["unavailable"]}
            continue
        runs[rung] = partial(_decode, model, prompt, n_new, engine)
        size = model.lm_head.weight.element_size()
        needs[rung] = work(
            model.config,
            n_new - 1,
            cached=rung.engine is not Uncached,
            itemsize=rung.itemsize or size,
            kv_itemsize=size,
            n_prompt=n_prompt + 1,
        )["bytes"]
    if not runs:
        reason = next(iter(rows.values()))["unavailable"]
        raise ValueError(f"nothing to time: rungs {only} cannot be built here ({reason})")
    c = model.config
    for label, peer in (peers or {}).items():
        rung = Rung("–", label, None)
        rows[rung] = {"weights": peer.weights}
        runs[rung] = partial(_decode_by_peer, prompt, n_new, peer.decode)
        kv = c.cache_bytes(1, itemsize=peer.kv_itemsize) * (n_prompt + n_new / 2)
        needs[rung] = peer.weight_bytes + kv
    turns = interleave(runs, repeats, limits.measure)
    base = next(iter(runs))
    for rung, row in rows.items():
        row["rung"] = rung.number
        row["label"] = rung.label
        if rung in turns:
            _measure(row, turns[rung], turns[base], n_prompt, needs[rung])
    return {
        "n_params": model.n_params,
        "n_prompt": n_prompt,
        "n_new": n_new,
        "repeats": repeats,
        "limits": limits.as_dict(),
        "rungs": list(rows.values()),
    }


def _measure(
    row: PretrainedRow, turns: list[_Timed], base: list[_Timed], n_prompt: int, need: float
) -> None:
    """Add the figures of a rung's turns to its row."""
    n = len(turns[0].tokens) - 1  # after the first
    row["first_token"] = summary(turn.first for turn in turns)
    row["prompt_per_second"] = summary(n_prompt / turn.first for turn in turns)
    row["tokens_per_second"] = summary(n / turn.rest for turn in turns)
    pairs = zip(base, turns, strict=True)
    row["speedup"] = summary(a.rest / b.rest for a, b in pairs)
    row["read_per_second"] = summary(n * need / turn.rest for turn in turns)
    same = turns[-1].tokens == base[-1].tokens
    row["equal_tokens"] = int(same.int().cumprod(0).sum())


def _decode(model: Decoder, prompt: Tensor, n_new: int, engine: Engine) -> _Timed:
    """One generation by one of our engines."""
    began = clock(model.device)
    steps = generate(model, prompt[None], n_new, _GREEDY, engine=engine)
    tokens = [next(steps)]
    first = clock(model.device)
    tokens += steps
    end = clock(model.device)
    return _Timed(torch.cat(tokens, dim=1)[0].cpu(), first - began, end - first)


def _decode_by_peer(prompt: Tensor, n_new: int, decode: Decode) -> _Timed:
    """One generation by another program."""
    moments: list[float] = []
    began = clock(prompt.device)
    tokens = decode(prompt, n_new, lambda: moments.append(clock(prompt.device)))
    end = clock(prompt.device)
    return _Timed(tokens, moments[0] - began, end - moments[0])


# ------------------------------------------------------------------ transformers


def transformers_peer(
    form: tuple[dict[str, Any], dict[str, Tensor]], weight_bytes: int
) -> dict[str, PretrainedPeer]:
    """transformers' `generate` in float32, with its dynamic and its static cache.

    `form` is a config and tensors from the export. Raises ImportError without transformers.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    config, tensors = form
    theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), dtype=torch.float32)
    theirs.load_state_dict(tensors, strict=False)  # a tied head has no tensor of its own
    theirs.eval()

    def decode(prompt: Tensor, n_new: int, first: Callable[[], None], **cache: str) -> Tensor:
        text: Tensor = theirs.generate(
            prompt[None],
            attention_mask=torch.ones_like(prompt)[None],
            do_sample=False,
            max_new_tokens=n_new,
            streamer=_First(first),
            **cache,
        )
        return text[0, len(prompt) :]

    static = partial(decode, cache_implementation="static")
    return {
        "transformers, dynamic cache": PretrainedPeer(decode, "float32", weight_bytes, 4),
        "transformers, static cache": PretrainedPeer(static, "float32", weight_bytes, 4),
    }


class _First:
    """A streamer for transformers, which receives the prompt and then every token."""

    def __init__(self, first: Callable[[], None]):
        self.first = first
        self.seen = 0

    def put(self, tokens: Tensor) -> None:
        self.seen += 1
        if self.seen == 2:
            self.first()

    def end(self) -> None:
        """Do nothing."""
