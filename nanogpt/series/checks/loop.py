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

SIZE = 11  # of the vocabulary


class Watched(GPT):
    """A small model that notes what it reads, where, and how."""

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
    """A cache that takes no position past its capacity, and counts how many are built."""

    built = 0

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.most = capacity
        Tight.built += 1

    def update(self, k: Tensor, v: Tensor, pos: Tensor) -> Any:
        last = int(pos.max())
        if last >= self.most:
            raise ValueError(
                f"the caches are made for {self.most} tokens, and one at position {last} has to be "
                "read: kv_cache(model, cache) makes them for the whole block"
            )
        return super().update(k, v, pos)


# ------------------------------------------------------------------ drivers


def texts(B: int, T: int, n: int) -> Arguments:
    """A prompt (B, T) and noise (n, B, V)."""
    prompt = torch.randint(SIZE, (B, T), generator=torch.Generator().manual_seed(B + T))
    return Arguments(prompt=prompt, noise=draw_noise(n, B, SIZE, torch.Generator().manual_seed(n)))


def run_loop(answer: Answer, B: int, T: int, n: int, block_size: int) -> Pairs:
    """A text to its end: the tokens, and all that the model reads."""
    model = Watched(block_size).eval()
    given = texts(B, T, n)
    Tight.built = 0
    steps = answer(model, *given.tensors.values(), Tight)
    yield "what comes is no iterator", not hasattr(steps, "__next__")
    tokens = []
    before = []  # how many tokens the model has read when each is handed out
    for token in steps:
        tokens.append(token)
        before.append(len(model.positions))
    yield from given.changes()
    yield "the model came in eval mode, and your loop left it in training mode", model.training
    yield "a pass of the model where no cache is on", not all(model.cached)
    yield "PyTorch records a pass for gradients", any(model.recorded)
    yield "the caches that are built, for two heads", Tight.built
    yield "the caches are still on after the last token", model.caching
    shapes = sorted({str(tuple(token.shape)) for token in tokens})
    yield "what is handed out", f"{len(tokens)} tokens of shape {' and '.join(shapes)}"
    yield "the positions that the model reads", torch.tensor(model.positions)
    yield "the tokens that are read before each is handed out", torch.tensor(before)
    if shapes == [str((B, 1))]:
        yield "the tokens that are handed out", torch.cat(tokens, dim=1)
    if model.tokens:
        yield "the tokens that the model reads", torch.cat(model.tokens, dim=1)


def run_stop(answer: Answer) -> Pairs:
    """A reader who stops after the first token."""
    model = Watched(16).eval()
    steps = answer(model, *texts(1, 3, 8).tensors.values(), Tight)
    next(steps)
    yield "the number of tokens that are read before the first is handed out", len(model.positions)
    steps.close()
    yield "a reader who stops in the middle leaves the caches on", model.caching


def run_past(answer: Answer) -> Pairs:
    """More tokens than the block holds: an error."""
    try:
        tokens = list(answer(Watched(16).eval(), *texts(1, 3, 20).tensors.values(), Tight))
        end = f"a text that ends in silence after {len(tokens)} tokens"
    except Exception:
        end = "an error"
    yield "what comes of 20 new tokens after 3 in a block of 16", end


def run_training(answer: Answer) -> Pairs:
    """A model that comes in training mode, in which no cache is used: only the mode counts."""
    model = Watched(16).train()
    list(answer(model, *texts(1, 3, 8).tensors.values(), Tight))
    yield "the model came in training mode, and your loop left it in eval mode", not model.training


# ------------------------------------------------------------------ mistakes


def draw(logits: Tensor, row: Tensor) -> Tensor:
    """The token of the largest probability / noise.  (B, V), (B, V) -> (B, 1)"""
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
    """The right answer. A step can be exchanged."""
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
    """The loop with a step exchanged."""
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
        "Which tokens has the model not read yet, at the first pass and at each pass "
        "after it? At which positions do they stand?",
        "The prompt of T tokens takes the positions 0 to T - 1. So the first new token,"
        " which is read at the second step, stands at T: one after the last position, "
        "`pos[-1:] + 1`.",
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
        "new tokens are read at position 0: the first of them is at T, the length of the "
        "prompt.": loop_by(after=lambda pos: pos[-1:] * 0),
        "the positions are one too far: the first new token is at T, the length of the "
        "prompt.": loop_by(after=lambda pos: pos[-1:] + 2),
        "the position stays the same: each new token is at the next one.": loop_by(
            after=lambda pos: pos[-1:]
        ),
        "the first logits are taken: the last logits, logits[:, -1], decide.": loop_by(
            logits=lambda logits: logits[:, 0]
        ),
        "all texts get the last logits of the first text: each has its own.": loop_by(
            logits=lambda logits: logits[:1, -1].expand(len(logits), -1)
        ),
        "the noise is not used, and the likeliest token is taken.": loop_by(
            draw=lambda logits, row: logits.argmax(-1, keepdim=True)
        ),
        f"each step takes the first row of the noise: {NOISE}.": loop_by(
            row=lambda noise, i: noise[0]
        ),
        f"the rows of the noise are taken backwards: {NOISE}.": loop_by(
            row=lambda noise, i: noise[-1 - i]
        ),
        f"all texts take the noise of the first text: {NOISE}.": loop_by(
            row=lambda noise, i: noise[i, :1].expand_as(noise[i])
        ),
        "the prompt is read again at each step: the new token is enough.": loop_by(
            feed=lambda prompt, token: torch.cat([prompt, token], dim=1)
        ),
        "the prompt's last token is read twice, at T the second time: the prefill's own logits "
        "decide the first new token.": loop_by(first=prefill_twice),
        "the prompt's last token is read twice: the prefill reads that last token again. Its own "
        "logits decide the first new token.": loop_by(first=last_again),
        "no cache is on: put the loop into `with kv_cache(model, cache):`.": loop_by(
            around=lambda model, cache: nullcontext()
        ),
        "another cache is built than the class that came in: kv_cache(model, cache).": loop_by(
            around=lambda model, cache: kv_cache(model, GrowingCache)
        ),
        "new caches at each step forget what was read: one with-block around all steps.": (
            new_caches
        ),
        "one token too many is read: nobody needs the logits behind the last token.": one_too_many,
        "PyTorch records each pass for gradients: put @torch.no_grad() above the function.": (
            generate.__wrapped__  # type: ignore[attr-defined]
        ),
        "all tokens are drawn before the first is handed out: `yield` each as soon as it is "
        "drawn.": lambda *given: iter(list(generate(*given))),
        "the next pass comes before a token is handed out: `yield` it as soon as it is drawn, and "
        "read it after that.": one_ahead,
        "a list comes: hand out each token with `yield`.": lambda *given: list(generate(*given)),
        "a tensor of all tokens comes: hand out each token with `yield`.": (
            lambda *given: torch.cat(list(generate(*given)), dim=1)
        ),
        "the prompt is handed out first: only new tokens are asked for.": prompt_first,
        "the model came in training mode, and your loop left it in eval mode.": in_eval_mode,
        "the model came in eval mode, and your loop left it in training mode.": train_at_the_end,
        "the block is full, and the text ends in silence: let the model's error come through.": (
            in_silence
        ),
    },
    advice={
        "no iterator": "Hand out each token with `yield`.",
        "no cache is on": "Put the loop into `with kv_cache(model, cache):`.",
        "for gradients": "Put @torch.no_grad() above the function.",
        "the caches that are built": "One with-block around all steps: kv_cache(model, cache).",
        "caches are still on": "`with kv_cache(model, cache):` removes them.",
        "leaves the caches on": "`with kv_cache(model, cache):` removes them.",
        "the positions that": "Every token but the last is read once, at its own position.",
        "what is handed out": "One token of shape (B, 1) for each row of noise, in each text.",
        "before each": "`yield` each token as soon as it is drawn, and read it after that.",
        "before the first": "`yield` each token as soon as it is drawn, and read it after that.",
        "what comes of": "Let the error of the model come through.",
        "left it in": "Leave the mode as it was.",
        "the tokens that are handed out": f"The last logits decide, and {NOISE}, as it comes.",
        "the tokens that the model reads": "Those of the prompt first, whole, then the new ones.",
    },
    axes=[("text", "token"), ("token",)],
)
