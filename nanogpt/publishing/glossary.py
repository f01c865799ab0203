"""The glossary: the new words that the boxes at the top of the notebooks define."""

from __future__ import annotations

import re

BOX = re.compile(r"^- \*New words\*: (.+(?:\n(?!- ).+)*)", re.M)
TERM = re.compile(r"\*\*(.+?)\*\*")


def new_words(nb) -> dict[str, str]:
    """What the box of a notebook defines: each term, and its sentences as markdown.

    A sentence that defines no term of its own belongs to the one before it.
    """
    found = BOX.search(nb.cells[0].source)
    words, term = {}, None
    text = " ".join(found[1].split()) if found else ""
    for sentence in re.split(r"(?<=[.;]) ", text):
        if defined := TERM.search(sentence):
            term = defined[1]
            words[term] = f"{sentence[0].upper()}{sentence[1:]}"
        elif term:
            words[term] += f" {sentence}"
    return {term: f"{text.rstrip(';.')}." for term, text in words.items()}
