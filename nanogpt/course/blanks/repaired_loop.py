"""Notebook 04, blank 2: repaired_loop, which reads every token exactly once, at its own position."""

import torch
from torch import Tensor

from ...cache import kv_cache
from ..drivers import form
from ..page import Blank, Case
from ..traps import places
from .generate_with_cache import Watched, texts
from .kv_cache import KVCache
from .sample import sample


def repaired_loop(model, prompt, noise):
    """One new token per row of noise, with a cache.  (1, T), (n, 1, V) -> (1, n)"""
    x = prompt
    start = 0
    out = []
    with kv_cache(model, KVCache):
        for row in noise:
            logits, _ = model(x, pos=places(start, x.shape[1], x))
            start += x.shape[1]
            x = sample(logits[:, -1], row)
            out.append(x)
    return torch.cat(out, dim=1)


# ------------------------------------------------------------------ what a check runs


def run(answer, T, n, block_size, turns=1):
    """Complete texts: the tokens, and everything that the model reads."""
    model = Watched(block_size).double().eval()
    for turn in range(turns):
        again = " of a second text" * turn
        given = texts(1, T, n + turn)
        with torch.no_grad():
            tokens = answer(model, *given.tensors.values())
        yield from given.changes()
        yield f"what is returned{again}", form(tokens)
        yield f"the number of tokens that the model reads{again}", len(model.positions)
        yield f"the positions that the model reads{again}", torch.tensor(model.positions)
        yield f"a pass of the model{again} without a cache", not all(model.cached)
        if isinstance(tokens, Tensor):
            yield f"the tokens returned{again}", tokens
        if model.tokens:
            yield f"the tokens that the model reads{again}", torch.cat(model.tokens, dim=1)
        yield f"the cache is still on afterwards{again}", model.caching
        for notes in (model.tokens, model.positions, model.cached):
            notes.clear()


# ------------------------------------------------------------------ what people write

PREFILL = "with kv_cache(model, KVCache):\n"
WHOLE_TEXT = (
    "x = sample(logits[:, -1], row) -> x = torch.cat([x, sample(logits[:, -1], row)], dim=1)"
)
BLANK = Blank(
    number="04.2",
    minutes=6,
    solution=repaired_loop,
    cases=[
        Case(run, T=5, n=4, block_size=16),
        Case(run, T=1, n=6, block_size=30),
        Case(run, T=6, n=1, block_size=8),
        Case(run, T=2, n=7, block_size=8),  # to the end of the block
        Case(run, T=4, n=3, block_size=16, turns=2),
    ],
    mistakes={
        "positions are one too large or one too small: the prompt is at 0 to T - 1, and the token "
        "sampled in turn t (from 0) at T + t.": (
            ["start = 0 -> start = 1"],
            ["start += x.shape[1] -> start += x.shape[1] + (start == 0)"],
        ),
        "the whole text is read at each step, with a cache or without: read each token once.": (
            [WHOLE_TEXT, "start += x.shape[1] -> pass", "append(x) -> append(x[:, -1:])"],
            [
                WHOLE_TEXT,
                "start += x.shape[1] -> pass",
                "append(x) -> append(x[:, -1:])",
                "with kv_cache(model, KVCache): -> if True:",
            ],
        ),
        "each step has a new cache, which has forgotten the text: use one with-block around all "
        "steps.": [
            "with kv_cache(model, KVCache): -> if True:",
            "logits, _ = -> with kv_cache(model, KVCache):\n                logits, _ =",
        ],
        "the last new token is read, too: the logits after it are never used.": [
            "    return torch.cat ->         model(x, pos=places(start, 1, x))\n    return torch.cat"
        ],
        "the prompt is returned in front of the new tokens: return only those.": [
            "torch.cat(out -> torch.cat([prompt, *out]"
        ],
        "the tokens are yielded, or returned as a list: join them with torch.cat(out, dim=1).": (
            ["torch.cat(out, dim=1) -> out"],
            ["out.append(x) -> yield x"],
        ),
    },
    wrong=[
        "in noise: -> in noise[1:]:",
        "out, dim=1 -> out",
        "torch.cat(out, dim=1) -> x",
        "in noise: -> in noise.flip(0):",
    ],
    right=[
        """
def repaired_loop(model, prompt, noise):
    T = prompt.shape[1]
    with kv_cache(model, KVCache):
        logits, _ = model(prompt, pos=torch.arange(T))
        text = prompt
        for t in range(len(noise)):
            text = torch.cat([text, sample(logits[:, -1], noise[t])], 1)
            if t + 1 < len(noise):
                logits, _ = model(text[:, -1:], pos=torch.tensor([T + t]))
    return text[:, T:]
""",
        """
@torch.no_grad()
def repaired_loop(model, prompt, noise):
    ids = prompt[0].tolist()
    with kv_cache(model, StaticKVCache):
        for t in range(len(ids) + len(noise) - 1):
            logits = model(torch.tensor([[ids[t]]]), pos=torch.tensor([t]))[0]
            if t >= prompt.shape[1] - 1:
                ids.append(int(sample(logits[:, -1], noise[t - prompt.shape[1] + 1])))
    return torch.tensor([ids[prompt.shape[1] :]])
""",
        """
def repaired_loop(model, prompt, noise):
    out = []
    with kv_cache(model, KVCache):
        if prompt.shape[1] > 1:
            model(prompt[:, :-1], pos=places(0, prompt.shape[1] - 1, prompt))
        x = prompt[:, -1:]
        for start, row in enumerate(noise, prompt.shape[1] - 1):
            x = sample(model(x, pos=places(start, 1, x))[0][:, -1], row)
            out.append(x)
    return torch.cat(out, dim=1)
""",
    ],
    hints=(
        "What do the prefill's last logits predict, and what does the trap do with them? How often does it read the prompt's last token?",
        "Count the tokens in the cache after the first turn of the loop. How many did the prompt have? The loop needs no separate prefill: let the first `x` be the whole prompt.",
        "x = prompt; start = 0; in the loop: logits, _ = model(x, pos=places(start, x.shape[1], x)); start += x.shape[1]; x = sample(logits[:, -1], row)",
    ),
    advice={
        "what is returned": "Return the n new tokens, (1, n), without the prompt.",
        "the number of tokens that": "`model` itself must read each token once, and the last new one "
        "never.",
        "the positions that": "The token sampled in turn t (from 0) is at position T + t.",
        "the tokens returned": "A pass's last logits, with their own row of noise, give the next token.",
        "tuple indices": "The model returns logits and a loss: logits, _ = model(…).",
        "'int' object": "`pos` is a tensor, the positions of x: places(start, x.shape[1], x).",
    },
    axes=[("text", "token"), ("token",)],
)
