"""Notebook 04, blank 4: repaired_baseline, the uncached text whatever mode the model is in."""

from contextlib import suppress

import torch
import torch.nn as nn
from torch import Tensor

from ..drivers import form
from ..page import Blank, Case
from .generate_with_cache import Watched, texts
from .sample import sample


def repaired_baseline(model, prompt, noise):
    """The uncached text; leaves model.training as it was, even after an error.  (1, T), (n, 1, V) -> (1, n)"""
    was_training = model.training
    text = prompt
    model.eval()
    try:
        for row in noise:
            logits, _ = model(text)
            text = torch.cat([text, sample(logits[:, -1], row)], dim=1)
    finally:
        model.train(was_training)
    return text[:, prompt.shape[1] :]


# ------------------------------------------------------------------ what a check runs


def run(answer, T, n, training, block_size=24):
    """Two runs with the same noise, by a model with dropout: only its mode may make it random."""
    model = Watched(block_size, dropout=0.5).double().train(training)
    mode = "training" if training else "eval"
    for turn in range(2):
        again = " of a second run" * turn
        given = texts(1, T, n)
        with torch.no_grad():
            tokens = answer(model, *given.tensors.values())
        yield from given.changes()
        yield f"what is returned{again}", form(tokens)
        yield f"the baseline has a cache on{again}", any(model.cached) or model.caching
        if isinstance(tokens, Tensor):
            yield f"the tokens{again}", tokens
        yield f"the mode of a model that was in {mode} mode", modes(model)
        rates = {part.p for part in model.modules() if isinstance(part, nn.Dropout)}
        yield "your code changes the model's dropout rate", rates != {0.5}


class Interrupted(Exception):
    """As a Ctrl-C, or a memory that is full."""


def run_interrupted(answer):
    """An error in the second pass: training goes on afterwards, with dropout."""
    model = Watched(24, dropout=0.5).double().train()
    passes = []

    def count(module, args):
        passes.append(1)
        if len(passes) == 2:
            raise Interrupted

    model.register_forward_pre_hook(count)
    with suppress(Interrupted):
        answer(model, *texts(1, 5, 4).tensors.values())
    yield "after an error in the model its mode", modes(model)


def modes(model):
    """The mode of a model and of its layers, in words."""
    words = {True: "training", False: "eval"}
    inside = {words[part.training] for part in model.modules() if part is not model}
    return f"{words[model.training]}, and that of its layers {' and '.join(sorted(inside))}"


# ------------------------------------------------------------------ what people write

BLANK = Blank(
    number="04.4",
    minutes=6,
    solution=repaired_baseline,
    cases=[
        Case(run, T=5, n=6, training=False),
        Case(run, T=5, n=6, training=True),
        Case(run, T=4, n=6, training=True, block_size=9),  # to the end of the block
        Case(run, T=1, n=7, training=True),
        Case(run_interrupted),
    ],
    mistakes={
        "dropout is still on in training mode: model.eval() turns it off, before the loop. A seed "
        "or no_grad() does not.": (
            ["model.eval() -> pass"],
            ["model.eval() -> torch.manual_seed(0)"],
        ),
        "after an error in the model it stays in eval mode: restore the mode in a `finally`.": [
            "try: -> if True:",
            "finally: -> if True:",
        ],
        "the model is put into training mode at the end, whatever it was before: model.train(mode) "
        "takes the mode.": ["(was_training) -> ()"],
        "the prompt is returned in front of the new tokens: leave it out.": [
            "text[:, prompt.shape[1] :] -> text"
        ],
    },
    wrong=[
        "model.eval() -> [setattr(part, 'p', 0.0) for part in model.modules()]",
        "text[:, prompt -> text[:, -prompt",
        "model(text) -> model(text[:, -8:])",
        "model.train(was_training) -> model.train(was_training) if was_training else None\n"
        "    model.lm_head.train()",
        "model.train(was_training) -> pass",
    ],
    right=[
        """
def repaired_baseline(model, prompt, noise):
    modes = [(part, part.training) for part in model.modules()]
    try:
        model.eval()
        seq = prompt.clone()
        new = []
        for row in noise:
            new.append(sample(model(seq)[0][:, -1, :], row))
            seq = torch.hstack([seq, new[-1]])
        return torch.hstack(new)
    finally:
        for part, mode in modes:
            part.training = mode
""",
        """
from copy import deepcopy

def repaired_baseline(model, prompt, noise):
    quiet = deepcopy(model).eval()
    text = prompt
    for t in range(noise.shape[0]):
        pos = torch.arange(text.shape[1])
        text = torch.cat((text, sample(quiet(text, pos=pos)[0][:, -1, :], noise[t])), dim=-1)
    return text[:, -len(noise) :]
""",
    ],
    hints=(
        "Which layer of the model draws its own random numbers, and in which mode? In which mode should training find the model afterwards?",
        "`model.training` is the model's mode. `model.eval()` turns dropout off. `model.train(mode)` takes the mode as an argument.",
        "was_training = model.training; model.eval(); try: the loop; finally: model.train(was_training)",
    ),
    advice={
        "the tokens": "It must be the true text, in eval mode: read the whole text at each step, "
        "and sample from the last logits with a row of noise.",
        "the mode of": "Save model.training at the start, and pass it to model.train(…) at the end, in a "
        "`finally`: an error must not leave another mode.",
        "tuple indices": "The model returns logits and a loss: logits, _ = model(…).",
    },
    axes=[("text", "token")],
)
