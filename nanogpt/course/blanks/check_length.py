"""Notebook 04, blank 6: check_length, which says before a text begins whether it fits."""

import re

from ..page import Blank, Case


def check_length(T, n_new, block_size):
    """Raise ValueError if the model cannot generate n_new tokens after a prompt of T.

    The message says how many it can. A prompt that does not fit is also an error.
    """
    room = block_size + 1 - T
    if block_size < T or n_new > room:
        raise ValueError(f"a prompt of {T} leaves room for {max(room, 0)} tokens, not {n_new}")


# ------------------------------------------------------------------ what a check runs


def run(answer, T, n_new, block_size):
    """One call: it returns None, or raises a ValueError that says how many tokens fit."""
    room = block_size + 1 - T
    words = ""
    said = None
    try:
        said = answer(T, n_new, block_size)
        end = "nothing is raised"
    except Exception as error:
        words = str(error)
        end = "a ValueError" if isinstance(error, ValueError) else type(error).__name__
    yield "what happens", end
    yield (
        "what is returned",
        said if said is None or isinstance(said, bool) else type(said).__name__,
    )
    if end == "a ValueError":
        yield "the message has a negative number", bool(re.search(r"(^|[\s(=:])-\d", words))
    if end == "a ValueError" and n_new > room > 0:  # after a longer prompt there is no such number
        found = re.findall(r"\d+", words.replace(",", ""))
        yield "the message has no number", not found
        yield "the message does not say how many tokens fit", str(room) not in found


# ------------------------------------------------------------------ what people write

MESSAGE = 'f"a prompt of {T} leaves room for {max(room, 0)} tokens, not {n_new}"'
BLANK = Blank(
    number="04.6",
    minutes=4,
    solution=check_length,
    cases=[
        Case(run, T=20, n_new=1, block_size=64),
        Case(run, T=20, n_new=45, block_size=64),
        Case(run, T=20, n_new=500, block_size=64),
        Case(run, T=20, n_new=60, block_size=64),
        Case(run, T=20, n_new=46, block_size=64),
        Case(run, T=64, n_new=1, block_size=64),
        Case(run, T=64, n_new=2, block_size=64),
        Case(run, T=1, n_new=64, block_size=64),
        Case(run, T=66, n_new=1, block_size=64),
        Case(run, T=200, n_new=1, block_size=64),
        Case(run, T=65, n_new=0, block_size=64),
        Case(run, T=20, n_new=0, block_size=64),
        Case(run, T=3, n_new=6, block_size=8),
        Case(run, T=3, n_new=7, block_size=8),
        Case(run, T=100, n_new=157, block_size=256),
        Case(run, T=1, n_new=1, block_size=1),
    ],
    mistakes={
        "too few tokens are allowed: the last new token is returned and never read, so it needs no "
        "position, and room is block_size + 1 - T.": (
            ["block_size + 1 - T -> block_size - T"],
            ["n_new > room -> n_new >= room"],
        ),
        "False is returned if the tokens do not fit: raise a ValueError.": (
            ["raise -> return False\n        raise"],
            ["raise -> return False\n        raise", 'new}") -> new}")\n    return True'],
        ),
        "nothing is raised if the tokens do not fit: a message on the screen or a warning does not "
        "stop the caller. Raise a ValueError.": ["raise ValueError -> str"],
        "another kind of error is raised: the caller expects a ValueError, and `python -O` removes "
        "an assert.": ["raise ValueError -> raise AssertionError"],
        "the error does not say how many tokens fit: put the room into its text.": [
            f'{MESSAGE} -> "too long"'
        ],
        "the error says another number: not how many tokens are requested, too many or in a block, "
        "but how many fit, block_size + 1 - T.": (
            ["{max(room, 0)} -> {block_size}"],
            [f"{MESSAGE} -> str(n_new - room)"],
        ),
    },
    wrong=[
        "block_size + 1 - T -> 64 + 1 - T",
        "max(room, 0) -> room",
        "block_size < T -> n_new < 1 or block_size < T",
        "n_new > room -> n_new > room + 1",
        "n_new > room -> n_new > block_size",
    ],
    right=[
        """
class TooLong(ValueError):
    pass

def check_length(T, n_new, block_size):
    free = range(T, block_size + 1)
    if T > block_size:
        raise TooLong("the prompt itself does not fit")
    if n_new > len(free):
        raise TooLong(f"only {len(free)}, and you want {n_new}")
""",
        """
def check_length(T, n_new, block_size):
    last = T + n_new - 2
    if T - 1 >= block_size or last >= block_size:
        raise ValueError("%d tokens do not fit, and %d do" % (n_new, max(0, block_size - T + 1)))
    return None
""",
        """
def check_length(T, n_new, block_size):
    try:
        positions = [*range(block_size)]
        for i in range(T + n_new - 1):
            positions[i]
        positions[T - 1]
    except IndexError as error:
        most = max(block_size - T + 1, 0)
        raise ValueError(f"T={T:,} and n_new={n_new:,}: at most {most:,} of them") from error
""",
    ],
    hints=(
        "A block of 4 positions and a prompt of 4 tokens: can the model generate one more token, and which positions does it read for that?",
        "Which positions are read? The prompt's, and those of all new tokens but one: the last is only returned. `block_size - 1` is the last valid position.",
        "room = block_size + 1 - T; raise a ValueError with room in its message if T > block_size or n_new > room",
    ),
    advice={
        "what happens": "After a prompt of T tokens there is room for block_size + 1 - T more, and "
        "for none if T > block_size; raise a ValueError for anything beyond.",
    },
)
