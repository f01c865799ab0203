"""The check of generate_with_cache."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ...cache import kv_cache
from ...config import GPTConfig
from ...model import GPT, Head
from ...sampling import draw_noise
from .caches import GrowingCache
from .exercise import Answer, Case, Exercise, Pairs
from .observing import Arguments

SIZE = 11  # vocabulary size


class Watched(GPT):
    """A small model that records what it reads, where, and how."""

    def __init__(
        self, block_size: int, head: Any = Head, n_layer: int = 1, dropout: float = 0.0
    ) -> None:
        sizes = {"n_layer": n_layer, "n_head": 2, "n_embd": 8}
        super().__init__(GPTConfig(SIZE, block_size, dropout=dropout, **sizes), head)
        generator = torch.Generator().manual_seed(block_size)
        for weight in self.parameters():
            if weight.ndim > 1:
                weight.data = torch.randn(weight.shape, generator=generator)
        self.tokens: list[Tensor] = []
        self.positions: list[float] = []
        self.cached: list[bool] = []
        self.recorded: list[bool] = []

    def forward(self, idx: Tensor, targets: Any = None, pos: Tensor | None = None) -> Any:
        self.tokens.append(idx.clone())
        where = torch.arange(idx.shape[1]) if pos is None else pos
        self.positions += where.reshape(-1, idx.shape[1])[0].tolist()
        self.cached.append(self.caching)
        self.recorded.append(torch.is_grad_enabled())
        return super().forward(idx, targets, pos)


class Tight(GrowingCache):
    """A cache that accepts no position past its capacity, and counts how many are built."""

    built = 0

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.most = capacity
        Tight.built += 1

    def update(self, k: Tensor, v: Tensor, pos: Tensor) -> Any:
        last = int(pos.max())
        if last >= self.most:
            raise ValueError(
                f"the caches are made for {self.most} tokens, but one at position {last} has to "
                "be read: kv_cache(model, cache) makes them for the whole block"
            )
        return super().update(k, v, pos)


# ------------------------------------------------------------------ drivers


def texts(B: int, T: int, n: int) -> Arguments:
    """A prompt (B, T) and noise (n, B, V)."""
    prompt = torch.randint(SIZE, (B, T), generator=torch.Generator().manual_seed(B + T))
    return Arguments(prompt=prompt, noise=draw_noise(n, B, SIZE, torch.Generator().manual_seed(n)))


def run_loop(answer: Answer, B: int, T: int, n: int, block_size: int) -> Pairs:
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
    shapes = sorted({str(tuple(token.shape)) for token in tokens})
    yield "what is yielded", f"{len(tokens)} tokens of shape {' and '.join(shapes)}"
    yield "the positions that the model reads", torch.tensor(model.positions)
    yield "the tokens that are read before each is yielded", torch.tensor(before)
    if shapes == [str((B, 1))]:
        yield "the tokens that are yielded", torch.cat(tokens, dim=1)
    if model.tokens:
        yield "the tokens that the model reads", torch.cat(model.tokens, dim=1)


def run_stop(answer: Answer) -> Pairs:
    """A caller who stops after the first token."""
    model = Watched(16).eval()
    steps = answer(model, *texts(1, 3, 8).tensors.values(), Tight)
    next(steps)
    yield "the number of tokens that are read before the first is yielded", len(model.positions)
    steps.close()
    yield "a caller who stops in the middle leaves the caches on", model.caching


def run_past(answer: Answer) -> Pairs:
    """More tokens than fit into the block: an error."""
    try:
        tokens = list(answer(Watched(16).eval(), *texts(1, 3, 20).tensors.values(), Tight))
        end = f"a text that ends silently after {len(tokens)} tokens"
    except Exception:
        end = "an error"
    yield "the result for 20 new tokens after 3 in a block of 16", end


def run_training(answer: Answer) -> Pairs:
    """A model in training mode, in which no cache is used: only the mode counts."""
    model = Watched(16).train()
    list(answer(model, *texts(1, 3, 8).tensors.values(), Tight))
    yield "the model was in training mode, and your loop left it in eval mode", not model.training


# ------------------------------------------------------------------ mistakes


def draw(logits: Tensor, row: Tensor) -> Tensor:
    """The token with the largest probability / noise.  (B, V), (B, V) -> (B, 1)"""
    return (logits.softmax(-1) / row).argmax(-1, keepdim=True)


STEPS: dict[str, Any] = {
    "around": kv_cache,
    "first": lambda model, prompt, pos: (prompt, pos),
    "logits": lambda logits: logits[:, -1],
    "row": lambda noise, i: noise[i],
    "draw": draw,
    "after": lambda pos: pos[-1:] + 1,
    "feed": lambda prompt, token: token,
}
Tokens = Iterator[Tensor]


@torch.no_grad()
def generate(model: Any, prompt: Tensor, noise: Tensor, cache: Any, **steps: Any) -> Tokens:
    """The reference solution. Each step can be replaced."""
    step = SimpleNamespace(**STEPS | steps)
    pos = torch.arange(prompt.shape[1])
    with step.around(model, cache):
        tokens, pos = step.first(model, prompt, pos)
        for i in range(len(noise)):
            logits, _ = model(tokens, pos=pos)
            token = step.draw(step.logits(logits), step.row(noise, i))
            yield token
            pos = step.after(pos)
            tokens = step.feed(prompt, token)


def loop_by(**step: Any) -> Answer:
    """The loop with one step replaced."""
    return partial(generate, **step)


@torch.no_grad()
def new_caches(model: Any, prompt: Tensor, noise: Tensor, cache: Any) -> Tokens:
    tokens = prompt
    pos = torch.arange(prompt.shape[1])
    for row in noise:
        with kv_cache(model, cache):
            logits, _ = model(tokens, pos=pos)
        tokens = draw(logits[:, -1], row)
        yield tokens
        pos = pos[-1:] + 1


def prefill_twice(model: Any, prompt: Tensor, pos: Tensor) -> tuple[Tensor, Tensor]:
    model(prompt, pos=pos)
    return prompt[:, -1:], pos[-1:] + 1


def last_again(model: Any, prompt: Tensor, pos: Tensor) -> tuple[Tensor, Tensor]:
    model(prompt, pos=pos)
    return prompt[:, -1:], pos[-1:]


def one_too_many(model: Any, prompt: Tensor, noise: Tensor, cache: Any) -> Tokens:
    steps = generate(model, prompt, torch.cat([noise, noise[:1]]), cache)
    for _ in noise:
        yield next(steps)
    next(steps)


def one_ahead(*given: Any) -> Tokens:
    steps = generate(*given)
    token = next(steps)
    for following in steps:
        yield token
        token = following
    yield token


def prompt_first(model: Any, prompt: Tensor, *rest: Any) -> Tokens:
    yield from prompt.split(1, dim=1)
    yield from generate(model, prompt, *rest)


def in_eval_mode(model: Any, *rest: Any) -> Tokens:
    model.eval()
    yield from generate(model, *rest)


def train_at_the_end(model: Any, *rest: Any) -> Tokens:
    yield from generate(model, *rest)
    model.train()


def in_silence(*given: Any) -> Tokens:
    try:
        yield from generate(*given)
    except Exception:
        return


NOISE = "each token needs the noise of its own step and text"
LOOP = Exercise(
    notebook="02",
    hints=(
        "Which tokens has the model not read yet, in the first pass and in each later one? At "
        "which positions are they?",
        "The prompt of T tokens takes positions 0 to T - 1. So the first new token, which is "
        "read at the second step, is at T, one after the last position: `pos[-1:] + 1`.",
        "in the loop: logits, _ = model(tokens, pos=pos); tokens = sample(logits[:, "
        "-1], row); yield tokens; pos = pos[-1:] + 1",
    ),
    right=generate,
    cases=[
        Case(run_loop, B=1, T=5, n=4, block_size=16),
        Case(run_loop, B=3, T=7, n=12, block_size=30),
        Case(run_loop, B=2, T=1, n=20, block_size=20),  # to the end of the block
        Case(run_stop),
        Case(run_past),
        Case(run_training),
        Case(run_loop, B=1, T=3, n=238, block_size=240),
    ],
    mistakes={
        "new tokens are read at position 0: the first of them is at T, the prompt's "
        "length.": loop_by(after=lambda pos: pos[-1:] * 0),
        "the positions are one too large: the first new token is at T, the prompt's "
        "length.": loop_by(after=lambda pos: pos[-1:] + 2),
        "the position never changes: each new token is at the next one.": loop_by(
            after=lambda pos: pos[-1:]
        ),
        "the first logits are used: the last ones, logits[:, -1], decide.": loop_by(
            logits=lambda logits: logits[:, 0]
        ),
        "all texts get the first text's last logits: each has its own.": loop_by(
            logits=lambda logits: logits[:1, -1].expand(len(logits), -1)
        ),
        "the noise is not used, and the likeliest token is chosen.": loop_by(
            draw=lambda logits, row: logits.argmax(-1, keepdim=True)
        ),
        f"each step uses the first row of noise: {NOISE}.": loop_by(row=lambda noise, i: noise[0]),
        f"the rows of noise are used in reverse: {NOISE}.": loop_by(
            row=lambda noise, i: noise[-1 - i]
        ),
        f"all texts use the first text's noise: {NOISE}.": loop_by(
            row=lambda noise, i: noise[i, :1].expand_as(noise[i])
        ),
        "the prompt is read again at each step: reading the new token is enough.": loop_by(
            feed=lambda prompt, token: torch.cat([prompt, token], dim=1)
        ),
        "the prompt's last token is read twice, at T the second time: the prefill's own logits "
        "decide the first new token.": loop_by(first=prefill_twice),
        "the prompt's last token is read twice: the prefill has already read it. The prefill's "
        "logits decide the first new token.": loop_by(first=last_again),
        "no cache is on: put the loop inside `with kv_cache(model, cache):`.": loop_by(
            around=lambda model, cache: nullcontext()
        ),
        "a cache of another class than the one passed in is built: kv_cache(model, "
        "cache).": loop_by(around=lambda model, cache: kv_cache(model, GrowingCache)),
        "new caches at each step forget what was read: use one with-block around all steps.": (
            new_caches
        ),
        "one token too many is read: the logits after the last token are never used.": one_too_many,
        "PyTorch records each pass for gradients: put @torch.no_grad() above the function.": (
            generate.__wrapped__  # type: ignore[attr-defined]
        ),
        "all tokens are sampled before the first is yielded: `yield` each as soon as it is "
        "sampled.": lambda *given: iter(list(generate(*given))),
        "the next pass runs before a token is yielded: `yield` it as soon as it is sampled, and "
        "read it after that.": one_ahead,
        "a list is returned: `yield` each token.": lambda *given: list(generate(*given)),
        "a tensor of all tokens is returned: `yield` each token.": (
            lambda *given: torch.cat(list(generate(*given)), dim=1)
        ),
        "the prompt is yielded first: yield only new tokens.": prompt_first,
        "the model was in training mode, and your loop left it in eval mode.": in_eval_mode,
        "the model was in eval mode, and your loop left it in training mode.": train_at_the_end,
        "the block is full, and the text ends silently: let the model's error propagate.": (
            in_silence
        ),
    },
    advice={
        "not an iterator": "`yield` each token.",
        "without a cache": "Put the loop inside `with kv_cache(model, cache):`.",
        "for gradients": "Put @torch.no_grad() above the function.",
        "the number of caches built": (
            "Use one with-block around all steps: kv_cache(model, cache)."
        ),
        "caches are still on": "`with kv_cache(model, cache):` removes them.",
        "leaves the caches on": "`with kv_cache(model, cache):` removes them.",
        "the positions that": "Every token but the last must be read once, at its own position.",
        "what is yielded": "Yield one token of shape (B, 1) per row of noise, for each text.",
        "before each": "`yield` each token as soon as it is sampled, and read it after that.",
        "before the first": "`yield` each token as soon as it is sampled, and read it after that.",
        "the result for": "Let the model's error propagate.",
        "left it in": "Leave the mode as it was.",
        "the tokens that are yielded": f"The last logits decide, and {NOISE}, as it comes.",
        "the tokens that the model reads": "First the whole prompt, then each new token.",
    },
    axes=[("text", "token"), ("token",)],
)
