"""Notebook 02, blank 5: generate_with_cache, which reads the prompt once and then token by token."""

import torch

from ...cache import kv_cache
from ...config import GPTConfig
from ...model import GPT
from ...model import Head as ModelHead
from ...sampling import draw_noise
from ..drivers import Arguments, form
from ..page import Blank, Case
from .kv_cache import KVCache
from .sample import sample


@torch.no_grad()
def generate_with_cache(model, prompt, noise, cache):
    """Yield one token per row of noise.  (B, T), (n, B, V) -> n × (B, 1)"""
    tokens = prompt  # prefill: the whole prompt
    pos = torch.arange(prompt.shape[1], device=prompt.device)
    with kv_cache(model, cache):
        for row in noise:
            logits, _ = model(tokens, pos=pos)  # T tokens once, then 1, 1, 1 …
            tokens = sample(logits[:, -1], row)
            yield tokens
            pos = pos[-1:] + 1  # decode: only the new token, one position further


# ------------------------------------------------------------------ what a check runs

SIZE = 11  # vocabulary size
MOST = 1000  # passes of a model: more are an endless loop


class Watched(GPT):
    """A small model that records what it reads, where, and how."""

    def __init__(self, block_size, head=ModelHead, n_layer=1, dropout=0.0):
        sizes = {"n_layer": n_layer, "n_head": 2, "n_embd": 8}
        super().__init__(GPTConfig(SIZE, block_size, dropout=dropout, **sizes), head)
        generator = torch.Generator().manual_seed(block_size)
        for weight in self.parameters():
            if weight.ndim > 1:
                weight.data = torch.randn(weight.shape, generator=generator)
        self.tokens = []
        self.positions = []
        self.cached = []
        self.recorded = []

    def forward(self, idx, targets=None, pos=None):
        if len(self.tokens) == MOST:
            raise RuntimeError(f"the model is called {MOST:,} times: does your loop end?")
        self.tokens.append(idx.clone())
        where = torch.arange(idx.shape[1]) if pos is None else pos
        if isinstance(where, torch.Tensor) and where.numel() == idx.shape[1]:
            self.positions += where.flatten().tolist()
        self.cached.append(self.caching)
        self.recorded.append(torch.is_grad_enabled())
        return super().forward(idx, targets, pos)


class Tight(KVCache):
    """A cache that accepts no position past its capacity, and counts how many are built."""

    built = 0

    def __init__(self, capacity):
        super().__init__()
        self.most = capacity
        Tight.built += 1

    def update(self, k, v, pos):
        last = int(pos.max())
        if last >= self.most:
            raise ValueError(
                f"the caches are made for {self.most} tokens, but one at position {last} has to "
                "be read: kv_cache(model, cache) makes them for the whole block"
            )
        return super().update(k, v, pos)


def texts(B, T, n):
    """A prompt (B, T) and noise (n, B, V)."""
    prompt = torch.randint(SIZE, (B, T), generator=torch.Generator().manual_seed(B + T))
    return Arguments(prompt=prompt, noise=draw_noise(n, B, SIZE, torch.Generator().manual_seed(n)))


def run_loop(answer, B, T, n, block_size):
    """A complete text: the tokens, and everything that the model reads."""
    model = Watched(block_size).eval()
    given = texts(B, T, n)
    Tight.built = 0
    steps = answer(model, *given.tensors.values(), Tight)
    yield "what is returned is not an iterator", not hasattr(steps, "__next__")
    tokens = []
    before = []  # how many tokens the model has read when each one is yielded
    for token in steps:
        tokens.append(token)
        before.append(len(model.positions))
    yield from given.changes()
    yield "the model was in eval mode, and your loop left it in training mode", model.training
    yield "a pass of the model without a cache", not all(model.cached)
    yield "PyTorch records a pass for gradients", any(model.recorded)
    yield "the number of caches built, for two heads", Tight.built
    yield "the caches are still on after the last token", model.caching
    shapes = sorted({form(token) for token in tokens})
    yield "what is yielded", f"{len(tokens)} tokens, each {' or '.join(shapes)}"
    yield "the positions that the model reads", torch.tensor(model.positions)
    yield "the tokens that are read before each is yielded", torch.tensor(before)
    if shapes == [str((B, 1))]:
        yield "the tokens that are yielded", torch.cat(tokens, dim=1)
    if model.tokens:
        yield "the tokens that the model reads", torch.cat(model.tokens, dim=1)


def run_stop(answer):
    """A caller who stops after the first token."""
    model = Watched(16).eval()
    steps = answer(model, *texts(1, 3, 8).tensors.values(), Tight)
    next(steps)
    yield "the number of tokens that are read before the first is yielded", len(model.positions)
    steps.close()
    yield "a caller who stops in the middle leaves the caches on", model.caching


def run_past(answer):
    """More tokens than fit into the block: an error."""
    try:
        tokens = list(answer(Watched(16).eval(), *texts(1, 3, 20).tensors.values(), Tight))
        end = f"a text that ends silently after {len(tokens)} tokens"
    except Exception:
        end = "an error"
    yield "the result for 20 new tokens after 3 in a block of 16", end


def run_training(answer):
    """A model in training mode, in which no cache is used: only the mode counts."""
    model = Watched(16).train()
    list(answer(model, *texts(1, 3, 8).tensors.values(), Tight))
    yield "the model was in training mode, and your loop left it in eval mode", not model.training


# ------------------------------------------------------------------ what people write

BLANK = Blank(
    number="02.5",
    minutes=7,
    solution=generate_with_cache,
    cases=[
        Case(run_loop, B=1, T=5, n=4, block_size=16),
        Case(run_loop, B=3, T=7, n=12, block_size=30),
        Case(run_loop, B=2, T=1, n=20, block_size=20),  # to the end of the block
        Case(run_stop),
        Case(run_past),
        Case(run_training),
        Case(run_loop, B=1, T=3, n=158, block_size=160),
    ],
    mistakes={
        "a list or a tensor of all tokens is returned: `yield` each one.": (
            [
                "    with ->     all_tokens = []\n    with",
                "yield tokens -> all_tokens.append(tokens)",
                "one position further\n -> \n    return all_tokens\n",
            ],
            [
                "    with ->     all_tokens = []\n    with",
                "yield tokens -> all_tokens.append(tokens)",
                "one position further\n -> \n    return torch.cat(all_tokens, dim=1)\n",
            ],
        ),
        "the caches are not of the class passed in: kv_cache(model, cache).": [
            "kv_cache(model, cache) -> kv_cache(model)"
        ],
        "new caches at each step forget what was read: use one with-block around all steps.": [
            "    with kv_cache(model, cache):\n        for row in noise:\n -> "
            "    for row in noise:\n        with kv_cache(model, cache):\n"
        ],
        "positions are a tensor, not an integer: pos[-1:] + 1 keeps it one.": [
            "pos = pos[-1:] + 1 -> pos = int(pos[-1]) + 1"
        ],
        "what the cache has is read again: after the prompt, the model reads only the new token.": [
            "yield tokens\n -> yield tokens\n            tokens = prompt = torch.cat([prompt, tokens], dim=1)\n",
            "pos = pos[-1:] + 1 -> pos = torch.arange(tokens.shape[1])",
        ],
        "the prompt's last token is read twice: the prefill has already read it, and its logits "
        "decide the first new token.": [
            "        for ->         model(prompt, pos=pos)\n        tokens, pos = prompt[:, -1:], pos[-1:]\n        for"
        ],
        "the first new token is never yielded: yield it before it is read.": [
            "            yield tokens ->             if pos[0]:\n                yield tokens"
        ],
        "each token needs the noise of its own step and text, row for row.": [
            "-1], row) -> -1], noise[0])"
        ],
    },
    wrong=[
        "one position further\n -> \n        model(tokens, pos=pos)\n",
        "pos[-1:] + 1 -> (pos[-1:] + 1).clamp(max=128)",
        "kv_cache(model, cache) -> kv_cache(model, cache, 64)",
        "row in noise -> row in noise.sqrt()",
        "-1], row) -> -1], row[:1].expand_as(row))",
    ],
    right=[
        """
@torch.no_grad()
def generate_with_cache(model, prompt, noise, cache):
    with kv_cache(model, cache):
        for t in range(prompt.shape[1]):
            logits, _ = model(prompt[:, t : t + 1], pos=torch.tensor([t]))
        for i, row in enumerate(noise):
            token = sample(logits[:, -1], row)
            yield token
            if i + 1 < len(noise):
                t += 1
                logits, _ = model(token, pos=torch.tensor([t]))
""",
        """
class Loop:
    def __init__(self, model, prompt, noise, cache):
        self.model, self.tokens, self.noise = model, prompt, iter(noise)
        self.pos = torch.arange(prompt.shape[1])
        self.on = kv_cache(model, cache)

    def __iter__(self):
        with torch.inference_mode(), self.on:
            for row in self.noise:
                self.tokens = sample(self.model(self.tokens, pos=self.pos)[0][:, -1], row)
                self.pos = self.pos[-1:] + 1
                yield self.tokens


def generate_with_cache(model, prompt, noise, cache):
    return iter(Loop(model, prompt, noise, cache))
""",
    ],
    hints=(
        "Which tokens has the model not read yet, in the first pass and in each later one? At which positions are they?",
        "The prompt of T tokens takes positions 0 to T - 1. So the first new token, which is read at the second step, is at T, one after the last position: `pos[-1:] + 1`.",
        "in the loop: logits, _ = model(tokens, pos=pos); tokens = sample(logits[:, -1], row); yield tokens; pos = pos[-1:] + 1",
    ),
    advice={
        "an instance": "kv_cache takes the class and builds a cache for each head: pass cache, not cache().",
        "'capacity'": "kv_cache takes the class and builds a cache for each head: pass cache, not cache().",
        "one position each": "After the prompt there is one new token, at one position: pos[-1:] + 1.",
        "tuple indices": "The model returns the logits and the loss: logits, _ = model(tokens, pos=pos).",
        "the positions that": "Every token but the last must be read once, at its own position.",
        "the tokens that are yielded": "The last logits decide, and each token needs the noise of its own step and text, as it comes.",
    },
    axes=[("text", "token"), ("token",)],
)
