"""Texts that people bring, each made here: one of each kind, and one with many oddities at once.

TEXTS is a table. To add a text, add a row: a name and a function of no arguments that returns it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

LATIN = "abcdefghijklmnopqrstuvwxyz"
GREEK = "αβγδεζηθικλμνξοπρστυφχψω"
HEBREW = "אבגדהוזחטיכלמנסעפצקרשת"
HAN = "".join(map(chr, range(0x4E00, 0x4E00 + 2480)))
SIZE = 30_000  # characters, unless a text is about its length


def prose(
    letters: str,
    size: int = SIZE,
    *,
    space: str = " ",
    stops: Sequence[str] = (". ", "? ", ".\n", "! ", ".\n\n"),
    longest: int = 9,
    capital: bool = True,
) -> str:
    """Sentences of made-up words, some of them frequent, as in a language; every letter occurs."""
    pick = random.Random(len(letters))
    lexicon = ["".join(pick.choices(letters, k=pick.randint(1, longest))) for _ in range(600)]
    lexicon += letters
    rank = [1 / (i + 1) for i in range(len(lexicon))]
    parts = [space.join(letters), pick.choice(stops)]
    length = sum(map(len, parts))
    while length < size:
        sentence = space.join(pick.choices(lexicon, rank, k=pick.randint(2, 14)))
        if capital:
            sentence = sentence[0].upper() + sentence[1:]
        parts += [sentence, pick.choice(stops)]
        length += len(sentence) + len(parts[-1])
    return "".join(parts)[:size]


def chinese() -> str:
    """A novel in Han characters: no spaces, long paragraphs, about 2,500 distinct characters."""
    stops = ["。", "，", "？", "！", "。\n\n", "：“", "”"]
    return prose(HAN[::-1], 40_000, space="", stops=stops, longest=4, capital=False)


def no_line_breaks() -> str:
    return prose(LATIN, stops=[". ", ", "])


def smallest() -> str:
    """The fewest characters that the notebooks accept."""
    return prose(LATIN, 5_140)


def right_to_left() -> str:
    return prose(HEBREW, stops=[". ", ".\n", "־", "״ "], capital=False)


def two_characters() -> str:
    pick = random.Random(2)
    return "".join(pick.choices("01", [3, 1], k=SIZE))


def greek() -> str:
    return prose(GREEK)


def no_spaces() -> str:
    """Thai-like: no space, no capital, no punctuation; marks that stand above other letters."""
    return prose("กขคงจชซญดตถทนบปผพมยรลวสหอะาิีึืุู่้", space="", stops=["\n"], capital=False)


def control() -> str:
    """Characters that end lines for Python or move a terminal's cursor, and a lone return."""
    return prose(
        LATIN, stops=["\x0b", "\x0c", "\x1b[31m", "\x85", "\u2028", "\r", "\t", "\x08", "\n"]
    )


def another_ending() -> str:
    """The last tenth, which validates, is in another alphabet than all that is trained on."""
    return prose(LATIN, 27_000) + prose(GREEK, 3_000)


def hostile() -> str:
    """As many oddities as go together: 20,000 characters, no letter a to j, no line break.

    Dollars, braces, backslashes, quotes, right-to-left, emoji, and hundreds of distinct characters.
    """
    stops = ["$", "${x}", "\\sum{", "%s", "“", "’ ", "—", '"', "'", "😀", "<", "&", "`", "_^", "\t"]
    text = prose(GREEK + HEBREW + HAN[:300], 20_000, stops=stops, longest=5)
    return "😀$" + text[2:]


TEXTS: dict[str, Callable[[], str]] = {
    text.__name__: text
    for text in (
        chinese,
        no_line_breaks,
        smallest,
        right_to_left,
        two_characters,
        greek,
        no_spaces,
        control,
        another_ending,
        hostile,
    )
}
