"""Notebook 04, blank 3: read_on, which finds the next tokens' positions in the memories."""

import inspect

import torch
import torch.nn as nn

from ..drivers import Arguments, form
from ..page import Blank, Case
from ..traps import MemoryHead, places
from .generate_with_cache import SIZE, Watched


def read_on(model, x):
    """The logits of the next tokens from a model of MemoryHeads.  (B, T) -> (B, T, V)"""
    head = next(module for module in model.modules() if isinstance(module, MemoryHead))
    start = sum(k.shape[1] for k, v in head.memory)
    return model(x, pos=places(start, x.shape[1], x))[0]


# ------------------------------------------------------------------ what a check runs


def remembering(answer):
    """A model of two layers of MemoryHeads in eval mode and float64, and its heads."""
    # A notebook's MemoryHead is another class than ours, and its answers ask for that one.
    theirs = getattr(inspect.unwrap(answer), "__globals__", {}).get("MemoryHead")
    usable = isinstance(theirs, type) and issubclass(theirs, nn.Module)
    model = Watched(40, n_layer=2, head=theirs if usable else MemoryHead).double().eval()
    return model, [module for module in model.modules() if hasattr(module, "memory")]


def run(answer, pieces, B=1, texts=1, begun=0):
    """Texts in pieces. The first `begun` pieces are read by another loop, with positions."""
    model, heads = remembering(answer)
    for turn in range(texts):
        for head in heads:
            head.memory = []
        again = ", in a second text" * turn
        generator = torch.Generator().manual_seed(B + turn)
        ids = torch.randint(SIZE, (B, sum(pieces)), generator=generator)
        for number, pos in enumerate(torch.arange(sum(pieces)).split(pieces)):
            given = Arguments(x=ids[:, pos])
            with torch.no_grad():
                if number < begun:
                    model(ids[:, pos], pos=pos)
                    continue
                model.positions.clear()
                logits = answer(model, *given.tensors.values())
            yield from given.changes()
            after = f"after {int(pos[0])} tokens{again}"
            yield f"the positions at which the model reads {after}", torch.tensor(model.positions)
            yield f"the shape of the result {after}", form(logits)
            yield (
                f"the logits {after}",
                logits if isinstance(logits, torch.Tensor) else form(logits),
            )


# ------------------------------------------------------------------ what people write

COUNT = "sum(k.shape[1] for k, v in head.memory)"
PIECE = "head.memory[{}][0].shape[1] if head.memory else 0"
COUNTED = """
TOTAL = [0]

def read_on(model, x):
    start = TOTAL[0]
    TOTAL[0] += x.shape[1]
    return model(x, pos=places(start, x.shape[1], x))[0]
"""
BLANK = Blank(
    number="04.3",
    minutes=3,
    solution=read_on,
    cases=[
        Case(run, pieces=[5, 1, 1], texts=2),
        Case(run, pieces=[1, 1, 1]),
        Case(run, pieces=[5, 3, 2], B=3),
        Case(run, pieces=[3, 2, 2, 1], begun=2),
        Case(run, pieces=[9, 1, 1, 1, 8]),
    ],
    mistakes={
        "the pieces in the memory are counted, but a piece may have many tokens: add up their "
        "k.shape[1].": [f"{COUNT} -> len(head.memory)"],
        "only one piece of the memory is counted: add up all of them.": [
            f"{COUNT} -> {PIECE.format(-1)}"
        ],
        "the tokens of all heads are added up: each head holds all tokens, so ask one of them.": [
            "head = next( -> heads = list(",
            f"{COUNT} -> {COUNT.replace('for', 'for head in heads for')}",
        ],
        "the texts or the numbers of a key are counted: keys are (B, T, hs), and the tokens are "
        "dimension 1.": ["k.shape[1] -> k.shape[0]"],
        "probabilities or tokens are returned: leave softmax and choice to `sample`, which needs "
        "logits.": (
            ["))[0] -> ))[0].softmax(-1)"],
            ["))[0] -> ))[0].argmax(-1)"],
        ),
    },
    wrong=[
        "return model -> model.train()\n    return model",
        "return model(x, pos -> model(x)\n    return model(x, pos",
        "return -> head.memory.clear()\n    return",
    ],
    right=[
        """
def read_on(model, x):
    heads = [module for module in model.modules() if hasattr(module, "memory")]
    start = 0
    for k, _ in heads[-1].memory:
        start = start + k.size(1)
    logits, _ = model(x, pos=torch.arange(start, start + x.size(1)))
    return logits
""",
        """
def read_on(model, x):
    memory = model.blocks[0].sa.heads[0].memory
    past = torch.cat([v for _, v in memory], dim=1).shape[1] if memory else 0
    return model(x, None, past + torch.arange(x.size(1)))[0]
""",
        """
def read_on(model, x):
    heads = [m for m in model.modules() if isinstance(m, MemoryHead)]
    out = []
    for token in x.split(1, dim=1):
        start = sum(len(k[0]) for k, v in heads[0].memory)
        out.append(model(token, pos=torch.tensor([start]))[0])
    return torch.cat(out, dim=1)
""",
    ],
    hints=(
        "At which position is the next token if 12 tokens were read before it? And what knows how many were read?",
        "`model(x, pos=…)` takes the tokens' positions. Any `MemoryHead` in `model.modules()` knows how many tokens came before, because its `memory` holds their keys, one piece per call.",
        "start = sum(k.shape[1] for k, v in head.memory); then return model(x, pos=places(start, x.shape[1], x))[0]",
    ),
    advice={
        "in a second text": "Another text begins at 0 again: only the memories know what was read.",
        "the positions at": "The model reads each new token once, at the position that is the number "
        "of tokens before it, which is the number in one head's memory.",
        "'int' object": "`pos` is a tensor, the positions of x: places(start, x.shape[1], x).",
    },
    axes=[("text", "token", "candidate"), ("token",)],
)
