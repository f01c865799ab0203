"""What can be asked of a model: the limits that generate, requests, jobs and the server share.

Each check raises ValueError with the value, the limit and what to do. `where` comes before it, as
in "request 3: ". A prompt is (B, T), or (T,) for a request of one text.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..config.checks import check_int
from .sampling import SamplingParams

MOST_NEW = 2**31 - 1  # tokens of one generation: native code counts in 32 bits


def check_prompt(prompt, vocab_size: int | None = None, ndim: int = 2, where: str = "") -> None:
    """Raise ValueError unless these are tokens, of this vocabulary where it is known.

    (B, T) for ndim=2, (T,) for ndim=1: integers, at least one text of at least one token.
    """
    need = "(B, T)" if ndim == 2 else "(T,)"
    example = "tokenizer.encode(text)[None]" if ndim == 2 else "tokenizer.encode(text)"
    found, fits = f"a {type(prompt).__name__}", False
    if isinstance(prompt, Tensor):
        found = f"{tuple(prompt.shape)}, {prompt.dtype}, {prompt.layout} on {prompt.device}"
        fits = prompt.ndim == ndim and prompt.numel() and prompt.dtype in (torch.int64, torch.int32)
    if not fits or prompt.layout != torch.strided or prompt.is_meta:
        need = f"a plain tensor {need} of integers, at least one token, as in {example}"
        raise ValueError(f"{where}the prompt is {found}: pass {need}")
    if vocab_size is not None:
        low, high = torch.stack(prompt.aminmax()).tolist()  # one wait for a GPU, not two
        check_tokens(low, high, vocab_size, f"{where}the prompt holds")


def check_tokens(low: int, high: int, vocab_size: int, what: str) -> None:
    """Raise ValueError when the lowest or the highest of some tokens is not in the vocabulary."""
    if low < 0 or high >= vocab_size:
        most = f"the vocabulary has 0 to {vocab_size - 1}"
        raise ValueError(f"{what} tokens {low} to {high}; {most}: pass what its tokenizer encodes")


def check_length(
    n_prompt: int, n_new: int, positions: int | None, where="", limit="block_size", otherwise=""
) -> None:
    """Raise ValueError for a text that does not fit into so many positions (None: no end).

    The last token is only returned, never read, so the text may end one past the last position.
    `limit` is what the user calls that number; `otherwise` is another way out, if there is one.
    """
    if positions is None or n_prompt + n_new - 1 <= positions:
        return
    most = positions + 1 - n_prompt
    cure = f"ask for at most {most}" if most > 0 else f"shorten the prompt to at most {positions}"
    asked = f"{where}a prompt of {n_prompt} and {n_new} new tokens"
    raise ValueError(f"{asked} exceed {limit} {positions}: {cure}{otherwise}")


def check_sampling(sampling, vocab_size: int | None = None, where: str = "") -> None:
    """Raise ValueError unless these are SamplingParams whose top_k the vocabulary can give."""
    if not isinstance(sampling, SamplingParams):
        need = "pass SamplingParams, as in SamplingParams(temperature=0.8)"
        raise ValueError(f"{where}sampling={sampling!r}: {need}")
    if sampling.top_k is not None and vocab_size is not None:
        check_int(f"{where}top_k", sampling.top_k, 1, vocab_size)


def check_seed(name: str, seed) -> None:
    """Raise ValueError unless torch.Generator().manual_seed takes it."""
    check_int(name, seed, -(2**63), 2**64 - 1)


def check_noise(noise, shape: tuple[int, int, int]) -> None:
    """Raise ValueError unless this is noise of that shape: (n_new, B, V), as of draw_noise."""
    found, fits = type(noise).__name__, False
    if isinstance(noise, Tensor):
        found = f"{tuple(noise.shape)} {noise.dtype} on {noise.device}"
        fits = noise.shape == shape and noise.is_floating_point() and not noise.is_meta
    # The numbers are not looked at on a GPU, where that would stop the queue.
    if not fits or (noise.is_cpu and not bool((noise > 0).all())):
        need = f"{shape} floating-point numbers above 0"
        raise ValueError(f"noise is {found}; these tokens need {need}: draw it with draw_noise")
