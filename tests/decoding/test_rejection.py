"""Two laws of chance: how often shared noise agrees, and that rejection keeps the distribution."""

import pytest
import torch
from conftest import seeded, tiny_model
from decoding_fixtures import V, build, text

from nanogpt.decoding.drafts import NGram
from nanogpt.decoding.rejection import accept_or_resample, rejection_sampling
from nanogpt.decoding.sampling import draw_noise, sample


def random_pairs(n: int, vocab: int, seed: int, least: float = 0.0):
    """Probabilities p and q (n, vocab), from alike (with `least`: not quite) to far apart."""
    base = torch.randn(n, vocab, generator=seeded(seed), dtype=torch.float64)
    far = least + torch.rand(n, 1, generator=seeded(seed + 1), dtype=torch.float64) * 3
    return base.softmax(-1), (
        base + far * torch.randn(n, vocab, generator=seeded(seed + 2))
    ).softmax(-1)


def choices(p, noise):
    """What each row of p draws with each noise.  (n, V), (N, n, V) -> (N, n)"""
    rows = p.log().expand(len(noise), *p.shape).flatten(0, 1)
    return sample(rows, noise.flatten(0, 1)).view(len(noise), len(p))


@pytest.mark.parametrize("vocab", [2, 65])
def test_with_shared_noise_two_choices_agree_as_often_as_the_law_says(vocab):
    p, q = random_pairs(60, vocab, vocab)
    noise = draw_noise(2000, 60, vocab, seeded(1))
    agree = (choices(p, noise) == choices(q, noise)).double().mean(0)
    tv = (p - q).abs().sum(-1) / 2
    spread = (agree * (1 - agree) / 2000).sqrt() + 1e-3
    assert (agree >= (1 - tv) / (1 + tv) - 4 * spread).all()
    assert (agree <= 1 - tv + 4 * spread).all(), "no coupling agrees more often"
    apart = choices(p, noise[1:]) == choices(q, noise[:-1])
    assert (apart.double().mean(0) < (1 - tv) / (1 + tv) - 4 * spread).sum() > 18, (
        "noise of its own"
    )


def chi_square(found: torch.Tensor, p: torch.Tensor) -> float:
    """Σ (observed - expected)² / expected: about the number of tokens less one, if from p."""
    counts, wanted = torch.bincount(found.flatten(), minlength=len(p)), p * found.numel()
    return float(((counts - wanted) ** 2 / wanted).sum())


def drawn_by_rejection(p, q, n, seed, shared):
    p, q = p.expand(n, -1), q.expand(n, -1)
    noise, fresh = (draw_noise(1, n, p.shape[-1], seeded(seed + i))[0] for i in (0, 1))
    token = (q / noise).argmax(-1, keepdim=True)
    u = torch.rand(n, 1, generator=seeded(seed + 2))
    return accept_or_resample(p, q, token, u, noise if shared else fresh)


@pytest.mark.parametrize("pair", range(3))
def test_the_rejection_rule_keeps_the_distribution_and_shared_noise_would_not(pair):
    """Of 8 tokens, 7 degrees of freedom: above 29.9 lies one in ten thousand."""
    p, q = (x[pair] for x in random_pairs(5, 8, 40, least=1.0))
    tokens, accepted = drawn_by_rejection(p, q, 100_000, 10 * pair, shared=False)
    assert chi_square(tokens, p) < 29.9
    assert chi_square(tokens, q) > 1000
    tv = float((p - q).abs().sum() / 2)
    assert float(accepted.double().mean()) == pytest.approx(1 - tv, abs=0.006)
    mistaken, _ = drawn_by_rejection(p, q, 100_000, 10 * pair, shared=True)
    assert chi_square(mistaken, p) > 100, "what was rejected says something about its noise"


@pytest.mark.slow
@torch.no_grad()
def test_whole_texts_by_rejection_have_the_model_s_distribution():
    """Three new tokens of a vocabulary of three: 27 texts, 26 degrees of freedom."""
    model = tiny_model(
        dtype=torch.float32, vocab_size=3, n_layer=1, n_head=1, n_embd=8, per_head=True
    )
    prompt, draft = (
        torch.tensor([[0, 2]]),
        NGram(torch.tensor([0, 1, 0, 2, 2, 1, 1, 0, 2, 1]), 3, 2),
    )
    texts = torch.cartesian_prod(*[torch.arange(3)] * 3)
    full = torch.cat([prompt.expand(27, -1), texts], dim=1)
    each = (
        model(full)[0][:, 1:4]
        .log_softmax(-1)
        .gather(-1, texts[..., None])
        .sum((1, 2))
        .exp()
        .double()
    )
    assert float(each.sum()) == pytest.approx(1, abs=1e-5)
    dice, found, accepted = seeded(3), [], 0
    for _ in range(1500):
        out, stats = rejection_sampling(model, draft.logits, prompt, 3, dice, k=2)
        assert stats.accepted <= stats.offered
        assert sum(stats.advances) == 3
        found.append(int((out[0, 2:] * torch.tensor([9, 3, 1])).sum()))
        accepted += stats.accepted
    likely = each * 1500 >= 5  # the others together
    merged = torch.cat([each[likely], each[~likely].sum()[None]])
    number = torch.cumsum(likely, 0) - 1
    cells = torch.where(likely, number, int(likely.sum()))[torch.tensor(found)]
    assert chi_square(cells, merged) < 60
    assert accepted > 100


def test_the_rejection_form_is_for_one_text():
    with pytest.raises(ValueError, match="the prompt has 2 texts"):
        rejection_sampling(
            build(torch.float32), NGram(text(50)[0], V).logits, text(4, 2), 5, seeded(1)
        )


def test_the_rejection_form_ends_with_the_position_table():
    model, draft = build(torch.float32), NGram(text(50)[0], V)
    whole, _ = rejection_sampling(model, draft.logits, text(4), 29, seeded(1))
    assert whole.shape == (1, 33)
    with pytest.raises(ValueError, match="33 tokens > block_size 32"):
        rejection_sampling(model, draft.logits, text(4), 30, seeded(1))


def test_the_global_random_state_is_left_alone(ambient_rng):
    rejection_sampling(build(torch.float32), NGram(text(50)[0], V).logits, text(4), 5, seeded(1))
