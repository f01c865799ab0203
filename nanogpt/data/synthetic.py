"""A practice corpus: play-like text from a seeded grammar, for machines with no network.

It uses the 65 characters of Tiny Shakespeare and no line of it. Its only source of randomness is
`random.Random(seed).random()`, which Python keeps equal across versions and machines.
"""

from __future__ import annotations

import random

NAME = "practice corpus"
SPEAKERS = (
    "FIRST WEAVER, SECOND WEAVER, QUEEN ISOLDA, KING OSWALD, JESTER, MILLER, CAPTAIN VEX, "
    "LADY ZINNIA, PRINCE HUGO, OLD BAKER, HERALD, DUKE FABIAN, YOUNG SMITH, XANTHIPPE, "
    "JOQUIN, FERRYMAN"
).split(", ")
NOUNS = (
    "lantern orchard harbour kingdom question thimble garden winter river anvil candle "
    "promise quarry feather bridge mirror journey whisper harvest castle zephyr jewel ribbon "
    "shadow meadow hammer vessel letter market crown"
).split()
VERBS = (
    "carry forget mend follow borrow bury answer paint measure guard polish weigh trade "
    "question summon kindle hide steal praise gather"
).split()
ADJECTIVES = (
    "quiet golden crooked distant weary honest broken bitter gentle hollow royal frozen "
    "humble jealous lucky silver ancient vexed zealous brave"
).split()
PLACES = (
    "by the mill, at the gate, beyond the hill, in the hall, near the well, on the quay"
).split(", ")
OATHS = "By my oath; In truth; Good sir; Alas; Hark; Pray you; Fie; My lord".split("; ")
RARE = (
    "It cost me 3 crowns & no less.",
    "They owe $3 for the cart.",
    "Write X & Z upon it: both, I say!",
)


def write(characters: int = 1_000_000, seed: int = 1337) -> str:
    """That many characters of play-like text; the same seed gives the same text everywhere."""
    rng = random.Random(seed)
    parts, length = [], 0
    while length < characters:
        speech = _speech(rng)
        parts.append(speech)
        length += len(speech)
    return "".join(parts)[: characters - 1] + "\n"


def _pick(rng: random.Random, options):
    return options[int(rng.random() * len(options))]


def _speech(rng: random.Random) -> str:
    name = _pick(rng, SPEAKERS)
    name = name if rng.random() < 0.6 else name.title()
    lines = [_line(rng) for _ in range(1 + int(rng.random() * 5))]
    return f"{name}:\n" + "\n".join(lines) + "\n\n"


def _phrase(rng: random.Random) -> str:
    noun = _pick(rng, NOUNS)
    if rng.random() < 0.5:
        noun = f"{_pick(rng, ADJECTIVES)} {noun}"
    article = _pick(rng, ("the", "my", "thy", "no", "every", "this"))
    return f"{article} {noun}" + ("'s edge" if rng.random() < 0.05 else "")


def _line(rng: random.Random) -> str:
    roll = rng.random()
    if roll < 0.01:
        return _pick(rng, RARE)
    subject = _pick(rng, ("I", "thou", "we", "they", "he", "she", "who"))
    modal = _pick(rng, ("will", "must", "shall", "cannot", "would", "did"))
    clause = f"{modal} {_pick(rng, VERBS)} {_phrase(rng)}"
    if roll < 0.3:
        return f"{_pick(rng, OATHS)}, {subject} {clause}{_end(rng)}"
    if roll < 0.5:
        rest = f"{_phrase(rng)} {modal} {_pick(rng, VERBS)} me{_end(rng)}"
        return f"When {subject} {clause}, then {rest}"
    if roll < 0.6:
        return f"O {_phrase(rng)}! {subject.capitalize()} {clause}{_end(rng)}"
    if roll < 0.7:
        verb = _pick(rng, VERBS)
        return f"Come, {verb} {_phrase(rng)} {_pick(rng, PLACES)} -- {verb} it{_end(rng)}"
    return f"{subject.capitalize()} {clause} {_pick(rng, PLACES)}{_end(rng)}"


def _end(rng: random.Random) -> str:
    return _pick(rng, (".", ".", ".", ",", ";", "!", "?", ":"))
