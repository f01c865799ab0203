"""Texts that people bring, each made here: many alphabets, and every oddity that a text can have.

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
    words: int = 600,
    capital: bool = True,
) -> str:
    """Sentences of made-up words, some of them frequent, as in a language; every letter occurs."""
    pick = random.Random(len(letters))
    lexicon = ["".join(pick.choices(letters, k=pick.randint(1, longest))) for _ in range(words)]
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


def typographic() -> str:
    """English as a word processor sets it: curly quotes, dashes, digits; 95 characters."""
    marks = "“”‘’—–…,;:()!?&*/[]0123456789"
    stops = [
        ".\n",
        ".” “",
        "—",
        "… ",
        "; ",
        "?’ ‘",
        "!\n\n",
        " – ",
        *(f"{mark} " for mark in marks),
    ]
    text = marks + LATIN.upper() + prose(LATIN, stops=stops)
    return _with_distinct(text, 95)


def chinese() -> str:
    """A novel in Han characters: no spaces, long paragraphs, about 2,500 distinct characters."""
    stops = ["。", "，", "？", "！", "。\n\n", "：“", "”"]
    return prose(HAN[::-1], 40_000, space="", stops=stops, longest=4, capital=False)


def dollars() -> str:
    """LaTeX, prices and shell: dollars, backslashes, carets, underscores, braces, per cent."""
    stops = [
        " $x_{1}^{2}$ ",
        r" $$\frac{a}{b}$$" + "\n",
        " $5.99, 10 %\n",
        " ${HOME}/$1 ",
        " {0} %s $",
    ]
    return "$\\$ " + prose(LATIN + "$_^", stops=stops)


def no_b_or_e() -> str:
    return prose("acdfghijklmnopqrstuvwxyz")


def no_line_breaks() -> str:
    return prose(LATIN, stops=[". ", ", "])


def short() -> str:
    return prose(LATIN, 20_000)


def smallest() -> str:
    """The fewest characters that the notebooks accept."""
    return prose(LATIN, 5_140)


def right_to_left() -> str:
    return prose(HEBREW, stops=[". ", ".\n", "־", "״ "], capital=False)


def two_characters() -> str:
    pick = random.Random(2)
    return "".join(pick.choices("01", [3, 1], k=SIZE))


def three_characters() -> str:
    return prose("ab", space="a", stops=["\n"], capital=False)


def upper_case() -> str:
    return prose(LATIN.upper())


def greek() -> str:
    return prose(GREEK)


def no_spaces() -> str:
    """Thai-like: no space, no capital, no punctuation; marks that stand above other letters."""
    return prose("กขคงจชซญดตถทนบปผพมยรลวสหอะาิีึืุู่้", space="", stops=["\n"], capital=False)


def emoji() -> str:
    """Characters beyond 16 bits, joiners, a flag, a family."""
    return prose("😀😁🎉🚀🦄👨👩👧\u200d🇩🇪\ufe0f❤", stops=[" ", "\n"], capital=False)


def control() -> str:
    """Characters that end lines for Python or move a terminal's cursor, and a lone return."""
    return prose(
        LATIN, stops=["\x0b", "\x0c", "\x1b[31m", "\x85", "\u2028", "\r", "\t", "\x08", "\n"]
    )


def html() -> str:
    stops = ["</td>\n", " & ", "<script>", "&lt;", "`", "```\n", "# ", "**", "|", '"', "'", "-->"]
    return prose(LATIN, stops=stops)


def blank_lines() -> str:
    """It begins with line breaks and spaces, and has many more."""
    return "\n" * 50 + " " * 50 + prose(LATIN, stops=["\n\n\n", "\n   \n"], capital=False)


def one_line_each() -> str:
    """A list of words, one on each line."""
    return prose(LATIN, space="\n", stops=["\n"], capital=False)


def another_ending() -> str:
    """The last tenth, which validates, is in another alphabet than all that is trained on."""
    return prose(LATIN, 27_000) + prose(GREEK, 3_000)


def play() -> str:
    """A play in another language: names and colons, as the lessons' own text has them."""
    pick = random.Random(5)
    names = ["ΑΝΤΙΓΟΝΗ", "ΚΡΕΩΝ", "ΙΣΜΗΝΗ"]
    lines = prose(GREEK).split(".\n")
    return "".join(f"{pick.choice(names)}:\n{line.strip()}.\n\n" for line in lines)


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
        typographic,
        chinese,
        dollars,
        no_b_or_e,
        no_line_breaks,
        short,
        smallest,
        right_to_left,
        two_characters,
        three_characters,
        upper_case,
        greek,
        no_spaces,
        emoji,
        control,
        html,
        blank_lines,
        one_line_each,
        another_ending,
        play,
        hostile,
    )
}


def _with_distinct(text: str, n: int) -> str:
    """The text with so many distinct characters: rare ones more, at its beginning."""
    more = (char for char in "ÀÉÎÕÜßàéîõüçñøåæœ§°€£¥©®" if char not in text)
    while len(set(text)) < n:
        text = text[:200] + next(more) + text[200:]
    assert len(set(text)) == n
    return text
