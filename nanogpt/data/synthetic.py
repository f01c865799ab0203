"""A practice corpus: play-like text from a seeded grammar, for machines with no network.

It uses the 65 characters of Tiny Shakespeare and no line of it. Its only source of randomness is
`random.Random(seed).random()`, which Python keeps equal across versions and machines.
"""

from __future__ import annotations

import random
import re

NAME = "practice corpus"
SPEAKERS = (
    "FIRST WEAVER, QUEEN ISOLDA, KING OSWALD, JESTER, MILLER, CAPTAIN VEX, LADY ZINNIA, "
    "PRINCE HUGO, OLD BAKER, HERALD, DUKE FABIAN, XANTHIPPE, JOQUIN, YOUNG FERRYMAN"
).split(", ")
# What each {name} may become, one as likely as another; what is likelier is written more than once.
RULES = {
    "speech": ["{speaker}:\n{lines}\n\n"] * 3 + ["{title}:\n{lines}\n\n"] * 2,
    "speaker": SPEAKERS,
    "title": [speaker.title() for speaker in SPEAKERS],
    "lines": ["{line}"] + ["{line}\n{lines}"] * 2,
    "line": ["{Subject} {clause} {place}{end}"] * 30
    + ["{oath}, {subject} {clause}{end}"] * 29
    + ["When {subject} {clause}, then {phrase} {modal} {verb} me{end}"] * 20
    + ["O {phrase}! {Subject} {clause}{end}", "Come, {verb} {phrase} {place} -- haste{end}"] * 10
    + ["It cost me 3 crowns & no less.", "Owe them $3? Write X & Z upon it: both, I say!"],
    "clause": ["{modal} {verb} {phrase}"],
    "phrase": ["{article} {noun}", "{article} {adjective} {noun}"] * 10 + ["my {noun}'s edge"],
    "article": "the my thy no every this".split(),
    "subject": "I thou we they he she who".split(),
    "Subject": "I Thou We They He She Who".split(),
    "modal": "will must shall cannot would did".split(),
    "noun": "lantern orchard harbour kingdom thimble garden river candle feather zephyr".split(),
    "verb": "carry forget mend follow bury answer measure guard polish question praise".split(),
    "adjective": "quiet golden crooked distant weary honest bitter frozen jealous vexed".split(),
    "place": "by the mill, at the gate, beyond the hill, near the well, on the quay".split(", "),
    "oath": "By my oath; In truth; Good sir; Alas; Hark; Pray you; Fie; My lord".split("; "),
    "end": list("...,;!?:"),
}


def write(characters: int = 1_000_000, seed: int = 1337) -> str:
    """That many characters of play-like text; the same seed gives the same text everywhere."""
    rng, name = random.Random(seed), re.compile(r"\{(\w+)\}")

    def expand(match) -> str:
        options = RULES[match[1]]
        return name.sub(expand, options[int(rng.random() * len(options))])

    parts, length = [], 0
    while length < characters:
        parts.append(name.sub(expand, "{speech}"))
        length += len(parts[-1])
    return "".join(parts)[: characters - 1] + "\n"
