"""The promise of this package: a faster way to decode gives the tokens of the slow one.

Every field of a config beside every path is in test_every_decoder.py; here are the combinations.
The slow one is `plain_loop` below, the lecture's: the whole text through the model for every token,
then one draw. It knows no cache, engine or draft. The noise of all draws is known before the first,
so a token depends on the text before it alone: whatever computes the same logits must draw the same
tokens. In float64 rounding is far too small to move a draw; compiled engines compute float32.

A generation is one choice on each of the AXES. Of about 100,000 combinations these are a few, which
hold every pair of choices, as "a paged cache" with "a prompt longer than the window". Which two
choices cannot be combined, and `generate` refuses, is written in `excluded`.
"""

import random
from itertools import combinations

import pytest
import torch
from conftest import seeded, state_of
from decoding_fixtures import V, build
from draft_fixtures import PartlyRight, Right, Wrong
from shapes import NO_BIAS, RELU2, RMS, ROPE

import nanogpt
from nanogpt.decoder.pack import unpack_heads
from nanogpt.training.recipes import MODERN

BLOCK = 16
WINDOW = 5
PAST_BLOCK = (16, 4)
CONFIGS = {
    "lecture": {},
    "rope": ROPE,
    "grouped": {"n_kv_head": 2},
    "window": {"window": WINDOW},
    "sinks": {"window": WINDOW, "sinks": 2, **ROPE},
    "keeper": MODERN,
    "modern": {"window": WINDOW, "full_every": 2, "n_kv_head": 1, **ROPE, "qk_norm": True}
    | {"sinks": 1, **RMS, **RELU2, **NO_BIAS},
}
COMPILED = ("lecture", "modern")  # each form and batch that Compiled decodes is a compilation
CACHES = {
    "no cache": None,
    "dynamic": nanogpt.DynamicCache,
    "static": nanogpt.StaticCache,
    "rolling": nanogpt.RollingCache,
    "paged": type("SmallPages", (nanogpt.PagedCache,), {"page": 3}),
}
COMPILER = ("Compiled", "Native")  # engines that need one; they compute float32 only
# A build of Compiled takes a quarter of a minute, so its two rows wait for a release.
MARKS = {"Compiled": [pytest.mark.slow, pytest.mark.release], "Native": [pytest.mark.slow]}
ENGINES = ("Uncached", "PerHead", "Batched", "Flat", *COMPILER)
DRAFTS = {
    "no draft": lambda text, small: None,
    "table": lambda text, small: nanogpt.NGram(text.flatten(), V, 2, k=3),
    "look-up": lambda text, small: nanogpt.PromptLookup(2, k=5),
    "model": lambda text, small: nanogpt.DraftModel(small, k=2),
    "right": lambda text, small: Right(text, V, k=4),
    "partly right": lambda text, small: PartlyRight(text, V, k=4),
    "wrong": lambda text, small: Wrong(text, V, k=1),
}
SAMPLING = ({}, {"greedy": True}, {"temperature": 1.7}, {"top_k": 4}, {"top_p": 0.7})
AXES = {
    "form": ("heads", "batched"),
    "way": (*CACHES, *ENGINES),
    "draft": tuple(DRAFTS),
    "config": tuple(CONFIGS),
    # The prompt's length and the number of new tokens, of which the last is never read.
    "lengths": [(T, n) for T in (1, 4, 5, 6, 15) for n in (1, 17 - T)] + [(16, 1), PAST_BLOCK],
    "sampling": tuple(nanogpt.SamplingParams(**how) for how in SAMPLING),
    "batch": (1, 3),
}


def excluded(a, b) -> bool:
    """Whether two choices, in the order of AXES, cannot be combined."""
    if a in ("heads", "PerHead") and b in CONFIGS:
        return b != "lecture"
    if a == "Compiled" and (b in (1, PAST_BLOCK) or b in CONFIGS):
        return b not in COMPILED
    if a == "no cache" and b in DRAFTS:  # rejected tokens could not be taken back
        return b != "no draft"
    # Where the window slides no cached row stays valid, and an engine's buffers end.
    return b == PAST_BLOCK and (a in ENGINES or (a in DRAFTS and a != "no draft"))


def pairs(case: tuple) -> set:
    return set(combinations(zip(AXES, case, strict=True), 2))


def all_pairs() -> list:
    choices = [(axis, value) for axis, values in AXES.items() for value in values]
    both = [(a, b) for a, b in combinations(choices, 2) if a[0] != b[0]]
    return [(a, b) for a, b in both if not excluded(a[1], b[1])]


def cover() -> list[tuple]:
    """Few cases that hold all pairs: again and again the best of 40 that hold a missing one.

    A pair is a bit and a set of pairs an int, as every process that collects tests runs this.
    """
    choices = [[(axis, value) for value in values] for axis, values in AXES.items()]
    order = list(AXES)
    bits = {pair: 1 << i for i, pair in enumerate(all_pairs())}
    held = list(bits)
    missing = (1 << len(bits)) - 1
    dice = random.Random(1)
    cases = []
    while missing:
        wanted = held[(missing & -missing).bit_length() - 1]
        some = []
        while len(some) < 40:
            case = [dice.choice(values) for values in choices]
            for choice in wanted:
                case[order.index(choice[0])] = choice
            found = _bits_of(case, bits)
            if found is not None:
                some.append((found, case))
        found, case = max(some, key=lambda one: (one[0] & missing).bit_count())
        cases.append(tuple(value for _, value in case))
        missing &= ~found
    return cases


def _bits_of(case: list, bits: dict) -> int | None:
    """The pairs that a case holds; None when one of them is excluded."""
    found = 0
    for pair in combinations(case, 2):
        if pair not in bits:
            return None
        found |= bits[pair]
    return found


CASES = cover()


def model_of(config, form="batched", dtype=torch.float64, **sizes):
    model = build(dtype, block_size=BLOCK, **CONFIGS[config], **sizes)
    return unpack_heads(model) if form == "heads" else model


@torch.no_grad()
def plain_loop(model, prompt, noise, how: nanogpt.SamplingParams):
    """The lecture's generate: crop, compute the whole text again, draw.  (B, T) -> (B, T + n)"""
    text = prompt
    limit = model.config.max_positions or len(noise) + prompt.shape[1]
    for row in noise:
        logits = model(text[:, -limit:])[0][:, -1]
        probs = (logits / how.temperature).softmax(-1)
        for one, order in zip(probs, probs.argsort(-1, descending=True), strict=True):
            kept = int((one[order].cumsum(-1) < (how.top_p or 2)).sum()) + 1
            one[order[min(kept, how.top_k or V) :]] = 0
        token = (logits if how.greedy else probs / row).argmax(-1, keepdim=True)
        text = torch.cat([text, token], dim=1)
    return text


@pytest.mark.parametrize(
    tuple(AXES),
    [pytest.param(*c, marks=MARKS.get(c[1], ())) for c in CASES],
    ids=["-".join(map(str, (i, *c[:5]))) for i, c in enumerate(CASES)],
)
def test_the_tokens_are_those_of_the_plain_loop(form, way, draft, config, lengths, sampling, batch):
    (T, n) = lengths
    dtype = torch.float32 if way in COMPILER else torch.float64
    model = model_of(config, form, dtype)
    small = model_of(config, dtype=dtype, n_layer=1)
    lecture = model_of(config, "heads" if config == "lecture" else "batched")
    prompt = torch.randint(V, (batch, T), generator=seeded(T))
    u = torch.rand(n, batch, V, dtype=torch.float64, generator=seeded(42))
    text = plain_loop(lecture, prompt, -torch.log1p(-u).float(), sampling)
    before = state_of(model)
    ways = {"past_block": "slide" if lengths == PAST_BLOCK else "error"}
    ways |= {"cache": CACHES[way]} if way in CACHES else {"engine": getattr(nanogpt, way)}
    ways |= {"draft": DRAFTS[draft](text, small), "generator": seeded(42)}
    assert torch.equal(nanogpt.complete(model, prompt, n, sampling, **ways), text)
    assert state_of(model) == before


def test_every_pair_of_choices_is_in_a_case():
    assert set().union(*map(pairs, CASES)) == set(all_pairs())
