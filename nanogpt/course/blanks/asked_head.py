"""Notebook 04, blank 5: AskedHead, whose memory is off until somebody turns it on."""

import torch

from ...attention import attend
from ..drivers import Arguments, form, numbers
from ..page import Blank, Case
from .head import WIDTH, Head, new_head, run_gradients
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


# ------------------------------------------------------------------ what a check runs


def run_off(answer):
    """Batches of several shapes in eval mode with the memory off."""
    head = new_head(answer)[0].eval()
    yield "a new head has no self.memory = None", vars(head).get("memory", "none") is not None
    for number, (B, T) in enumerate([(4, 6), (4, 6), (3, 5), (1, 1), (2, 7)]):
        out = head(numbers(B, T, WIDTH, seed=number), torch.arange(T))
        yield f"the shape of the output for batch {number}, while the memory is off", form(out)
        yield f"the output for batch {number}, while the memory is off", out
        yield "the head turned its memory on itself", head.memory is not None


def run_memory(answer, pieces, B=2, texts=1, dropout=0.0):
    """Two heads, each with its own memory, filled alternately, then turned off."""
    heads = [new_head(answer, dropout)[0].eval() for _ in range(2)]
    T = sum(pieces)
    for turn in range(texts):
        again = ", in a second text" * turn
        for head in heads:
            head.memory = []
        for pos in torch.arange(T).split(pieces):
            for number, head in enumerate(heads):
                x = numbers(B, T, WIDTH, seed=10 + 2 * turn + number)
                given = Arguments(x=x[:, pos], pos=pos.clone())
                with torch.no_grad():
                    out = head(*given.tensors.values())
                where = f"from position {int(pos[0])} on{again}" + ", in a second head" * number
                yield from given.changes()
                yield f"the shape of the output {where}", form(out)
                yield "the memory is on, and nothing is kept in it", not head.memory
                yield f"the output with the memory on, {where}", out
        heads[0].memory = None
        plain = heads[0](numbers(B, 5, WIDTH, seed=10), torch.arange(5))
        yield f"the output when the memory is off again{again}", plain


def run_mode(answer):
    """Training while the memory is on: before a text, and in the middle of one."""
    head, _ = new_head(answer)
    head.memory = []
    x = numbers(2, 6, WIDTH, seed=12)
    pos = torch.arange(6)
    where = "in training mode, while the memory is on"
    yield f"the output {where} and empty", head.train()(x, pos)
    yield "in training the head wrote to its memory", bool(head.memory)
    head.eval()
    yield "the output with the memory on, in eval mode after training", head(x[:, :4], pos[:4])
    yield f"the output {where} and full", head.train()(numbers(3, 5, WIDTH, seed=1), pos[:5])
    head.eval()
    for place in pos[4:].split(1):
        out = head(x[:, place], place)
        yield "the output with the memory on, in a text that goes on after training", out


# ------------------------------------------------------------------ what people write

ON = "self.memory is not None and not self.training"
APPEND = "            self.memory.append((k, v))\n"
JOIN = "            k, v = (torch.cat(rows, dim=1) for rows in zip(*self.memory))\n"
MASK = "visible(order[-x.shape[1] :], order)"
BOTH = "check both conditions, `self.memory is not None and not self.training`"
BLANK = Blank(
    number="04.5",
    minutes=6,
    solution=AskedHead,
    method="forward",
    cases=[
        Case(run_off),
        Case(run_memory, pieces=[1, 1, 1, 1, 1]),
        Case(run_memory, pieces=[5, 1, 1]),
        Case(run_mode),
        Case(run_memory, pieces=[5, 3, 2], texts=2, B=3),
        Case(run_memory, pieces=[4, 2, 1], B=1, dropout=0.5),
        Case(run_gradients),
    ],
    mistakes={
        "each piece is read as if it were the first, although its keys and values are kept: append "
        "them to the memory, and join all of its pairs before you attend.": [f"{JOIN} -> "],
        f"in training the memory is read or written because it is on: {BOTH}.": (
            [" and not self.training -> "],
            [f"if {ON}:\n{APPEND} -> if self.memory is not None:\n{APPEND}        if {ON}:\n"],
        ),
        "the newest keys or values come first in what is joined: the mask expects the new tokens in "
        "the last rows.": (
            ["zip(*self.memory) -> zip(*self.memory[::-1])"],
            [
                f"{JOIN} -> {JOIN}            v = torch.cat([v for _, v in self.memory[::-1]], dim=1)\n"
            ],
        ),
        "only one piece of the memory is used, or earlier pieces are lost: append each, and join all "
        "pairs.": (
            ["zip(*self.memory) -> zip(*self.memory[:1])"],
            [
                "self.memory.append((k, v)) -> self.memory[:] = [*self.memory[-1:], (k, v)]",
            ],
        ),
        "the new tokens see the earlier ones but not themselves: append them first, then join.": [
            f"{APPEND}{JOIN} ->             pair = (k, v)\n            if self.memory:\n    {JOIN}"
            "            self.memory.append(pair)\n"
        ],
        "the mask is aligned top left, like is_causal=True or None: the T queries belong to the last "
        "of the S keys, order[-x.shape[1]:].": (
            [f"{MASK} -> visible(order[: x.shape[1]], order)"],
            [f"{MASK} -> None"],
        ),
    },
    wrong=[
        "append((k, v)) -> append((k, v))\n            self.memory.append((k, v))",
        f"{MASK} -> visible(pos, pos)",
        f"{MASK}) -> {MASK}, self.dropout)",
        "append((k, v)) -> append((k.detach().clone(), k))",
        "self.memory = None -> self.memory = []",
    ],
    right=[
        """
class AskedHead(Head):
    def __init__(self, config):
        super().__init__(config)
        self.memory = None

    def forward(self, x, pos):
        q, k, v = self.query(x), self.key(x), self.value(x)
        T = x.shape[1]
        if not self.training and self.memory is not None:
            if len(self.memory) > 0:
                k = torch.cat([self.memory[0][0], k], 1)
                v = torch.cat([self.memory[0][1], v], 1)
            self.memory = [(k, v)]
        S = k.shape[1]
        return attend(q, k, v, torch.ones(T, S).tril(S - T).bool())
""",
        """
class AskedHead(Head):
    def __init__(self, config):
        super().__init__(config)
        self.memory = None

    def forward(self, x, pos):
        if self.training or self.memory is None:
            return super().forward(x, pos)
        self.memory.append((self.key(x), self.value(x)))
        k = torch.cat([pair[0] for pair in self.memory], 1)
        v = torch.cat([pair[1] for pair in self.memory], 1)
        order = torch.arange(k.shape[1])
        return attend(self.query(x), k, v, visible(order, order)[-x.shape[1] :])
""",
    ],
    hints=(
        "What turns the memory on, and how can a head tell? What must it do while the loss is measured in eval mode?",
        "Two conditions must both hold: the memory is on, and the model is not in training. Be careful with the first one: `if []:` does nothing.",
        "if self.memory is not None and not self.training: self.memory.append((k, v)); then k, v = (torch.cat(rows, dim=1) for rows in zip(*self.memory))",
    ),
    advice={
        "shape of the output": "Does it end with `return`, and return (B, T, hs)?",
        "while the memory is off": "Nothing may be kept if the memory is None.",
        "with the memory on": "Append the new pair, then join all: the last T of S keys belong to the "
        "queries.",
        "NoneType": f"While it is off the memory is None: {BOTH}.",
        "must match the size": "The mask has a row for each query and a column for each key, (T, S), "
        "and with a memory S is larger than T.",
    },
    axes=[("text", "token", "number")],
)
