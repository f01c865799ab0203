"""Exact mode: the same bits with a cache and without, for any chunking, batch, form and engine."""

import copy
import itertools
import threading

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from conftest import name, seeded, tiny_model
from model_fixtures import all_logits
from other_styles import Chat, ChatCache, Fast
from shapes import ROPE, model_of

from nanogpt import generation as decoder
from nanogpt.attention import attend, visible
from nanogpt.cache import DynamicCache, StaticCache
from nanogpt.caches.paged import PagedCache
from nanogpt.config import GPTConfig
from nanogpt.decoder.pack import pack_heads
from nanogpt.engines.eager import Batched, Flat, PerHead
from nanogpt.engines.exact import exact, in_exact_mode, sums, tables
from nanogpt.engines.generation import complete
from nanogpt.model import GPT
from nanogpt.sampling import sample

DTYPES = [torch.float32, torch.bfloat16, torch.float64]
# (width, heads, dtype)
SHAPES = [
    *((34, 2, dtype) for dtype in DTYPES),  # rows that fill no whole register
    (33, 1, torch.float32),  # rows that begin anywhere in a register
    (8, 1, torch.float32),  # fewer columns than a kernel computes at once
    (64, 4, torch.float32),  # sums of one whole piece
    (128, 4, torch.float32),  # sums of several pieces
]
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


def check_every_way(width, n_head, dtype):
    """Of one layer: a second one has the very shapes of the first. Two are decoded below."""
    idx = texts(3)
    heads = build(width, n_head, dtype, n_layer=1)
    with exact(heads):
        expected = all_logits(heads, idx)
        for model in (heads, pack_heads(heads)):
            for length in (1, 2, 9, BLOCK - 1, BLOCK):
                assert torch.equal(all_logits(model, idx[:, :length]), expected[:, :length])
            for cache, chunk, rows in WAYS:
                assert torch.equal(all_logits(model, idx[rows], cache, chunk), expected[rows])


ALL = slice(None)  # texts of the batch
ONE = slice(1, 2)
WAYS = [(DynamicCache, 1, ALL), (StaticCache, 7, ALL), (DynamicCache, 5, ONE)]


@pytest.mark.parametrize(("width", "n_head", "dtype"), SHAPES, ids=str)
def test_every_decoding_path_gives_the_same_bits(width, n_head, dtype):
    check_every_way(width, n_head, dtype)


def test_without_exact_mode_the_bits_differ():
    """Otherwise the test above would prove nothing."""
    heads = build(64, 4, torch.float32)
    idx = texts(3)
    expected = all_logits(heads, idx)
    for other in (all_logits(heads, idx, DynamicCache), all_logits(pack_heads(heads), idx)):
        assert (other != expected).float().mean() > 0.1
        torch.testing.assert_close(other, expected, rtol=0, atol=1e-3)


def test_the_number_of_threads_changes_no_bit():
    """PyTorch splits matrices and long elementwise functions among threads."""
    before = torch.get_num_threads()
    heads = build(128, 4, torch.float32, n_layer=1)
    idx = texts(1)
    long = torch.randn(40_001, generator=seeded(6))
    found = []
    try:
        with exact(heads):
            for n_threads in (1, 2):
                torch.set_num_threads(n_threads)
                found.append((all_logits(heads, idx, DynamicCache, 4), F.gelu(long)))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=name)
@pytest.mark.parametrize(
    ("engine", "per_head"), [(PerHead, True), (Batched, False), (Flat, False)], ids=name
)
def test_engines_in_torch_give_the_same_bits(engine, per_head, dtype, monkeypatch):
    """The logits that `sample` gets, each in its own arithmetic."""
    caught = []

    def spy(logits, *arguments):
        caught.append(logits.clone())
        return sample(logits, *arguments)

    monkeypatch.setattr(decoder, "sample", spy)
    model = build(64, 4, dtype, per_head)
    prompt = texts(2, 9)
    with exact(model):
        complete(build(64, 4, dtype), prompt, 12, cache=None, generator=seeded(1))
        expected = torch.stack(caught)
        caught[:] = []
        complete(model, prompt, 12, engine=engine, generator=seeded(1))
        assert torch.equal(torch.stack(caught), expected)


# ------------------------------------------------------------------ modules of a reader


class OwnHead(nn.Module):
    """A Head as in notebook 02, whose two products are written in some way."""

    def __init__(self, config):
        super().__init__()
        sizes = config.n_embd, config.head_size
        self.key, self.query, self.value = (nn.Linear(*sizes, bias=False) for _ in range(3))
        self.cache = None

    def forward(self, x, pos):
        q, k, v = self.query(x), self.key(x), self.value(x)
        k_pos = pos
        if self.cache is not None and not self.training:
            k, v, k_pos = self.cache.update(k, v, pos)
        return self.attend(q, k, v, visible(pos, k_pos))

    def attend(self, q, k, v, mask):
        scores = self.scores(q, k) * q.shape[-1] ** -0.5
        return self.means(scores.masked_fill(~mask, float("-inf")).softmax(-1), v)

    @staticmethod
    def scores(q, k):
        return q @ k.mT

    @staticmethod
    def means(weights, v):
        return weights @ v


def head_with(**methods):
    return type("WrittenHead", (OwnHead,), {k: staticmethod(f) for k, f in methods.items()})


# As the answers of learners and the notebooks write it.
OWN_HEADS = {
    "@": OwnHead,
    "bmm": head_with(scores=lambda q, k: torch.bmm(q, k.mT), means=torch.bmm),
    "einsum": head_with(
        scores=lambda q, k: torch.einsum("btc, bsc -> bts", q, k),
        means=lambda w, v: torch.einsum("bts,bsc->btc", [w, v]),
    ),
    "einsum, keys first": head_with(
        scores=lambda q, k: torch.einsum("...sc,...tc->...st", k, q).mT,
        means=lambda w, v: torch.einsum("bsc,bts->bct", v, w).mT,
    ),
    "multiply and sum": head_with(
        scores=lambda q, k: (q[:, :, None] * k[:, None]).sum(-1),
        means=lambda w, v: (w[..., None] * v[:, None]).sum(-2),
    ),
    "softmax by hand": type(
        "ByHand",
        (OwnHead,),
        {
            "attend": lambda self, q, k, v, mask: (
                (w := (q @ k.mT).exp() * mask) @ v / w.sum(-1, keepdim=True)
            )
        },
    ),
    "fused": type(
        "Fused",
        (OwnHead,),
        {
            "attend": lambda self, q, k, v, mask: F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, scale=0.3
            )
        },
    ),
}


@pytest.fixture
def products_of_a_gpu(monkeypatch):
    """Products as they are computed on a GPU, which a CPU computes just as well."""
    monkeypatch.setattr(sums, "multiplied", sums.multiplied_by_terms)


def in_pairs(terms: list[float]) -> float:
    """The sum of a list whose length is a power of two: of its halves' sums, place by place."""
    while len(terms) > 1:
        half = len(terms) // 2
        terms = [a + b for a, b in zip(terms[:half], terms[half:], strict=True)]
    return terms[0]


@pytest.mark.parametrize("K", [1, 2, 63, 64, 65, 150])
def test_a_gpu_s_product_has_the_order_that_is_written_down(K):
    """In Python's floats, which no kernel adds."""
    a = torch.randn(2, 3, K, generator=seeded(1), dtype=torch.float64)
    b = torch.randn(2, K, 5, generator=seeded(2), dtype=torch.float64)
    columns = sums.filled(b.mT, sums.COLUMNS)
    found = sums.multiplied_by_terms(a, columns)[..., :5]
    size = 1 << (columns.shape[-1] - 1).bit_length()
    for z, row, column in itertools.product(range(2), range(3), range(5)):
        pairs = zip(a[z, row].tolist(), b[z, :, column].tolist(), strict=True)
        terms = [x * y for x, y in pairs]
        assert float(found[z, row, column]) == in_pairs(terms + [0.0] * (size - K))


CHUNKS = [1, 7, [5, 1, 1, 16, 1]]


def check_bits(model, idx, caches=(DynamicCache, StaticCache, PagedCache)):
    with exact(model):
        expected = all_logits(model, idx)
        for cache, chunk in zip(caches, CHUNKS, strict=False):
            assert torch.equal(all_logits(model, idx, cache, chunk), expected)
        assert torch.equal(all_logits(model, idx[1:2], DynamicCache, 1), expected[1:2])
    torch.testing.assert_close(all_logits(model, idx), expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("written", OWN_HEADS)
def test_a_head_of_your_own_gives_the_same_bits(written):
    config = GPTConfig(vocab_size=31, block_size=BLOCK, n_layer=1, n_head=2, n_embd=26)
    model = GPT(config, head=OWN_HEADS[written], generator=seeded(3)).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(4)
    check_bits(model, texts(2))


@pytest.mark.parametrize("form", [{"packed": False}, {"n_kv_head": 2, **ROPE}], ids=str)
def test_models_give_the_same_bits_with_the_products_of_a_gpu(form, products_of_a_gpu):
    """Both failed in the first run on a real one. Those of a CPU: tests/decoder."""
    sizes = {"vocab_size": 31, "block_size": BLOCK, "n_layer": 1, "n_head": 4, "n_embd": 40}
    check_bits(model_of(seeded(3), **sizes, **form).eval(), texts(2))


def read_fast(model, idx, chunks):
    """Logits of a model in gpt-fast's style, read in pieces into static buffers."""
    model.max_seq_length = -1  # new buffers, of this batch
    model.max_batch_size = -1
    model.setup_caches(len(idx), idx.shape[1])
    pieces = torch.arange(idx.shape[1]).split(chunks)
    return torch.cat([model(idx[:, pos], pos) for pos in pieces], dim=1)


def read_chat(model, idx, chunks):
    """Logits of a model in nanochat's style, read in pieces into its cache."""
    cache = ChatCache(len(idx), 1, idx.shape[1], 8, 2, "cpu", torch.float32)
    return torch.cat([model(piece, cache) for piece in idx.split(chunks, dim=1)], dim=1)


@pytest.mark.parametrize(("style", "read"), [(Fast, read_fast), (Chat, read_chat)], ids=name)
def test_models_in_other_styles_give_the_same_bits(style, read):
    model = style().eval()
    idx = texts(2, 12)
    with torch.no_grad():
        usual = read(model, idx, 12)
    with exact(model):
        whole = read(model, idx, 12)
        one_by_one = read(model, idx, [5] + [1] * 7)  # the first token of a chunk is not smeared
        alone = read(model, idx[1:], [5] + [1] * 7)
    assert torch.equal(one_by_one, whole)
    assert torch.equal(alone, whole[1:])
    torch.testing.assert_close(whole, usual, rtol=0, atol=1e-4)


LAYERS = {
    # the activations of DecoderConfig
    "GELU": nn.GELU(),
    "GELU, tanh": nn.GELU("tanh"),
    "SiLU": nn.SiLU(),
    # norms
    "LayerNorm": nn.LayerNorm(30),
    "RMSNorm": nn.RMSNorm(30),
    "RMSNorm by hand": lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5),
    # what softmax by hand, rotations and a capped logit are written with
    "sum": lambda x: x.sum(-1),
    "softmax": lambda x: F.softmax(x, dim=-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "power": lambda x: x.abs() ** 1.3,
    "power of two": lambda x: 2.0**x,
    "exp_": lambda x: x.clone().exp_(),
    "sine of tanh": lambda x: x.tanh().sin(),
    "sigmoid": lambda x: x.sigmoid(),
    # products
    "linear": nn.Linear(30, 7),
    "weights on the left": lambda x: (torch.arange(90).sub(45).view(3, 30).to(x) @ x.mT).mT,
}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_a_layer_computes_a_row_as_if_it_were_alone(layer, dtype):
    """Of odd width, so that rows begin anywhere in a register."""
    f = LAYERS[layer]
    f = copy.deepcopy(f).to(dtype) if isinstance(f, nn.Module) else f
    x = (2 * torch.randn(9, 30, generator=seeded(1))).to(dtype)
    with exact(tiny_model()):
        whole = f(x)
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                for size in (1, 2, 4, 9):
                    assert torch.equal(torch.cat([f(part) for part in x.split(size)]), whole)
    near = 3e-2 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(whole, f(x), rtol=near, atol=near)


EQUATIONS = {
    "bthc,bshc->bhts": ((2, 3, 4, 5), (2, 6, 4, 5)),
    "bhts,bshc->bthc": ((2, 4, 3, 6), (2, 6, 4, 5)),
    "...td,...sd->...ts": ((2, 4, 3, 5), (4, 6, 5)),
    "td,d->t": ((3, 5), (5,)),
    "d,d->": ((5,), (5,)),
    "t,s->ts": ((3,), (5,)),
}


@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum_computes_the_equation(equation):
    a, b = (torch.randn(shape, generator=seeded(1)) for shape in EQUATIONS[equation])
    with exact(tiny_model()):
        found = torch.einsum(equation, a, b)
    torch.testing.assert_close(found, torch.einsum(equation, a, b))


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_zeros_at_the_end_change_no_sum(dtype):
    """Attention over more keys, of which the last are hidden."""
    a, b = torch.randn(2, 3, 5, 150, generator=seeded(1)).to(dtype)
    with exact(tiny_model()):
        for n in (1, 63, 64, 65, 150):
            cut = a[..., :n]
            right = cut @ b[..., :n].mT, cut.sum(-1), cut.softmax(-1)
            for more in (1, 64, 500):
                x = F.pad(cut, (0, more))
                assert torch.equal(x @ F.pad(b[..., :n], (0, more)).mT, right[0])
                assert torch.equal(x.sum(-1), right[1])
                hidden = F.pad(cut, (0, more), value=float("-inf"))
                assert torch.equal(hidden.softmax(-1)[..., :n], right[2])


def test_the_alignment_of_weights_changes_no_bit():
    """Weights may begin anywhere in a file that is mapped into memory."""
    x = torch.randn(3, 64, generator=seeded(1))
    weight = torch.randn(32, 64, generator=seeded(2))
    with exact(tiny_model()):
        right = F.linear(x, weight)
        for start in range(1, 16):
            moved = torch.zeros(32 * 64 + start)[start:].view(32, 64).copy_(weight)
            assert torch.equal(F.linear(x, moved), right)


REFUSED = {
    "cdist": lambda x: torch.cdist(x, x),  # notebook 12 shows it
    "conv1d": lambda x: F.conv1d(x[None], x[None]),
    "group_norm": lambda x: F.group_norm(x, 2),
    "index_add": lambda x: x.index_add(0, torch.zeros(1, dtype=torch.long), x),
    "prod": lambda x: x.prod(-1),
    "var": lambda x: x.var(-1),
    "add": lambda x: torch.add(x, x, alpha=0.3),
    "einsum of bt,bs->": lambda x: torch.einsum("bt,bs->", x, x),
}


@pytest.mark.parametrize("operation", REFUSED)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_function_that_is_in_no_table_is_refused_by_name(operation, mode):
    with mode():
        x = torch.ones(1, 30)
        REFUSED[operation](x)
        with (
            exact(tiny_model()),
            pytest.raises(ValueError, match=f"order {operation} adds up: write it with @"),
        ):
            REFUSED[operation](x)


ARGUMENTS_REFUSED = {
    "sum without out=": lambda x: torch.sum(x, dim=1, out=torch.empty(1)),
    "exp without out=": lambda x: torch.exp(x, out=torch.empty(1, 30)),
    "mean without axis=: it takes x, dim": lambda x: torch.mean(x, axis=1),
}


@pytest.mark.parametrize("words", ARGUMENTS_REFUSED)
def test_an_argument_that_exact_mode_does_not_take_is_refused_by_name(words):
    x = torch.ones(1, 30)
    ARGUMENTS_REFUSED[words](x)
    with exact(tiny_model()), pytest.raises(ValueError, match=f"exact mode computes {words}"):
        ARGUMENTS_REFUSED[words](x)


@pytest.mark.parametrize("function", [torch.mm, lambda *rows: torch.stack(rows), torch.trapezoid])
def test_vmap_is_refused(function):
    """Also around functions that add nothing up, or that cannot be batched."""
    x = torch.ones(2, 3, 3)
    with exact(tiny_model()), pytest.raises(ValueError, match="does not work inside torch.vmap"):
        torch.vmap(function)(x, x)


def test_autocast_is_refused():
    """Around exact mode, inside it, and entered by a head."""
    model = build(12, 3, torch.float32)
    autocast = torch.autocast("cpu", torch.bfloat16)
    words = "does not work with torch.autocast, which is on: leave"
    with autocast, pytest.raises(ValueError, match=words), exact(model):
        pass
    assert not in_exact_mode()
    with exact(model), autocast, pytest.raises(ValueError, match=words):
        model(texts(1, 5))
    model.blocks[0].sa.forward = autocast(model.blocks[0].sa.forward)
    with exact(model), pytest.raises(ValueError, match=words):
        model(texts(1, 5))
    with exact(model), torch.autocast("cpu", enabled=False):
        build(12, 3, torch.float32)(texts(1, 5))


def test_no_function_is_in_two_tables():
    assert not tables.AS_USUAL & tables.OUR_ORDER.keys()


def test_integers_are_computed_as_usual():
    with exact(tiny_model()):
        counts = torch.ones(3, dtype=torch.long)
        assert (counts.prod(), counts.sum(), counts @ counts) == (1, 3, 3)


def test_a_model_is_frozen_and_loaded_as_usual():
    model = tiny_model()
    state = model.state_dict()
    with exact(model):
        model.requires_grad_(False).load_state_dict(state)
    assert not any(weight.requires_grad for weight in model.parameters())


def test_the_loss_is_computed_and_gradients_are_refused():
    model = build(12, 3, torch.float32)
    logits, loss = model(texts(2), texts(2))
    with exact(model):
        inside = model(texts(2), texts(2))[1]
        with torch.enable_grad(), pytest.raises(ValueError, match="exact mode computes no grad"):
            model(texts(2))
    torch.testing.assert_close(inside, loss)
    assert torch.is_grad_enabled()
    assert loss.requires_grad
    assert not inside.requires_grad


# As F.cross_entropy computes them: the targets, and the options.
LOSSES = {
    "as GPT calls it": ([3, 0, 2, 5], {}),
    "PyTorch's own index": ([3, -100, 2, -100], {}),
    "nanoGPT's index": ([3, -1, 2, 5], {"ignore_index": -1}),
    "a token that is ignored": ([3, 0, 2, 0], {"ignore_index": 0}),
    "no target that counts": ([-100] * 4, {}),
}


@pytest.mark.parametrize("case", LOSSES)
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_the_loss_is_pytorch_s(case, dtype):
    targets, options = LOSSES[case]
    logits = torch.randn(4, 6, generator=seeded(1)).to(dtype)
    right = F.cross_entropy(logits, torch.tensor(targets), **options)
    with exact(tiny_model()):
        found = F.cross_entropy(logits, torch.tensor(targets), **options)
    assert found.dtype == dtype
    torch.testing.assert_close(found, right, equal_nan=True)


LOSSES_REFUSED = {
    "with options": lambda x, y: F.cross_entropy(x, y, reduction="sum"),
    r"of \(2, 6, 4\) and \(2, 4\)": lambda x, y: F.cross_entropy(x.view(2, 4, 6).mT, y.view(2, 4)),
    r"of \(8, 6\) and \(8, 6\), torch.float32": lambda x, y: F.cross_entropy(x, x.softmax(-1)),
    r"of \(6,\) and \(\)": lambda x, y: F.cross_entropy(x[0], y[0]),
}


@pytest.mark.parametrize("words", LOSSES_REFUSED)
def test_another_kind_of_loss_is_refused_by_name(words):
    logits = torch.randn(8, 6, generator=seeded(1))
    targets = torch.zeros(8, dtype=torch.long)
    LOSSES_REFUSED[words](logits, targets)
    with exact(tiny_model()), pytest.raises(ValueError, match=f"order cross_entropy {words}"):
        LOSSES_REFUSED[words](logits, targets)


def test_a_compiled_part_is_refused():
    model = tiny_model()
    model.blocks[0] = torch.compile(model.blocks[0], backend="eager")
    with pytest.raises(ValueError, match="torch.compile: build the model without"):
        exact(model)


def test_a_text_may_be_longer_than_the_block():
    """Rotary positions have no end."""
    sizes = {"vocab_size": 31, "block_size": 8, "n_layer": 1, "n_head": 2, "n_embd": 12}
    check_bits(model_of(seeded(3), **sizes, **ROPE).eval(), texts(2), (DynamicCache, PagedCache))


# ------------------------------------------------------------------ fused attention


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


def test_a_mask_may_be_added_and_heads_may_be_shared():
    q = torch.randn(2, 4, 7, 8, generator=seeded(0))
    k, v = torch.randn(2, 2, 2, 7, 8, generator=seeded(1)).unbind(0)
    mask = torch.randn(7, 7, generator=seeded(2))
    how = {"attn_mask": mask, "scale": 0.2, "enable_gqa": True}
    with exact(tiny_model()):
        got = F.scaled_dot_product_attention(q, k, v, **how)
    usual = F.scaled_dot_product_attention(q, k, v, **how)
    torch.testing.assert_close(got, usual, rtol=0, atol=1e-5)


def test_a_long_prompt_in_pieces_is_the_same(monkeypatch):
    """Rows are multiplied a few at a time."""
    model = build(64, 4, torch.float32)
    idx = texts(2)
    with exact(model):
        expected = all_logits(model, idx)
        monkeypatch.setattr("nanogpt.engines.exact.sums.AT_ONCE", 1)
        assert torch.equal(all_logits(model, idx), expected)


def test_exact_mode_is_on_inside_its_block_and_in_its_thread_only():
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
