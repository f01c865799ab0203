"""Exact mode: the same bits with a cache and without, for any chunking, batch, form and engine."""

import itertools
import threading

import pytest
import torch
import torch.nn.functional as F
from conftest import FORMS, name, seeded, tiny_model, tokens
from model_fixtures import all_logits

from nanogpt import generation as decoder
from nanogpt.attention import attend, visible
from nanogpt.cache import DynamicCache, StaticCache
from nanogpt.config import GPTConfig
from nanogpt.decoder.pack import pack_heads
from nanogpt.engines.eager import Flat, PerHead, Static
from nanogpt.engines.exact import exact, in_exact_mode
from nanogpt.generation import complete
from nanogpt.model import GPT
from nanogpt.sampling import sample

DTYPES = [torch.float32, torch.bfloat16, torch.float64]
# Widths and heads whose matrices fall on both sides of every size at which a kernel changes,
# and below them some whose rows fill no whole register.
SHAPES = [(12, 3), (64, 4), (128, 4), (8, 1), (100, 10), (33, 1)]
BLOCK = 24


def build(width, n_head, dtype, per_head=True, n_layer=2):
    config = GPTConfig(
        vocab_size=31, block_size=BLOCK, n_layer=n_layer, n_head=n_head, n_embd=width
    )
    model = GPT(config, generator=seeded(3)).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(5) if p.ndim == 2 else p.add_(0.1 * torch.randn(p.shape, generator=seeded(4)))
    return (model if per_head else pack_heads(model)).to(dtype)


def texts(batch, length=BLOCK):
    return torch.randint(31, (batch, length), generator=seeded(5))


def check_every_way(width, n_head, dtype, ways):
    """Of one layer: a second one has the very shapes of the first. Two are decoded below."""
    idx = texts(3)
    heads = build(width, n_head, dtype, n_layer=1)
    with exact(heads):
        expected = all_logits(heads, idx)
        for model in (heads, pack_heads(heads)):
            for length in (1, 2, 9, BLOCK - 1, BLOCK):
                assert torch.equal(all_logits(model, idx[:, :length]), expected[:, :length])
            for cache, chunk, rows in ways:
                assert torch.equal(all_logits(model, idx[rows], cache, chunk), expected[rows])


ALL = slice(None)  # texts of the batch
ONE = slice(1, 2)
WAYS = [(DynamicCache, 1, ALL), (StaticCache, 7, ALL), (DynamicCache, 5, ONE)]
EVERY_WAY = list(itertools.product((DynamicCache, StaticCache), (1, 5, 7, BLOCK), (ALL, ONE)))


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize(
    ("width", "n_head"),
    [(34, 2), *(pytest.param(*shape, marks=pytest.mark.slow) for shape in SHAPES)],
)
def test_every_way_to_decode_gives_the_same_bits(width, n_head, dtype):
    ways = EVERY_WAY if dtype == torch.float32 and width <= 64 else WAYS
    check_every_way(width, n_head, dtype, ways)


def test_without_it_they_are_not():
    """Or the test above would prove nothing."""
    heads = build(64, 4, torch.float32)
    idx = texts(3)
    expected = all_logits(heads, idx)
    for other in (all_logits(heads, idx, DynamicCache), all_logits(pack_heads(heads), idx)):
        assert (other != expected).float().mean() > 0.1
        torch.testing.assert_close(other, expected, rtol=0, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_threads_change_nothing(dtype):
    before = torch.get_num_threads()
    heads = build(128, 4, dtype, n_layer=1)
    idx = texts(5)
    try:
        with exact(heads):
            torch.set_num_threads(1)
            expected = all_logits(heads, idx)
            torch.set_num_threads(2)
            assert torch.equal(all_logits(heads, idx, StaticCache, 4), expected)
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.parametrize("engine", [PerHead, Static, Flat], ids=lambda e: e.__name__)
@pytest.mark.parametrize("per_head", FORMS, ids=name)
def test_engines_in_torch_give_the_same_bits(engine, per_head, monkeypatch):
    """Their logits are caught where they are drawn from."""
    caught = []

    def spy(logits, *arguments):
        caught.append(logits.clone())
        return sample(logits, *arguments)

    monkeypatch.setattr(decoder, "sample", spy)
    model = build(64, 4, torch.float32, per_head)
    prompt = texts(2, 9)
    with exact(model):
        complete(build(64, 4, torch.float32), prompt, 12, cache=None, generator=seeded(1))
        expected = torch.stack(caught)
        caught[:] = []
        complete(model, prompt, 12, engine=engine, generator=seeded(1))
        assert torch.equal(torch.stack(caught), expected)


def test_more_keys_than_it_was_opened_for_are_refused():
    small = build(16, 2, torch.float32)
    large = tiny_model()
    small.config.__dict__["block_size"] = 8
    with exact(small), pytest.raises(ValueError, match="9 keys > 8, the block_size"):
        large(tokens(1, 9))


def test_a_product_that_it_does_not_know_is_refused():
    """A Head of the reader's own would quietly be computed as usual, and the promise be broken."""
    a = torch.ones(2, 3, 3)
    q = torch.ones(1, 2, 4)
    for product in (
        lambda: a @ a,
        lambda: torch.matmul(a, a),
        lambda: a.bmm(a),
        lambda: torch.einsum("bij,bjk->bik", a, a),
    ):
        with exact(tiny_model()), pytest.raises(ValueError, match="not know how.*F.linear.*attend"):
            product()
        assert product().sum() == 54
    with exact(tiny_model()), pytest.raises(ValueError, match="boolean mask"):
        F.scaled_dot_product_attention(q, q, q, attn_mask=torch.zeros(2, 2))


@pytest.mark.parametrize("how", ["causal", "mask", "all"])
def test_the_fused_attention_is_covered(how):
    q, k, v = torch.randn(3, 2, 3, 7, 8, generator=seeded(0)).unbind(0)
    mask = visible(torch.arange(7), torch.arange(7))
    settings = {"causal": {"is_causal": True}, "mask": {"attn_mask": mask}, "all": {}}[how]
    same_mask = {"causal": None, "mask": mask, "all": torch.ones_like(mask)}[how]
    with exact(tiny_model()):
        got = F.scaled_dot_product_attention(q, k, v, **settings)
        same = attend(q, k, v, same_mask)
    assert torch.equal(got, same)
    torch.testing.assert_close(
        got, F.scaled_dot_product_attention(q, k, v, **settings), rtol=0, atol=1e-5
    )


def test_a_long_prompt_in_pieces_is_the_same(monkeypatch):
    """The copies of K that a prompt needs are made some at a time."""
    model = build(64, 4, torch.float32)
    idx = texts(2)
    with exact(model):
        expected = all_logits(model, idx)
        monkeypatch.setattr("nanogpt.engines.exact.COPIED_AT_ONCE", 1)
        assert torch.equal(all_logits(model, idx), expected)


def test_it_is_on_inside_only_and_in_this_thread_only():
    model = tiny_model()
    elsewhere = []
    assert not in_exact_mode()
    with exact(model), exact(model):
        assert in_exact_mode()
        thread = threading.Thread(target=lambda: elsewhere.append(in_exact_mode()))
        thread.start()
        thread.join()
    assert (in_exact_mode(), elsewhere) == (False, [False])
    with pytest.raises(RuntimeError, match="mine"), exact(model):
        raise RuntimeError("mine")
    assert not in_exact_mode()
