"""What drafts propose: tables that count, the text itself, a smaller model; what they refuse."""

import pytest
import torch
from conftest import seeded
from decoding_fixtures import V, build, text
from hypothesis import given
from hypothesis import strategies as st

from nanogpt.engines.drafts import DraftModel, NGram, PromptLookup
from nanogpt.engines.eager import Flat
from nanogpt.sampling import SamplingParams, draw_noise, sample

BAD = {
    "k": (lambda: PromptLookup(k=0), "k=0: must be an integer of at least 1"),
    "n": (lambda: PromptLookup(True), "n=True: must be an integer of at least 1"),
    "a table beyond all memory": (lambda: NGram(text(90)[0], V, 7), r"n=7: a table of 13\*\*n"),
    "a power without end": (lambda: NGram(text(90)[0], V, 2**70), r"n=\d+: .* in \[1, 24\]"),
    "a batch of texts": (lambda: NGram(text(9), V, 3), r"the text .* \(1, 9\)"),
    "a list": (lambda: NGram([1, 2, 3], V, 3), "the text .* list"),
    "a short text": (lambda: NGram(text(2)[0], V, 3), "of the text .*=2: .* at least 3"),
    "an unknown token": (lambda: NGram(torch.tensor([3, 13]), V, 2), "tokens 3 to 13"),
    "no model": (lambda: DraftModel("small"), "must be a LanguageModel, not"),
    "an engine of no drafts": (lambda: DraftModel(build(), engine=Flat), "pass Native or Native8"),
    "an engine that was built": (lambda: DraftModel(build(), engine=3), "engine=3 cannot decode"),
}


@pytest.mark.parametrize("what", BAD)
def test_arguments_that_make_no_draft_are_refused(what):
    make, message = BAD[what]
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_a_table_counts():
    a = 0
    b = 1
    c = 2
    pairs = NGram(torch.tensor([a, b, a, b, a, c]), 3, 2)
    one = torch.tensor([3, 2, 1]) / 7 + 1 / 21  # counted, and one more occurrence
    after_a = (torch.tensor([0, 2, 1]) + one) / 4
    torch.testing.assert_close(pairs.logits(torch.tensor([[c, a]])).exp(), after_a[None])
    never_followed = pairs.logits(torch.tensor([[a, c], [b, a]]))[0]
    torch.testing.assert_close(never_followed.exp(), one)
    triples = NGram(torch.tensor([a, b, a, b, a, c]), 3, 3)
    after_ba = (torch.tensor([0, 1, 1]) + after_a) / 3
    torch.testing.assert_close(triples.logits(torch.tensor([[c, b, a]])).exp(), after_ba[None])
    not_two_yet = triples.logits(torch.tensor([[a]]))
    torch.testing.assert_close(not_two_yet.exp(), after_a[None])
    for table in triples.tables:
        torch.testing.assert_close(table.exp().sum(-1), torch.ones(len(table)))


@pytest.mark.parametrize(
    "settings",
    [{}, {"temperature": 1.7}, {"top_k": 3}, {"top_p": 0.6}, {"greedy": True}],
    ids=str,
)
def test_a_table_and_a_small_model_draw_with_the_noise_and_the_settings_of_the_model(settings):
    """For texts as a loop gives them: longer, shorter, the same again, with other last tokens."""
    table = NGram(text(300)[0], V, 2)
    small = build(n_layer=1, n_embd=16)
    dice = seeded(6)
    sampling = SamplingParams(**settings)
    known = text(20, 2)
    before = 0
    guesses = [draft.begin(text(1, 2), sampling) for draft in (table, DraftModel(small))]
    for noise in draw_noise(40, 2, V, dice):
        t = int(torch.randint(1, 20, (), generator=dice))
        same = min(before, t - 1)  # tokens that may not have changed
        known[:, same:] = torch.randint(V, (2, 20 - same), generator=dice)
        some = known[:, :t].clone()
        before = t
        models = (table.logits, lambda x: small(x)[0][:, -1])
        for guess, logits in zip(guesses, models, strict=True):
            with torch.no_grad():
                assert torch.equal(guess(some, noise), sample(logits(some), noise, sampling))


def followed(row: list[int], n: int) -> int | None:
    for m in range(min(n, len(row) - 1), 0, -1):
        for end in range(len(row) - 1, m - 1, -1):
            if row[end - m : end] == row[-m:]:
                return row[end]
    return None


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20), st.integers(1, 6))
def test_a_look_up_takes_the_longest_match_and_of_those_the_latest(row, n):
    found = PromptLookup(n).following(torch.tensor([row]))
    assert (None if found is None else found.item()) == followed(row, n)


def test_look_ups_of_a_batch():
    some = torch.tensor([[1, 2, 3, 1], [4, 5, 6, 7]])
    assert PromptLookup().following(some).tolist() == [[2], [7]], (
        "a text without a match repeats its last token"
    )
    assert PromptLookup().following(some[1:]) is None
