"""Notebook 04, blank 6: check_length."""

from ..page import Blank


def check_length(T, n_new, block_size):
    """Raise ValueError if the model cannot generate n_new tokens after a prompt of T.

    The message says how many it can. A prompt that does not fit is also an error.
    """
    room = block_size + 1 - T
    if block_size < T or n_new > room:
        raise ValueError(f"a prompt of {T} leaves room for {max(room, 0)} tokens, not {n_new}")


BLANK = Blank(
    number="04.6",
    solution=check_length,
    cases=[],
    mistakes={},
    hints=(
        "A block of 4 positions and a prompt of 4 tokens: can the model generate one more token, and which positions does it read for that?",
        "Which positions are read? The prompt's, and those of all new tokens but one: the last is only returned. `block_size - 1` is the last valid position.",
        "room = block_size + 1 - T; raise a ValueError with room in its message if T > block_size or n_new > room",
    ),
    advice={
        "what happens": "After a prompt of T tokens there is room for block_size + 1 - T more; raise a ValueError for anything beyond.",
        "what is returned": "Raise a ValueError if the tokens do not fit, else return nothing.",
        "the message": "It must contain block_size + 1 - T in digits.",
    },
)
