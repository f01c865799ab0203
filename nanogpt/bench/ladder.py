"""The ladder: every engine on the same tokens, interleaved, compared with the machine's limits.

A text is generated in two phases. The prefill reads the whole prompt and gives the first token, and
is limited by arithmetic. Each further step reads all weights for one token, and is limited by
memory. So the two are timed apart. A prompt of one token has no prefill: all its tokens are steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import NamedTuple, TypedDict, TypeVar

import torch
from torch import Tensor

from ..config import check_int
from ..decoder.config import decoder_config
from ..decoder.model import Decoder
from ..decoder.pack import as_decoder
from ..engines.base import Engine
from ..engines.compiled import Compiled, Graph, GraphLoop
from ..engines.eager import Batched, Flat, PerHead, Uncached, as_heads
from ..engines.generation import complete, generate
from ..engines.native import Native, Native8
from ..engines.toolchain import CannotBuild
from ..model import GPT, LanguageModel
from ..sampling import PLAIN, SamplingParams, draw_noise
from ..timing import Summary, clock, interleave, summary
from .peers import Peer, PeerTask
from .roofline import Breakdown, Limits, LimitsData, TokenWork, breakdown, work

_Model = TypeVar("_Model", GPT, Decoder)


@dataclass(frozen=True)
class Rung:
    """One rung of the ladder: an engine, and the inputs to its roofline."""

    number: str
    label: str
    engine: type[Engine]
    itemsize: int | None = None  # bytes per weight; None: the model's dtype


class RungRow(TypedDict, total=False):
    """One rung's result: why it is unavailable, or how fast it is."""

    rung: str
    label: str
    unavailable: str
    weights: str  # their type, such as "float32"
    build_seconds: float  # to build its engine, unless one was reused; a peer has none
    first_token: Summary  # seconds of the prefill, if there is one
    prompt_per_second: Summary  # prompt tokens, in the prefill
    tokens_per_second: Summary  # in the steps
    speedup: Summary  # the steps' ratio to the first rung, pair by pair
    equal: bool  # whether its tokens equal the first rung's
    equal_tokens: int  # length of the common prefix with the first rung's tokens
    split: Breakdown  # of the seconds of a step


class Best(TypedDict):
    """Our fastest rung with unquantized weights and equal tokens."""

    rung: str
    share_of_bound: Summary


class LadderResult(TypedDict):
    """The result of `ladder` as plain data."""

    n_params: int
    n_prompt: int
    n_new: int
    repeats: int
    limits: LimitsData
    rungs: list[RungRow]
    best: Best | None


@dataclass(frozen=True)
class _Task:
    """The text that every rung generates."""

    prompt: Tensor  # (T,)
    n_new: int
    greedy: bool
    seed: int

    @property
    def has_prefill(self) -> bool:
        """Whether the first token is a phase of its own."""
        return len(self.prompt) > 1

    @property
    def n_steps(self) -> int:
        """The tokens that the steps give; with a prefill, the first one is not theirs."""
        return self.n_new - self.has_prefill

    @property
    def first_step(self) -> int:
        """The tokens of the text before the first step."""
        return len(self.prompt) + self.has_prefill


class _Turn(NamedTuple):
    """One timed generation: its tokens (n_new,), and the seconds of its two phases."""

    tokens: Tensor
    prefill: float  # 0 without a prefill
    steps: float


EAGER = (
    Rung("1", "per-Head, no cache", Uncached),
    Rung("2", "per-Head, cache by torch.cat", PerHead),
    Rung("3", "batched heads, torch.cat", Batched),
    Rung("4", "flat step, eager", Flat),
)
BUILT = {
    "cpu": (
        Rung("5", "compiled step", Compiled),
        Rung("6", "native loop", Native),
        Rung("7", "native loop, 8-bit weights", Native8, itemsize=1),
    ),
    "cuda": (
        Rung("5", "CUDA graph of a step", Graph),
        Rung("6", "CUDA graph of 16 steps", GraphLoop),
    ),
}


def rungs(device: torch.device) -> tuple[Rung, ...]:
    """The ladder on this kind of device, slowest first."""
    return EAGER + BUILT["cuda" if device.type == "cuda" else "cpu"]


def ladder(
    model: LanguageModel,
    prompt: Tensor | None = None,
    *,
    n_new: int = 255,
    greedy: bool = False,
    repeats: int = 5,
    seed: int = 42,
    only: str | None = None,
    peers: dict[str, Peer] | None = None,
) -> LadderResult:
    """Time every rung on this model: n_new tokens of one text after a prompt (T,), or token 0.

    The tokens are sampled with the noise of `seed`, or `greedy`. The rungs and the `peers` are
    interleaved, repeat by repeat, after one warm-up each; the time includes noise and checks.
    Caches are as long as the text. `only` selects rungs, for example "1356". The machine's limits
    are measured between the turns. Raises ValueError.
    """
    # 1. The text, and the limits for it.
    device = model.lm_head.weight.device
    prompt = torch.zeros(1, dtype=torch.int64) if prompt is None else prompt
    block = model.config.block_size
    check_int("n_new", n_new, 2, max(2, block + 1 - len(prompt)))
    task = _Task(prompt.to(device), n_new, greedy, seed)
    limits = Limits(model, task.n_steps, task.first_step)
    # 2. Who climbs: the rungs that can be built here, and the other programs.
    own = [_engine_climber(rung, model.eval(), task) for rung in chosen_rungs(device, only)]
    if not any(climber.run for climber in own):
        reason = own[0].row["unavailable"]
        raise ValueError(f"nothing to time: rungs {only} cannot be built here ({reason})")
    others = [_peer_climber(label, peer, model, task) for label, peer in (peers or {}).items()]
    climbers = {climber.row["label"]: climber for climber in own + others}
    # 3. Their times, and what follows from them.
    runs = {label: climber.run for label, climber in climbers.items() if climber.run}
    turns = interleave(runs, repeats, limits.measure)
    bounds = limits.as_dict()
    base = turns[next(iter(runs))]
    for label, found in turns.items():
        _measure(climbers[label], found, base, task, bounds)
    return {
        "n_params": model.n_params,
        "n_prompt": len(prompt),
        "n_new": n_new,
        "repeats": repeats,
        "limits": bounds,
        "rungs": [climber.row for climber in climbers.values()],
        "best": _best([climbers[label] for label in turns], turns, task, limits),
    }


def chosen_rungs(device: torch.device, only: str | None) -> list[Rung]:
    """The rungs selected by `only`, for example "1356"; None: all. Raises ValueError."""
    known = {rung.number: rung for rung in rungs(device)}
    if only is not None and (not only or set(only) - set(known)):
        raise ValueError(
            f"there are no rungs {only}: choose from {''.join(known)}, for example 1356"
        )
    return [rung for number, rung in known.items() if only is None or number in only]


def sharpened(model: _Model) -> _Model:
    """Scale up the matrices in place, so that even an untrained model's output is not uniform."""
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 2:
                p.mul_(4)
    return model


@dataclass
class _Climber:
    """An engine or another program: its row so far, and how to run it."""

    row: RungRow
    run: Callable[[], _Turn] | None = None  # None: it is unavailable
    need: TokenWork = field(default_factory=lambda: TokenWork(flop=0.0, bytes=0.0))  # of a step
    same_weights: bool = False  # an engine of ours with the model's own weights


def _engine_climber(rung: Rung, model: LanguageModel, task: _Task) -> _Climber:
    """Build a rung's engine; its row has the build time, or the reason why there is none."""
    row: RungRow = {"rung": rung.number, "label": rung.label}
    weight = model.lm_head.weight
    refusal = rung.engine.refuses(model.config)
    if refusal:
        return _Climber(row | {"unavailable": str(refusal)})
    capacity = min(model.config.block_size, len(task.prompt) + task.n_new)
    try:
        engine = rung.engine(
            model.config, capacity=capacity, dtype=weight.dtype, device=weight.device
        )
    except CannotBuild as error:
        return _Climber(row | {"unavailable": str(error)})
    # 1. The first two rungs run the lecture's separate heads, all others packed ones.
    form: LanguageModel = as_decoder(model)
    if rung.engine in (Uncached, PerHead):
        form = model if isinstance(model, GPT) else as_heads(form)
    # 2. What a step has to compute and to read.
    itemsize = weight.element_size()
    need = work(
        model.config,
        task.n_steps,
        cached=rung.engine is not Uncached,
        itemsize=rung.itemsize or itemsize,
        kv_itemsize=itemsize,
        n_prompt=task.first_step,
    )
    row["weights"] = "8-bit" if rung.itemsize == 1 else str(weight.dtype).removeprefix("torch.")
    row["build_seconds"] = engine.build_seconds
    run = partial(_generation, form, task, engine)
    return _Climber(row, run, need, same_weights=rung.itemsize is None)


def _peer_climber(label: str, peer: Peer, model: LanguageModel, task: _Task) -> _Climber:
    """Another program; the bytes of its weights and of its cache may be others than ours."""
    sizes = {"itemsize": 0, "kv_itemsize": peer.kv_itemsize}  # the weights are added below
    need = work(model.config, task.n_steps, cached=True, n_prompt=task.first_step, **sizes)
    weights = peer.weight_bytes
    if weights is None:
        weights = decoder_config(model.config).weight_bytes()
    need["bytes"] += weights
    row: RungRow = {"rung": "–", "label": label, "weights": peer.weights}
    return _Climber(row, partial(_peer_generation, model.config.vocab_size, task, peer), need)


def _generation(model: LanguageModel, task: _Task, engine: Engine) -> _Turn:
    """One generation by an engine."""
    sampling = SamplingParams(greedy=True) if task.greedy else PLAIN
    generator = torch.Generator().manual_seed(task.seed)
    arguments = (model, task.prompt[None], task.n_new, sampling)
    begun = clock(model.device)
    if not task.has_prefill:
        # All at once: a native loop needs no Python between its tokens.
        text = complete(*arguments, engine=engine, generator=generator)
        end = clock(model.device)
        return _Turn(text[0, 1:].cpu(), 0.0, end - begun)
    steps = generate(*arguments, engine=engine, generator=generator)
    tokens = [next(steps)]
    first = clock(model.device)
    tokens += steps
    end = clock(model.device)
    return _Turn(torch.cat(tokens, dim=1)[0].cpu(), first - begun, end - first)


def _peer_generation(vocab_size: int, task: _Task, peer: Peer) -> _Turn:
    """One generation by another program; drawing its noise is timed, as for an engine."""
    device = task.prompt.device
    generator = torch.Generator().manual_seed(task.seed)
    moments: list[float] = []
    begun = clock(device)
    noise = None
    if not task.greedy:
        noise = draw_noise(task.n_new, 1, vocab_size, generator)[:, 0].to(device)
    tokens = peer.decode(
        PeerTask(task.prompt, task.n_new, noise, lambda: moments.append(clock(device)))
    )
    end = clock(device)
    first = moments[0] if task.has_prefill else begun
    return _Turn(tokens.cpu(), first - begun, end - first)


def _measure(
    climber: _Climber,
    turns: list[_Turn],
    base: list[_Turn],
    task: _Task,
    bounds: LimitsData,
) -> None:
    """Add the figures of a climber's turns to its row."""
    row = climber.row
    # 1. The speed of both phases.
    if task.has_prefill:
        row["first_token"] = summary(turn.prefill for turn in turns)
        row["prompt_per_second"] = summary(len(task.prompt) / turn.prefill for turn in turns)
    row["tokens_per_second"] = summary(task.n_steps / turn.steps for turn in turns)
    pairs = zip(base, turns, strict=True)
    row["speedup"] = summary(a.steps / b.steps for a, b in pairs)
    # 2. Its tokens, beside the first rung's.
    same = turns[-1].tokens == base[-1].tokens
    row["equal_tokens"] = int(same.int().cumprod(0).sum())
    row["equal"] = row["equal_tokens"] == task.n_new
    # 3. Where the time of a step goes.
    seconds = median(turn.steps for turn in turns) / task.n_steps
    row["split"] = breakdown(
        seconds, climber.need, bounds["read"]["median"], bounds["peak"]["median"]
    )


def _best(
    climbers: list[_Climber], turns: dict[str, list[_Turn]], task: _Task, limits: Limits
) -> Best | None:
    """Our fastest unquantized rung with equal tokens: its share of the bound, turn by turn."""
    full = [one.row for one in climbers if one.same_weights and one.row["equal"]]
    if not full:
        return None
    best = max(full, key=lambda row: row["tokens_per_second"]["median"])
    pairs = zip(turns[best["label"]], limits.bounds(), strict=True)
    shares = (task.n_steps / turn.steps / bound for turn, bound in pairs)
    return {"rung": best["rung"], "share_of_bound": summary(shares)}
