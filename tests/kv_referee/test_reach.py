"""The referee reaches what begins late, names what it did not reach, and is fair to noise."""

import math
from types import SimpleNamespace

import pytest
import torch
from conftest import tiny_model
from parts import Paged, Tiny
from rows import quick
from wrong_models import Long, wrong_where

from nanogpt import referee
from nanogpt.kv_referee import NotOffered
from nanogpt.kv_referee.contract import Model, TokenMeter
from nanogpt.kv_referee.limits import find_limits
from nanogpt.kv_referee.programs import (
    Read,
    fitted,
    in_pieces,
    in_single_tokens,
    is_valid,
    kept,
    room,
    run,
    tokens_read,
)
from nanogpt.kv_referee.report import ScenarioKind
from nanogpt.kv_referee.scenarios import Material, brief, others_of, pieces_of
from nanogpt.kv_referee.texts import edges_of, lengths_of, text
from nanogpt.verify.ours import Ours

# Where a model is wrong: at an edge or behind one, and nothing short shows it.
WRONG = {
    "behind 64 tokens": lambda cache, k: cache.t + k.shape[2] > 64,
    "behind 300 tokens": lambda cache, k: cache.t + k.shape[2] > 300,
    "a prompt of 16 tokens": lambda cache, k: cache.t == 0 and k.shape[2] == 16,
    "single tokens behind 200": lambda cache, k: cache.t > 200 and k.shape[2] == 1,
}


@pytest.mark.parametrize("where", quick(WRONG, "a prompt of 16 tokens"))
def test_a_bug_in_some_calls_only_is_convicted(where):
    assert referee(wrong_where(WRONG[where]), tokens=math.inf).verdict == "bug"


@pytest.mark.release
def test_a_sound_model_is_read_past_every_edge_and_acquitted():
    report = referee(Long())
    assert report.verdict in ("equal", "rounding"), report
    assert not report.unreached
    assert any("token by token, to 330" in f.way for f in report.findings)


class ToNothing(Long):
    """What is taken back to nothing leaves its keys in place."""

    def forget(self, cache, n):
        cache.stale = cache.t == n
        if cache.stale:
            cache.t = 0
            return
        super().forget(cache, n)

    def store(self, cache, layer, k, v):
        if getattr(cache, "stale", False) and layer in cache.k:
            old = cache.k.pop(layer)
            cache.stale = layer == 0
            cache.k[layer] = k + old.mean(2, keepdim=True)
            cache.v[layer] = v
            return cache.k[layer], v
        return super().store(cache, layer, k, v)


@pytest.mark.release
def test_drafts_that_are_taken_back_to_nothing_leave_nothing():
    report = referee(ToNothing(), tokens=math.inf)
    assert "rejected drafts around each edge" in report.bugs[0].way


class PadsLate(Long):
    """Padding is seen once more than 64 columns are held."""

    def sees(self, cache, ids, mask):
        late = cache.kept and cache.t and mask.shape[1] > 64
        return super().sees(cache, ids, torch.ones_like(mask) if late else mask)


@pytest.mark.release
def test_padding_is_read_past_the_edges():
    assert any("left padding" in f.way for f in referee(PadsLate(), tokens=math.inf).bugs)


# ------------------------------------------------------------------ what was not reached


def test_scenarios_without_time_are_named():
    report = referee(Long(), seconds=0)
    assert (report.verdict, report.findings) == ("undecided", [])
    assert "not reached: 1 scenario" in str(report)
    assert report.unreached == ["the first comparison"]


# ------------------------------------------------------------------ fairness


class Noisy(Tiny):
    noise = 1e-4

    def step(self, cache, ids, mask):
        logits = super().step(cache, ids, mask)
        return logits + self.noise * torch.randn_like(logits)


def test_noise_is_measured_first_and_named():
    report = referee(Noisy(), tokens=0)
    assert report.verdict != "bug", report
    assert "it varies by itself" in str(report)


class Int8(Tiny):
    def store(self, cache, layer, k, v):
        scale = k.abs().amax(-1, keepdim=True) / 127
        return super().store(cache, layer, (k / scale).round() * scale if cache.kept else k, v)


def test_a_lossy_cache_can_be_declared():
    assert referee(Int8(), tokens=0).verdict == "bug"
    declared = referee(Int8(), tokens=0, expects=0.1)
    assert declared.verdict == "rounding"
    assert "was declared" in str(declared)
    model = Int8()
    model.expects = 1e-5
    assert referee(model, tokens=0).verdict == "bug"


def test_a_difference_that_nothing_explains_is_undecided():
    class Slight(Tiny):
        def store(self, cache, layer, k, v):
            return super().store(cache, layer, k * (1 + 1e-9) if cache.kept else k, v)

    report = referee(Slight(), tokens=0)
    assert (report.verdict, report.code) == ("undecided", 3)
    assert "no float32 inside" in str(report)


def test_float32_inside_is_told_from_that():
    class Inside(Tiny):
        def store(self, cache, layer, k, v):
            return super().store(cache, layer, k.float().to(k.dtype) if cache.kept else k, v)

    report = referee(Inside(), tokens=0)
    assert report.verdict == "rounding"
    assert "something computes in float32" in str(report)


@pytest.mark.release
def test_a_model_of_16_bits_alone_is_acquitted_and_its_bug_convicted():
    class Half(Tiny):
        def __init__(self, seed=0, bug=False):
            super().__init__(seed, bug)
            self.w = {name: w.bfloat16() for name, w in self.w.items()}

        def to(self, dtype):
            raise NotOffered("bfloat16 alone")

    class Wrong(Half):
        def positions(self, cache, ids, mask):
            return super().positions(cache, ids, mask) * (not cache.kept or cache.t == 0)

    assert referee(Half(), tokens=0).verdict in ("equal", "rounding")
    assert referee(Wrong(), tokens=0).verdict == "bug"


def test_a_full_pool_is_no_bug():
    class Few(Paged):
        blocks = 26

    report = referee(Few())
    assert report.verdict in ("equal", "rounding"), report
    assert "no free block is left" in str(report)


class Spiky(Long):
    """A float32 inside: each length of a call rounds otherwise, and in some texts one token far."""

    further = 0.0  # by which a cache is wrong at that token

    def step(self, cache, ids, mask):
        logits = super().step(cache, ids, mask)
        at = torch.arange(cache.t - ids.shape[1], cache.t)
        far = 1e-7 + ((at == 50) & (ids % 3 == 1)) * (5e-3 + self.further * (cache.kept))
        phase = torch.tensor(ids.shape[1] + 7.0 * (logits.dtype == torch.float32))
        spike = far[..., None] * phase.sin() * torch.linspace(0, 1, self.vocab_size)
        return logits + spike.float()


@pytest.mark.release
@pytest.mark.parametrize(("further", "verdict"), [(0.0, "undecided"), (1.0, "bug")])
def test_a_token_that_float32_moves_further_than_others_is_no_bug_of_the_cache(further, verdict):
    model = Spiky()
    model.further = further
    assert referee(model, tokens=20_000).verdict == verdict


# ------------------------------------------------------------------ the texts


def test_wrong_tokens_are_taken_back():
    ids = torch.arange(10)[None]
    program = in_pieces(ids, [(2, 3), 3], 50)
    sizes = [len(s.ids[0]) if isinstance(s, Read) else getattr(s, "n", 0) for s in program]
    assert sizes == [0, 5, 3, 3]
    assert (kept([(2, 3), 3]), room(program, "a"), tokens_read(program)) == (5, 5, 8)
    (text_,) = run(Model(Tiny(), TokenMeter()), program, "its cache")
    assert text_.ids.tolist() == [0, 1, 2, 3, 4]
    assert (text_.logits.shape, text_.starts_at(1), text_.starts_at(4)) == ((5, 29), 0, 2)


def test_the_first_pieces_are_joined_for_a_model_whose_prompts_are_long():
    assert fitted([2, 1, 1, 3], 1) == [2, 1, 1, 3]
    assert fitted([2, 1, (1, 4), 3, 1], 4) == [4, 3, 1]
    assert fitted([(0, 3), 2], 1) == [(0, 3), 2]
    assert fitted([(0, 3), 2], 2) == [2]


def test_a_model_that_reads_no_pieces_is_read_token_by_token_behind_the_prompt():
    program = in_single_tokens(in_pieces(torch.arange(6)[None], [3, 1, 2], 50))
    assert [len(step.ids[0]) for step in program[1:]] == [3, 1, 1, 1]


@pytest.mark.parametrize("n", [16, 17, 24, 40, 96, 330])
@pytest.mark.parametrize("window", [None, 8])
def test_each_scenario_fits_into_the_text(n, window):
    given = Tiny()
    given.window, given.longest = window, n
    model = Model(given, TokenMeter())
    find_limits(model)
    m = Material(model, "its cache", 0, text(29, length=n), [e for e in (16, 32, 64) if e < n - 4])
    scenarios = [*brief(model, "its cache", 0), *pieces_of(m), *others_of(m)]
    assert {one.kind for one in scenarios} == {*ScenarioKind}
    for one in scenarios:
        if one.padding is None:
            assert is_valid(one.program), one
            assert max(room(one.program, step.session) for step in one.program) <= n, one
        else:
            assert one.padding.ids.shape[1] <= n
            assert sum(one.padding.lengths) == one.padding.ids.shape[1]


def test_edges_are_those_that_a_model_names_and_the_usual_ones():
    named = SimpleNamespace(window=50, capacity=200, config=SimpleNamespace(block_size=77))
    assert edges_of(named) == [16, 32, 50, 64, 77, 128, 200, 256]
    assert lengths_of([16], longest=20, window=None) == [20]
    assert lengths_of([16, 256], longest=None, window=30) == [69, 330]
    assert lengths_of([16, 4096], longest=None, window=None)[-1] == 4136
    assert isinstance(Ours(tiny_model()).longest, int)


@pytest.mark.release
@pytest.mark.parametrize(("longest", "read"), [(700, 700), (2000, 330)])
def test_texts_are_as_long_as_the_model_where_that_is_not_far(longest, read):
    class Far(Tiny):
        pass

    Far.longest = longest
    report = referee(Far(), tokens=math.inf)
    assert report.verdict.sound, report
    assert report.reach.longest == read
    assert f"texts of up to {read} tokens, up to 3 in a batch, 1 to " in str(report)
