"""Notebook 09, blank 2: block_name, which tells whether two blocks hold the same keys."""

from functools import reduce

from ...serving.sequence import ROOT
from ..page import Blank, Case


def block_name(parent, tokens: list[int]):
    """A name for a full block, from its parent's name and its own tokens."""
    return (parent, tuple(tokens))


# ------------------------------------------------------------------ what a check runs


def name_of(answer, blocks):
    """The name of the last of a sequence's blocks."""
    return reduce(lambda parent, block: answer(parent, [*block]), blocks, ROOT)


def run_again(answer, blocks):
    """The same block, named twice; its name is a dictionary key."""
    tokens = [*blocks[-1]]
    name = answer(name_of(answer, blocks[:-1]), tokens)
    yield "your code changes `tokens`, which belong to the caller", tokens != blocks[-1]
    yield "the name cannot be a dictionary key", not hashes(name)
    again = name_of(answer, blocks)
    yield "the same block gets another name the second time", not same(name, again)


def hashes(name):
    """Whether a value can be a dictionary key."""
    try:
        hash(name)
    except TypeError:
        return False
    return True


def same(one, other):
    """Whether a dictionary takes them for the same name."""
    return hashes(one) and hashes(other) and one in {other}


def run_differ(answer, pairs):
    """The last blocks of two sequences that differ, so their names must differ."""
    for one, other in pairs:
        both = same(name_of(answer, one), name_of(answer, other))
        yield f"the last blocks of {one} and {other} have the same name", both


def run_places(answer, size):
    """Blocks that differ in a single token."""
    block = [*range(size)]
    name = name_of(answer, [block])
    for i in range(size):
        other = [*block]
        other[i] += 100
        yield f"token {i} of {size} is not in the name", same(name, name_of(answer, [other]))


def run_many(answer, side):
    """Blocks of all pairs of tokens."""
    names = {answer(ROOT, [i, j]) for i in range(side) for j in range(side)}
    yield f"some of {side**2} different blocks have the same name", len(names) < side**2


ALONE = [([[1, 2]], [[1, 3]]), ([[1, 2]], [[5, 2]]), ([[1, 2]], [[2, 1]])]
SUMS = [([[1, 4]], [[2, 3]]), ([[5, 5]], [[7, 7]]), ([[1, 1, 2]], [[1, 2, 2]])]
CHAINS = [
    ([[9, 9], [3, 4]], [[1, 2], [3, 4]]),
    ([[9, 9], [1, 2], [3, 4]], [[8, 8], [1, 2], [3, 4]]),
]
ORDERS = [
    ([[1, 2], [3, 4]], [[3, 4], [1, 2]]),
    ([[0, 0]], [[0, 0], [0, 0]]),
    ([[1, 2], [5, 5], [5, 5]], [[1, 2], [7, 7], [7, 7]]),
]
DIGITS = [([[1, 23]], [[12, 3]])]
SEAM = [([[1, 2], [34, 5]], [[1, 23], [4, 5]])]
LARGE = [([[3, 257]], [[3, 1]]), ([[50_256, 65_536]], [[50_256, 0]])]


# ------------------------------------------------------------------ what people write

BLANK = Blank(
    number="09.2",
    minutes=6,
    solution=block_name,
    cases=[
        Case(run_again, blocks=[[1, 2]]),
        Case(run_differ, pairs=ALONE),
        Case(run_differ, pairs=SUMS),
        Case(run_differ, pairs=CHAINS),
        Case(run_differ, pairs=ORDERS),
        Case(run_differ, pairs=DIGITS),
        Case(run_differ, pairs=SEAM),
        Case(run_differ, pairs=LARGE),
        Case(run_again, blocks=[[3, 257], [70_000, 0]]),
        Case(run_places, size=16),
        Case(run_many, side=40),
    ],
    mistakes={
        "the order of the tokens is lost, so 1 2 and 2 1 get the same name, as with a set, a sum, ^ or sorted(): use tuple(tokens).": [
            "tuple(tokens) -> tuple(sorted(tokens))"
        ],
        "numbers are added or combined with ^, which loses the order of the blocks: put parent and tokens into one tuple.": (
            ["(parent, tuple(tokens)) -> (parent or 0) ^ hash(tuple(tokens))"],
            ["(parent, tuple(tokens)) -> (parent or 0) + hash(tuple(tokens))"],
        ),
        "digits run together: 1 23 and 12 3 become the same text. Keep each token separate.": [
            "tuple(tokens) -> ''.join(map(str, tokens))"
        ],
        "the name is or contains a list, a set or a dictionary, which cannot be a dictionary key: use tuples, tuple(tokens).": [
            "tuple(tokens) -> tokens"
        ],
        "the same block gets a different name each time, so it would never be found: leave out counters, random numbers and memory addresses.": [
            """
def block_name(parent, tokens, calls=[]):
    calls.append(tokens)
    return len(calls)
"""
        ],
        "the name is a small number, so there are more blocks than names: leave the remainder out, or use a tuple.": [
            "(parent, tuple(tokens)) -> hash((parent, tuple(tokens))) % 256"
        ],
    },
    wrong=[
        "tuple(tokens) -> tuple(tokens[:8])",
        "tuple(tokens) -> bytes(tokens)",
        "(parent, tuple(tokens)) -> str(parent) + ','.join(map(str, tokens))",
        "tuple(tokens) -> (tokens[0], tokens[-1], len(tokens))",
        "(parent, tuple(tokens)) -> tuple(tokens)",
    ],
    right=[
        """
def block_name(parent, tokens):
    return f"{parent}/" + ",".join(str(token) for token in tokens)
""",
        """
def block_name(parent, tokens):
    return tuple(parent) + tuple(tokens)
""",
        """
def block_name(parent, tokens):
    from array import array
    from hashlib import sha256

    return sha256(parent + array("q", tokens).tobytes()).digest()
""",
        """
NAMES = {}

def block_name(parent, tokens):
    return NAMES.setdefault((parent, *tokens), len(NAMES))
""",
    ],
    hints=(
        "The tokens *the sea* occur in two texts, after different beginnings. Layers above the first mix what came before into each position. Are the keys of *the sea* the same?",
        "Two things decide: all tokens before the block, and its own tokens in order. The parent's name stands for everything before. A tuple of both will do. Lists cannot be dictionary keys.",
        "return (parent, tuple(tokens))",
    ),
    advice={
        "have the same name": "It must contain all of its own tokens in order, and the parent's name, each separate.",
    },
)
