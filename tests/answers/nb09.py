# ruff: noqa: E501 (code in strings)
"""Answers to the blanks of notebook 09: right ones in other styles, and wrong ones.

A wrong answer is what replaces what in the solution, and a part of the message about it.
"""

PAST = "(k_pos[None, :] <= q_pos[:, None])"
SAME = "q_seq[:, None] == k_seq[None, :]"
LOOP = "    for need in needs[:most]:\n        if need > free:\n            break\n"

RIGHT = {
    "ragged_mask": {
        "visible and another comparison": """
def ragged_mask(q_seq, q_pos, k_seq, k_pos):
    return visible(q_pos, k_pos) & q_seq[:, None].eq(k_seq)
""",
        "differences": """
def ragged_mask(q_seq, q_pos, k_seq, k_pos):
    other = q_seq.unsqueeze(1) - k_seq.unsqueeze(0)
    gap = q_pos.view(-1, 1) - k_pos.view(1, -1)
    return torch.logical_and(other == 0, gap >= 0)
""",
        "loops": """
def ragged_mask(q_seq, q_pos, k_seq, k_pos):
    mask = torch.zeros(len(q_seq), len(k_seq), dtype=torch.bool)
    for i in range(len(q_seq)):
        for j in range(len(k_seq)):
            if q_seq[i] == k_seq[j] and k_pos[j] <= q_pos[i]:
                mask[i, j] = True
    return mask
""",
        "not hidden": """
def ragged_mask(q_seq, q_pos, k_seq, k_pos):
    hidden = (q_seq[:, None] != k_seq) | (k_pos > q_pos[:, None])
    return ~hidden
""",
        "keys first": """
def ragged_mask(q_seq, q_pos, k_seq, k_pos):
    rows = [(k_seq == s) & (k_pos <= p) for s, p in zip(q_seq.tolist(), q_pos.tolist())]
    return torch.stack(rows)
""",
        "torch.where": """
def ragged_mask(q_seq, q_pos, k_seq, k_pos):
    return torch.where(q_seq[:, None] == k_seq[None], k_pos[None] < q_pos[:, None] + 1, False)
""",
    },
    "block_name": {
        "a list of all": """
def block_name(parent, tokens):
    return parent, *tokens
""",
        "the flat prefix": """
def block_name(parent, tokens):
    return tuple(parent) + tuple(tokens)
""",
        "a set of both": """
def block_name(parent, tokens):
    return frozenset([parent, tuple(tokens)])
""",
        "a text": """
def block_name(parent, tokens):
    return f"{parent}|{tokens}"
""",
        "a hash of Python": """
def block_name(parent, tokens):
    return hash((parent, *tokens))
""",
        "sha256": """
from array import array
from hashlib import sha256

def block_name(parent, tokens):
    return sha256(parent + array("q", tokens).tobytes()).digest()
""",
        "a table of names": """
NAMES = {}

def block_name(parent, tokens):
    return NAMES.setdefault((parent, tuple(tokens)), len(NAMES))
""",
        "a frozen dataclass": """
from dataclasses import dataclass

@dataclass(frozen=True)
class Name:
    parent: object
    tokens: tuple

def block_name(parent, tokens):
    return Name(parent, tuple(tokens))
""",
    },
    "admitted": {
        "accumulate": """
from itertools import accumulate, takewhile

def admitted(needs, free, most):
    return len(list(takewhile(lambda total: total <= free, accumulate(needs[:most]))))
""",
        "a while loop": """
def admitted(needs, free, most):
    n = 0
    while n < len(needs) and n < most and sum(needs[: n + 1]) <= free:
        n += 1
    return n
""",
        "a return in the loop": """
def admitted(needs, free, most):
    for i, need in enumerate(needs):
        if i == most or need > free:
            return i
        free = free - need
    return len(needs)
""",
        "recursion": """
def admitted(needs, free, most):
    if not needs or most < 1 or needs[0] > free:
        return 0
    return 1 + admitted(needs[1:], free - needs[0], most - 1) if len(needs) < 100 else loop(needs, free, most)

def loop(needs, free, most):
    return max(n for n in range(min(most, len(needs)) + 1) if sum(needs[:n]) <= free)
""",
        "numpy": """
import numpy as np

def admitted(needs, free, most):
    return np.searchsorted(np.cumsum(needs[:most]), free, side="right")
""",
        "tensors": """
def admitted(needs, free, most):
    totals = torch.tensor(needs[:most], dtype=torch.long).cumsum(0)
    return (totals <= free).sum()
""",
    },
}

WRONG = {
    "ragged_mask": {
        "sequences not compared": ("same & ", "", "sequences are not compared"),
        "positions not compared": (f"same & {PAST}", "same", "positions are not compared"),
        "own key hidden": ("<=", "<", "own position"),
        "the past hidden": ("<=", ">=", "must see what comes before"),
        "joined by or": ("same & ", "same | ", "a key must"),
        "other sequences": (SAME, SAME.replace("==", "!="), "every sequence except"),
        "earlier sequences": (SAME, SAME.replace("==", ">="), "smaller numbers"),
        "one turned": (PAST, f"{PAST}.T", "(N, 1)"),
        "all turned": (f"    return same & {PAST}", f"    return (same & {PAST}).T", "transposed"),
        "numbers": (
            f"    return same & {PAST}",
            f"    return (same & {PAST}).float()",
            "it must hold booleans",
        ),
        "int32 numbers": (
            f"    return same & {PAST}",
            f"    return (same & {PAST}).int()",
            "must hold booleans",
        ),
        "a triangle": (PAST, "torch.ones(len(q_pos), len(k_pos)).tril().bool()", "triangle"),
        "a triangle at the end": (
            PAST,
            "torch.ones(len(q_pos), len(k_pos)).tril(len(k_pos) - len(q_pos)).bool()",
            "the future",
        ),
        "keys by place": ("k_pos[None, :] <=", "torch.arange(len(k_pos)) <=", "index in the list"),
        "position 0 hidden": (PAST, f"{PAST} & (k_pos > 0)", "at position 0"),
        "only its own key": ("<=", "==", "its own"),
        "position in every sequence": (
            f"    return same & {PAST}",
            f"    return same & {PAST} | (k_pos == q_pos[:, None])",
            "in every sequence",
        ),
        "one rank": (SAME, "q_seq == k_seq", "(N, 1)"),
        "the first query's sequence": (
            SAME,
            "(q_seq[:1, None] == k_seq).expand(len(q_seq), -1)",
            "first one's sequence",
        ),
        "python's and": ("same & ", "same and ", "Join masks with"),
        "exchanged": (
            "",
            "def ragged_mask(q_seq, q_pos, k_seq, k_pos):\n    return (q_pos[:, None] == k_pos) & (k_seq <= q_seq[:, None])\n",
            "and positions are",
        ),
        "kept": (
            "",
            "KEPT = {}\n\ndef ragged_mask(q_seq, q_pos, k_seq, k_pos):\n    mask = visible(q_pos, k_pos) & (q_seq[:, None] == k_seq)\n    return KEPT.setdefault(mask.shape, mask)\n",
            "keep nothing",
        ),
        "nothing": (f"    return same & {PAST}", f"    same & {PAST}", "return"),
    },
    "block_name": {
        "no parent": ("(parent, tuple(tokens))", "tuple(tokens)", "parent is not in the name"),
        "no tokens": (
            "(parent, tuple(tokens))",
            "(parent, len(tokens))",
            "tokens are not in the name",
        ),
        "parent alone": ("(parent, tuple(tokens))", "parent", "in the name"),
        "sorted": ("tuple(tokens)", "tuple(sorted(tokens))", "sorted"),
        "a set": ("tuple(tokens)", "frozenset(tokens)", "set forgets"),
        "a sum": ("tuple(tokens)", "sum(tokens)", "added up"),
        "digits": ("tuple(tokens)", "''.join(str(t) for t in tokens)", "digits run together"),
        "all digits": (
            "(parent, tuple(tokens))",
            "str(parent) + ','.join(map(str, tokens))",
            "at the seam",
        ),
        "the last token": ("tuple(tokens)", "tokens[-1]", "last token"),
        "the first token": ("tuple(tokens)", "tokens[0]", "first token"),
        "a list": ("(parent, tuple(tokens))", "[parent, tokens]", "the name is"),
        "a tuple with a list": ("tuple(tokens)", "tokens", "the name is"),
        "a dictionary": (
            "(parent, tuple(tokens))",
            "{'parent': parent, 'tokens': tuple(tokens)}",
            "the name is",
        ),
        "random": ("(parent, tuple(tokens))", "torch.rand(()).item()", "leave out counters"),
        "the address": ("tuple(tokens)", "id(tokens)", "leave out counters"),
        "bytes": ("tuple(tokens)", "bytes(tokens)", "up to 255"),
        "8 bits": ("tuple(tokens)", "tuple(t & 255 for t in tokens)", "8 bits"),
        "joined by ^": (
            "(parent, tuple(tokens))",
            "(parent or 0) ^ hash(tuple(tokens))",
            "order of the blocks",
        ),
        "hashes added": (
            "(parent, tuple(tokens))",
            "(parent or 0) + hash(tuple(tokens))",
            "order of the blocks",
        ),
        "nothing": ("return (parent", "(parent", "it returned None"),
        "the last of eight": ("tuple(tokens)", "tuple(tokens[:8])", "token 8 of 16"),
        "the parent's tokens": ("(parent, tuple", "(parent[-1:], tuple", "before the parent"),
        "sorted in place": ("    return", "    tokens.sort()\n    return", "sorts the caller's"),
    },
    "admitted": {
        "not subtracted": ("        free -= need\n", "", "compared with all free"),
        "overtaken": ("            break\n", "            continue\n", "overtakes"),
        "most not used": ("needs[:most]", "needs", "`most` is ignored"),
        "one more": ("needs[:most]", "needs[: most + 1]", "one request too many"),
        "one less": ("needs[:most]", "needs[: max(0, most - 1)]", "one request too few"),
        "must be less": ("need > free", "need >= free", "<=, not <"),
        "free not used": (LOOP, "    for need in needs[:most]:\n", "`free` is ignored"),
        "the refused one counted": (
            "        if need > free:\n            break\n        count += 1\n",
            "        count += 1\n        if need > free:\n            break\n",
            "the one that",
        ),
        "all or none": (
            "    return count",
            "    return count if count == len(needs[:most]) else 0",
            "all or none",
        ),
        "blocks": ("count += 1", "count += need", "number of blocks"),
        "free blocks": ("    return count", "    return free", "number of blocks left free"),
        "the requests": ("    return count", "    return needs[:count]", "these are the"),
        "whether": ("    return count", "    return count > 0", "how many"),
        "sorted": ("needs[:most]", "sorted(needs)[:most]", "smallest requests"),
        "sorted in place": (
            "    count = 0\n",
            "    count = 0\n    needs.sort()\n",
            "expected 0, got 1",
        ),
        "None at the end": (
            "",
            "def admitted(needs, free, most):\n    for i, need in enumerate(needs):\n        if i == most or need > free:\n            return i\n        free -= need\n",
            "it returned None",
        ),
        "return in the loop": (
            "    return count",
            "        return count",
            "expected 2, got 1",
        ),
        "popped": (
            "",
            "def admitted(needs, free, most):\n    n = 0\n    while needs and n < most and needs[0] <= free:\n        free -= needs.pop(0)\n        n += 1\n    return n\n",
            "those admitted are",
        ),
        "empty queue": (
            "",
            "def admitted(needs, free, most):\n    n = 0\n    while n < most and needs[n] <= free:\n        free -= needs[n]\n        n += 1\n    return n\n",
            "IndexError",
        ),
        "one block each": ("free -= need", "free -= 1", "takes one block"),
    },
}
