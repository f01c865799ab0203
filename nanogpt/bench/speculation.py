"""The speedup of speculative decoding over the best engine, with identical tokens.

The roofline bound of plain decoding is one read of weights and cache per token. A pass over known
and proposed tokens together reads them once for several tokens, so speculation may exceed it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from timeit import Timer
from typing import Any, NamedTuple, TypedDict

import torch
from torch import Tensor

from ..config import check_int
from ..data import Corpus, split
from ..decoder.checkpoint import Checkpoint
from ..engines.drafts import LARGEST_TABLE, Draft, DraftModel, NGram, PromptLookup
from ..engines.generation import generate
from ..engines.native import Native, Native8, NativeGeneration
from ..engines.speculation import DraftStats, expected_tokens
from ..engines.toolchain import CannotBuild
from ..model import LanguageModel
from ..sampling import PLAIN, draw_noise
from ..timing import CPU, Summary, clock, interleave, summary
from ..training.evaluation import full_loss
from .roofline import Limits

TABLES = {1: "a table of characters", 2: "a table for pairs", 3: "a table for triples"}
ITSELF = "itself, in 8 bits"
_BASELINE = ("", 0)  # plain decoding: no draft, no proposals
IN_A_ROW = 5  # passes per measurement

Drafts = dict[str, Callable[[int], Draft]]  # by name; the argument is the number of proposals


class Generation(NamedTuple):
    """One timed generation."""

    seconds: float
    tokens: Tensor
    stats: DraftStats | None  # None without a draft


class SpeculationRow(TypedDict):
    """The result of one draft with one number of proposals, over all repeats."""

    draft: str
    k: int
    acceptance_rate: float
    equal: bool  # whether all tokens equal those of plain decoding
    tokens_per_pass: float
    predicted: float  # tokens per pass: (1 - aᵏ⁺¹) / (1 - a)
    tokens_per_second: Summary
    speedup: Summary  # over plain decoding, pair by pair


class SpeculationResult(TypedDict):
    """The result of `speculation` as plain data."""

    n_params: int
    n_new: int
    repeats: int
    rows: list[SpeculationRow]
    plain: Summary  # tokens per second without a draft
    roofline: Summary  # tokens per second of plain decoding at the machine's limits


def speculation(
    model: LanguageModel, drafts: Drafts, ks: list[int], *, n_new: int = 255, repeats: int = 5
) -> SpeculationResult:
    """Time plain decoding and every draft with every k, interleaved; each repeat has its own seed.

    Batch 1, a prompt of one token. The result has a row for each draft and k, and the machine's
    limits, measured in the same turns. Raises CannotBuild: all of it is native code.
    """
    _native(model)
    made: dict[tuple[str, int], Draft | None] = {_BASELINE: None}
    for name, make in drafts.items():
        for k in ks:
            made[name, k] = make(k)
    limits = Limits(model, n_new)
    # The warm-up uses seed 42, and each turn after it the next seed.
    turns = {way: partial(_run, model, n_new, count(42), draft) for way, draft in made.items()}
    runs = interleave(turns, repeats, after_turn=limits.measure)
    base = runs.pop(_BASELINE)
    return {
        "n_params": model.n_params,
        "n_new": n_new,
        "repeats": len(base),
        "rows": [_row(name, k, n_new, drafted, base) for (name, k), drafted in runs.items()],
        "plain": summary(n_new / plain.seconds for plain in base),
        "roofline": summary(limits.bounds()),
    }


def _native(model: LanguageModel) -> Native:
    engine = Native.ready(model, 1)
    if not isinstance(engine, Native):
        raise CannotBuild("speculation is timed in native code, and none can be built here")
    return engine


def _run(model: LanguageModel, n_new: int, seeds: count[int], draft: Draft | None) -> Generation:
    """One generation, with the next seed."""
    prompt = torch.zeros(1, 1, dtype=torch.int64)
    generator = torch.Generator().manual_seed(next(seeds))
    before = clock(CPU)
    steps = generate(model, prompt, n_new, engine=Native, draft=draft, generator=generator)
    tokens = torch.cat(list(steps), dim=1)
    return Generation(clock(CPU) - before, tokens, getattr(steps, "stats", None))


def _row(
    draft: str, k: int, n_new: int, runs: list[Generation], base: list[Generation]
) -> SpeculationRow:
    stats = [run.stats for run in runs if run.stats]
    pairs = list(zip(runs, base, strict=True))
    accepted = sum(one.accepted for one in stats)
    rate = accepted / max(1, accepted + sum(one.rejected for one in stats))
    return {
        "draft": draft,
        "k": k,
        "acceptance_rate": rate,
        "equal": all(torch.equal(drafted.tokens, plain.tokens) for drafted, plain in pairs),
        "tokens_per_pass": n_new * len(runs) / sum(one.passes for one in stats),
        "predicted": expected_tokens(rate, k),
        "tokens_per_second": summary(n_new / run.seconds for run in runs),
        "speedup": summary(plain.seconds / drafted.seconds for drafted, plain in pairs),
    }


def pass_seconds(
    model: LanguageModel, counts: list[int], *, repeats: int = 15
) -> dict[int, Summary]:
    """Seconds of one native pass for each number of tokens, after at most 100 others: summaries.

    Each turn times several in a row, after one that refills the processor's caches, because a pass
    of a small model is shorter than that. Raises ValueError for counts that exceed the block,
    CannotBuild without a compiler.
    """
    engine = _native(model)
    block = model.config.block_size
    place = min(100, block - 1 - max(counts))
    check_int("tokens in one pass", max(counts), 1, block - 1)
    text = torch.zeros(1, block, dtype=torch.int64)
    noise = draw_noise(block - 1, 1, model.config.vocab_size, torch.Generator())
    with NativeGeneration(engine, model, text, 1, noise, PLAIN) as session:
        session.decode(0, place)
        passes = {n: partial(session.check, place, place + n) for n in counts}
        turns = {n: partial(Timer(one, one).timeit, IN_A_ROW) for n, one in passes.items()}
        seconds = interleave(turns, repeats)
    return {n: summary(total / IN_A_ROW for total in turns) for n, turns in seconds.items()}


def usual_drafts(model: LanguageModel, text: Tensor) -> Drafts:
    """Drafts that need no training: the model in 8 bits, a table, the text so far."""
    V = model.config.vocab_size
    n = 3
    while n > 1 and V**n > LARGEST_TABLE:
        n -= 1
    return {
        ITSELF: partial(DraftModel, model, engine=Native8),
        TABLES[n]: partial(NGram, text, V, n),
        "look-up in its own text": partial(PromptLookup, 5),
    }


# ------------------------------------------------------------------ trained models


def speculation_of(
    target: Checkpoint,
    draft: Checkpoint | None,
    corpus: Corpus,
    ks: list[int],
    *,
    n_new: int,
    repeats: int = 5,
) -> dict[str, Any]:
    """`speculation` with the usual drafts of a trained model and, if given, a smaller one.

    Beside it stand what explains its figures: the seconds of a pass and of a proposal, and the
    losses of both models on this corpus. Raises ValueError for another vocabulary.
    """
    # 1. The drafts. The table is counted in the training text.
    model = target.model.eval()
    data, val = split(target.tokenizer.encode(corpus.text), model.config.block_size)
    drafts = usual_drafts(model, data)
    if draft and draft.tokenizer.chars != target.tokenizer.chars:
        raise ValueError(
            "the draft and the target have different vocabularies: they need the same characters"
        )
    if draft:
        name = f"a GPT of {draft.model.n_params / 1e6:.2f}M"
        drafts = {name: partial(DraftModel, draft.model.eval()), **drafts}
    # 2. The speedups.
    result = speculation(model, drafts, ks, n_new=n_new, repeats=repeats)
    # 3. What explains them.
    passes = pass_seconds(model, sorted({1, *(k + 1 for k in ks)}))
    proposal = pass_seconds(draft.model, [1])[1] if draft else None
    return {
        "corpus": corpus.name,
        "target": _origin(target, val),
        "draft": _origin(draft, val) if draft else None,
        **result,
        "passes": passes,
        "proposal": proposal,
    }


def _origin(saved: Checkpoint, val: Tensor) -> dict[str, Any]:
    """The identity and number of the weights, and their loss on this validation text."""
    about = {"sha256": saved.sha256, "step": saved.meta["step"], "losses": saved.meta["losses"]}
    return about | {"n_params": saved.model.n_params, "loss": full_loss(saved.model, val)}
