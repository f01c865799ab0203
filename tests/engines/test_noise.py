"""Noise that is drawn in blocks: the same numbers, the same tokens, and little of it at a time."""

import random

import pytest
import torch
from conftest import seeded
from engine_fixtures import COMPILING, EAGER, GRAPHS, prompt_of, shared_model

import nanogpt
from nanogpt import SamplingParams, complete, generate
from nanogpt.engines import generation, noise
from nanogpt.engines.noise import Noise, noise_in_blocks
from nanogpt.sampling import draw_noise

V = 13
N_NEW = 12


@pytest.fixture
def draws(monkeypatch):
    """The shapes of all draws; every text is drawn in blocks, of 4 rows of one text."""
    found = []

    def spy(n, batch, vocab_size, generator=None):
        found.append((n, batch, vocab_size))
        return draw_noise(n, batch, vocab_size, generator)

    monkeypatch.setattr(generation, "DRAWN_AT_ONCE", 0)
    monkeypatch.setattr(noise, "DRAWN", 4 * V)
    monkeypatch.setattr(noise, "draw_noise", spy)
    return found


# ------------------------------------------------------------------ the numbers


@pytest.mark.parametrize("shape", [(500, 1), (500, 13), (500, 320), (7, 49_152)])
@pytest.mark.parametrize("batch", [1, 3])
def test_noise_drawn_in_pieces_is_the_noise_of_the_whole_text(shape, batch):
    n, size = shape
    want = draw_noise(n, batch, size, seeded(5))
    made = Noise(seeded(5), (n, batch, size))
    most = 0
    draw = random.Random(1)
    first = 0
    while first < n:
        count = min(n - first, draw.randint(1, 4))
        assert torch.equal(made[first : first + count], want[first : first + count])
        assert torch.equal(made.row(first), want[first])
        most = max(most, made.rows.numel())
        first += draw.randint(0, count)  # a step that fails asks for the same rows again
    assert most <= 2**16 + 8 * batch * size  # those of a draw, and rows that are not used up


def test_one_row_at_a_time_is_the_whole():
    want = draw_noise(70, 2, V, seeded(5))
    assert torch.equal(torch.stack(list(Noise(seeded(5), want.shape))), want)
    assert torch.equal(Noise(seeded(5), want.shape)[:], want)


@pytest.mark.parametrize("first", [1, 5, 60])
def test_rows_may_be_left_out(first):
    want = draw_noise(70, 2, V, seeded(5))
    made = Noise(seeded(5), want.shape)
    assert torch.equal(made.row(first), want[first])
    assert torch.equal(made[first + 2 :], want[first + 2 :])


@pytest.mark.parametrize("numbers", [1, 10, 2**20, 2**20 + 7, 3 * 2**20])
def test_the_generator_is_left_as_if_all_had_been_drawn(numbers):
    generator = seeded(3)
    torch.rand(5, generator=generator)
    own = seeded(3)
    torch.rand(5, generator=own)
    want = draw_noise(numbers, 1, 1, own)
    made = noise_in_blocks(generator, (numbers, 1, 1), torch.device("cpu"))
    assert torch.equal(generator.get_state(), own.get_state())
    assert torch.equal(made[:], want)


# ------------------------------------------------------------------ the tokens

PATHS = {
    "no cache": lambda model: {"cache": None},
    "cache": lambda model: {},
    "static": lambda model: {"cache": nanogpt.StaticCache},
    "sliding": lambda model: {"past_block": "slide"},
    "look-up": lambda model: {"draft": nanogpt.PromptLookup(2, k=3)},
    "draft": lambda model: {"draft": nanogpt.DraftModel(model, k=3)},
}
PATHS |= {kind.__name__: lambda model, kind=kind: {"engine": kind} for kind in EAGER + GRAPHS}
SLOW = {kind.__name__: lambda model, kind=kind: {"engine": kind} for kind in COMPILING}
SLOW["native look-up"] = lambda model: SLOW["Native"](model) | PATHS["look-up"](model)
SLOW["native draft"] = lambda model: SLOW["Native"](model) | PATHS["draft"](model)
PATHS |= SLOW
MARKS = dict.fromkeys(SLOW, pytest.mark.slow)
MARKS["Compiled"] = pytest.mark.release  # it is built for these shapes alone
WHOLE = {kind.__name__ for kind in GRAPHS}  # a graph reads its noise from a buffer of its own


@pytest.mark.parametrize(
    ("sampling", "batch"), [(SamplingParams(), 3), (SamplingParams(0.8, top_k=5), 1)], ids=str
)
@pytest.mark.parametrize("path", [pytest.param(name, marks=MARKS.get(name, ())) for name in PATHS])
def test_the_tokens_are_the_same_and_few_rows_exist(path, sampling, batch, draws, monkeypatch):
    model = shared_model()
    how = PATHS[path](model)
    prompt = prompt_of(4, batch)
    n_new = 40 if path == "sliding" else N_NEW
    before = seeded(7)
    with monkeypatch.context() as patch:
        patch.setattr(generation, "DRAWN_AT_ONCE", 2**24)
        want = complete(model, prompt, n_new, sampling, **how, generator=before)
    assert draws == []
    after = seeded(7)
    for finish in (complete, lambda *args, **kw: torch.cat([args[1], *generate(*args, **kw)], 1)):
        draws.clear()
        after = seeded(7)
        assert torch.equal(finish(model, prompt, n_new, sampling, **how, generator=after), want)
        assert torch.equal(after.get_state(), before.get_state())
        assert sum(n for n, _, _ in draws) == n_new
        assert path in WHOLE or path == "Native" or max(n for n, _, _ in draws) <= 5


@pytest.mark.slow
@pytest.mark.parametrize("finish", [complete, generate])
def test_native_code_has_the_rows_of_one_call(finish, draws):
    model = shared_model(block_size=400)
    for _ in finish(model, prompt_of(1, 1), 300, engine=nanogpt.Native, generator=seeded(1)):
        pass
    assert sum(n for n, _, _ in draws) == 300
    assert max(n for n, _, _ in draws) <= 64


def test_nothing_is_drawn_for_greedy_texts_and_small_ones_are_drawn_at_once(draws, monkeypatch):
    model = shared_model()
    complete(model, prompt_of(4), N_NEW, SamplingParams(greedy=True), generator=seeded(1))
    monkeypatch.setattr(generation, "DRAWN_AT_ONCE", 3 * V * N_NEW)
    complete(model, prompt_of(4), N_NEW, generator=seeded(1))
    assert draws == []


def test_a_text_that_ends_early_draws_no_more(draws):
    model = shared_model()
    steps = generate(model, prompt_of(4, 1), N_NEW, stop=tuple(range(V)))
    assert len(list(steps)) == 1
    assert draws == [(4, 1, V)]


def test_other_uses_of_the_generator_change_no_token(draws):
    """Two generations side by side, and the caller between their tokens."""
    model = shared_model()
    prompt = prompt_of(4)
    generator = seeded(7)
    want = [complete(model, prompt, N_NEW, generator=generator) for _ in range(2)]
    generator = seeded(7)
    texts = [[prompt], [prompt]]
    both = [generate(model, prompt, N_NEW, generator=generator) for _ in range(2)]
    for pair in zip(*both, strict=True):
        torch.rand(3, generator=generator)
        for text, token in zip(texts, pair, strict=True):
            text.append(token)
    assert all(torch.equal(torch.cat(a, dim=1), b) for a, b in zip(texts, want, strict=True))
