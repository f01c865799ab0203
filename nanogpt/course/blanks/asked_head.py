"""Notebook 04, blank 5: AskedHead."""

import torch

from ...attention import attend
from ..page import Blank
from .head import Head
from .visible import visible


class AskedHead(Head):
    def __init__(self, config):
        super().__init__(config)
        self.memory = None  # off; on: a list of pairs of keys and values

    def forward(self, x, pos):
        """Causal attention, including the memory if it is on.  (B, T, C), (T,) -> (B, T, hs)"""
        q = self.query(x)
        k = self.key(x)
        v = self.value(x)
        if self.memory is not None and not self.training:
            self.memory.append((k, v))
            k, v = (torch.cat(rows, dim=1) for rows in zip(*self.memory))
        order = torch.arange(k.shape[1], device=x.device)
        return attend(q, k, v, visible(order[-x.shape[1] :], order))


BLANK = Blank(
    number="04.5",
    solution=AskedHead,
    method="forward",
    cases=[],
    mistakes={},
    hints=(
        "What turns the memory on, and how can a head tell? What must it do while the loss is measured in eval mode?",
        "Two conditions must both hold: the memory is on, and the model is not in training. Be careful with the first one: `if []:` does nothing.",
        "if self.memory is not None and not self.training: self.memory.append((k, v)); then k, v = (torch.cat(rows, dim=1) for rows in zip(*self.memory))",
    ),
    advice={
        "shape of the output": "Does it end with `return`, and return (B, T, hs)?",
        "self.memory = None": "Leave the given __init__ as it is.",
        "while the memory is off": "Nothing may be kept if the memory is None.",
        "turned its memory on": "The decoding loop sets head.memory = [].",
        "in training mode, while": "In training the memory is not used.",
        "wrote to its memory": "In training the memory is not used, even if it is on.",
        "off again": "head.memory = None turns it off.",
        "with the memory on": "Append the new pair, then join all: the last T of S keys belong to the queries.",
        "in eval mode": "Without a memory it is plain causal attention.",
        "gradient": "Without a memory it is plain causal attention, without detach() or no_grad().",
        "NoneType": "While it is off the memory is None: check both conditions, `self.memory is not None and not self.training`.",
    },
    axes=[("text", "token", "number")],
)
