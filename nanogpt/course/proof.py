"""Test a lesson as a whole: its loop with each cache up to the last position, and training.

The checks test each name alone, and the referee tests heads and caches without the loop. This
module tests everything together, with models and lengths that no check uses.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..config import GPTConfig
from ..model import GPT
from ..sampling import draw_noise, sample
from .comparing import alike
from .lesson import Scope
from .limits import TooLong, limit

CACHES = ("KVCache", "StaticKVCache")
TEXTS = ((17, 2, 7), (64, 2, 7), (150, 1, 1))  # positions: batch size, tokens in the prompt
PROOF_SECONDS = 120  # time limit for one of these texts
STEPS = 3  # training steps


class Fault(ValueError):
    """A mistake in the lesson as a whole; the message begins with the name it is about."""


def faults(scope: Scope, seed: int = 0) -> list[str]:
    """Descriptions of everything wrong with the lesson in `scope`; [] if nothing is."""
    words = []
    for check in (_texts, _full, _training):
        try:
            with limit(PROOF_SECONDS, "your lesson did not finish"), torch.enable_grad():
                for _ in check(scope, seed):
                    pass
        except (Fault, TooLong) as fault:
            words.append(str(fault))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            words.append(f"lesson: it stops with {type(error).__name__}: {error}")
    return words


def write(scope: Scope, model: GPT, prompt: Tensor, noise: Tensor, cache: Any) -> Tensor:
    """Generate a text with the lesson's loop.  (B, T), (n, B, V) -> (B, n). Raises Fault."""
    name = getattr(cache, "__name__", "its cache")
    try:
        with limit(PROOF_SECONDS, f"your generate_with_cache, with {name}, did not finish"):
            return torch.cat(list(scope["generate_with_cache"](model, prompt, noise, cache)), dim=1)
    except (KeyboardInterrupt, TooLong):
        raise
    except BaseException as error:
        raise Fault(
            f"generate_with_cache with {name} stops: {type(error).__name__}: {error}"
        ) from None


@torch.no_grad()
def is_plain(model: GPT, prompt: Tensor, noise: Tensor, text: Tensor) -> bool:
    """Whether a text is the uncached model's.  (B, T), (n, B, V), (B, n)

    One pass suffices, because a causal model's logits at a token do not depend on later tokens. By
    induction, a token is right if all tokens before it are and the noise selects it from its
    logits.
    """
    if text.shape != (len(prompt), len(noise)):
        return False
    n = len(noise)
    T = prompt.shape[1]
    logits = model(torch.cat([prompt, text], dim=1)[:, :-1])[0][:, T - 1 :]  # (B, n, V)
    return torch.equal(text, torch.cat([sample(logits[:, t], noise[t]) for t in range(n)], dim=1))


def pair(scope: Scope, config: GPTConfig, seed: int) -> tuple[GPT, GPT]:
    """A model with the lesson's heads, and the package's with the same weights, in eval mode."""
    model = GPT(config, generator=torch.Generator().manual_seed(seed)).double().eval()
    for weight in model.parameters():
        weight.data *= 9 if weight.ndim > 1 else 1  # so that a wrong mask has a visible effect
    return with_heads(scope, model), model


def with_heads(scope: Scope, model: GPT) -> GPT:
    """A model with the lesson's heads and these weights. Raises Fault if the Head fails."""
    weight = model.lm_head.weight
    try:
        theirs = GPT(model.config, scope["Head"]).to(weight.device, weight.dtype)
        theirs.load_state_dict(model.state_dict())
    except (KeyboardInterrupt, TooLong):
        raise
    except BaseException as error:
        raise Fault(f"Head cannot build a model: {type(error).__name__}: {error}") from None
    return theirs.train(model.training)


def _shape(block_size: int) -> GPTConfig:
    return GPTConfig(vocab_size=19, block_size=block_size, n_layer=2, n_head=3, n_embd=15)


def _texts(scope: Scope, seed: int) -> Iterator[None]:
    """Compare tokens and logits with the plain pass up to the last position, for each cache."""
    for block_size, B, T in TEXTS:
        theirs, plain = pair(scope, _shape(block_size), seed)
        rng = torch.Generator().manual_seed(seed + block_size)
        prompt = torch.randint(19, (B, T), generator=rng)
        noise = draw_noise(block_size + 1 - T, B, 19, rng)
        for name in CACHES:
            read: list[Tensor] = []
            with theirs.register_forward_hook(lambda m, args, out, read=read: read.append(out[0])):
                text = write(scope, theirs, prompt, noise, scope[name])
            where = f"a text of {block_size + 1} tokens after a prompt of {T}"
            if not is_plain(plain, prompt, noise, text):
                raise Fault(f"generate_with_cache with {name} generates a different text: {where}")
            with torch.no_grad():
                right = plain(torch.cat([prompt, text], dim=1)[:, :-1])[0]
            if not alike(torch.cat(read, dim=1), right, 1e-4):
                raise Fault(f"generate_with_cache with {name} computes different logits: {where}")
            yield


def _full(scope: Scope, seed: int) -> Iterator[None]:
    """A text longer than a cache's capacity must raise an error or give the right tokens."""
    theirs, plain = pair(scope, _shape(40), seed)
    prompt = torch.zeros(1, 3, dtype=torch.long)
    noise = draw_noise(30, 1, 19)
    for name in CACHES:
        small = partial(_of_20_slots, scope[name])
        try:
            text = write(scope, theirs, prompt, noise, small)
        except Fault:
            continue
        if not is_plain(plain, prompt, noise, text):
            raise Fault(f"{name} of 20 slots silently loses tokens of a text of 33")
        yield


def _of_20_slots(kind: type, capacity: int) -> Any:
    """A cache that is too small, whatever capacity the lesson asks for."""
    return kind(20)


def _training(scope: Scope, seed: int) -> Iterator[None]:
    """Compare the weights after a few of the lesson's training steps with the package's."""
    models = pair(scope, _shape(24), seed)
    optimizers = [torch.optim.SGD(model.train().parameters(), lr=0.1) for model in models]
    for step in range(STEPS):
        rng = torch.Generator().manual_seed(seed + step)
        x, y = torch.randint(19, (2, 5, 24), generator=rng)
        with limit(PROOF_SECONDS, "your one_step did not finish"):
            loss = scope["one_step"](models[0], optimizers[0], x, y)
        right = models[1](x, y)[1]
        optimizers[1].zero_grad()
        right.backward()
        optimizers[1].step()
        if not math.isclose(loss, right.item(), rel_tol=1e-5):
            raise Fault(f"one_step returns the loss {loss:.4f}, expected {right.item():.4f}")
        theirs = dict(models[0].named_parameters())
        for name, weight in models[1].named_parameters():
            if not alike(theirs[name].detach(), weight.detach(), 1e-7):
                raise Fault(
                    f"after {step + 1} steps {name} differs: attention_weights, Head or one_step "
                    "computes a wrong gradient"
                )
        yield
