"""Notebook 04, blank 4: repaired_baseline."""

import torch

from ..page import Blank
from .sample import sample


def repaired_baseline(model, prompt, noise):
    """The uncached text; leaves model.training as it was.  (1, T), (n, 1, V) -> (1, n)"""
    was_training = model.training
    text = prompt
    model.eval()
    for row in noise:
        logits, _ = model(text)
        text = torch.cat([text, sample(logits[:, -1], row)], dim=1)
    model.train(was_training)
    return text[:, prompt.shape[1] :]


BLANK = Blank(
    number="04.4",
    solution=repaired_baseline,
    cases=[],
    mistakes={},
    hints=(
        "Which layer of the model draws its own random numbers, and in which mode? In which mode should training find the model afterwards?",
        "`model.training` is the model's mode. `model.eval()` turns dropout off. `model.train(mode)` takes the mode as an argument.",
        "was_training = model.training; model.eval(); the loop; then model.train(was_training)",
    ),
    advice={
        "what is returned": "Return the n new tokens, (1, n), without the prompt.",
        "has a cache on": "The baseline is what the cached text is compared with.",
        "the tokens": "It must be the true text, in eval mode: read the whole text at each step, and sample from the last logits with a row of noise.",
        "the mode of": "Save model.training at the start, and pass it to model.train(…) at the end.",
        "dropout rate": "model.eval() turns dropout off and keeps its rate.",
    },
    axes=[("text", "token")],
)
