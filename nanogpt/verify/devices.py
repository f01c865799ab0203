"""Does a GPU write the same texts as the CPU, and where it does not, is that rounding?"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import Tensor

from ..cache.dynamic import DynamicCache
from ..decoding.generate import complete
from ..decoding.sampling import draw_noise
from ..engines.cuda_graph import Graph, GraphLoop
from ..model.gpt import GPT
from .compare import draw_margins, forced_logits

WAYS = {
    "no cache": {"cache": None},
    "dynamic cache": {"cache": DynamicCache},
    "graph of a step": {"engine": Graph},
    "graph of 16 steps": {"engine": GraphLoop},
}


def across_devices(
    model: GPT, prompt: Tensor, n_new: int, seeds: Sequence[int], device: torch.device
) -> dict:
    """Complete a prompt (1, T) on the CPU, without a cache, and on the device in several ways.

    Returns plain data: how many `texts` were compared and how many are `equal`; the largest
    difference of a logit, both fed the same text; the smallest margin of a draw, in logits; and for
    each text that differs where it does, and whether that is `explained`: two logits that are off
    by no more than the largest difference can turn a draw that was decided by less than twice that.
    """
    here, there = deepcopy(model).cpu().eval(), deepcopy(model).to(device).eval()
    T, diffs, least, differences = prompt.shape[1], [], [], []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        noise = draw_noise(n_new, 1, model.config.vocab_size, generator)
        text = complete(here, prompt.cpu(), n_new, cache=None, noise=noise)
        logits = forced_logits(here, text, T, None)
        other = forced_logits(there, text.to(device), T, DynamicCache).cpu()
        diff, margins = float((logits - other).abs().max()), draw_margins(logits, noise)
        diffs.append(diff), least.append(float(margins.min()))
        for name, way in WAYS.items():
            got = complete(there, prompt.to(device), n_new, noise=noise.to(device), **way).cpu()
            differences += _difference(name, seed, text[0, T:], got[0, T:], margins, diff)
    return {
        "texts": len(seeds) * len(WAYS),
        "equal": len(seeds) * len(WAYS) - len(differences),
        "tokens": n_new,
        "max_logit_diff": max(diffs),
        "min_margin": min(least),
        "differences": differences,
    }


def _difference(
    way: str, seed: int, text: Tensor, got: Tensor, margins: Tensor, diff: float
) -> list[dict]:
    """One row for a text that differs, none for one that is equal.  (n,) three times"""
    if torch.equal(text, got):
        return []
    token = int((text != got).int().argmax())
    margin = float(margins[token])
    row = {"way": way, "seed": seed, "token": token, "margin": margin}
    return [row | {"explained": margin <= 2 * diff}]
