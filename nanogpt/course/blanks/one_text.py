"""Notebook 04, blank 7: one_text, which leaves empty memories however a text ends."""

from torch import Tensor

from ..drivers import form
from ..page import Blank, Case
from ..traps import MemoryHead, decode
from .generate_with_cache import texts
from .read_on import remembering


def one_text(model, prompt, noise):
    """decode(model, prompt, noise), with empty memories before and after."""
    heads = [module for module in model.modules() if isinstance(module, MemoryHead)]
    for head in heads:
        head.memory.clear()
    try:
        return decode(model, prompt, noise)
    finally:
        for head in heads:
            head.memory.clear()


# ------------------------------------------------------------------ what a check runs


class Pressed(KeyboardInterrupt):
    """The stop button, pressed by the check."""


def text(answer, model, heads, given, which):
    """One text, and what the memories hold afterwards."""
    tokens = answer(model, *given.tensors.values())
    yield from given.changes()
    yield f"the form of {which} text", form(tokens)
    if isinstance(tokens, Tensor):
        yield f"the tokens of {which} text", tokens
    usable = all(hasattr(getattr(head, "memory", None), "append") for head in heads)
    yield f"after {which} text a memory is no list", not usable
    yield f"heads with something in their memory after {which} text", full(heads)


def full(heads):
    """How many heads have something in their memory."""
    return sum(bool(getattr(head, "memory", None)) for head in heads)


def run_texts(answer):
    """Texts of several lengths, one after the other."""
    model, heads = remembering(answer)
    yield from text(answer, model, heads, texts(1, 5, 6), "the first")
    yield from text(answer, model, heads, texts(1, 1, 5), "the second")
    yield from text(answer, model, heads, texts(2, 4, 3), "the third")
    tokens = decode(model, *texts(1, 5, 6).tensors.values())
    yield "the tokens that `decode` generates after all that", tokens


def run_found(answer):
    """Memories filled by another text."""
    model, heads = remembering(answer)
    decode(model, *texts(1, 6, 2).tensors.values())
    yield from text(answer, model, heads, texts(1, 5, 6), "this")


def run_stopped(answer, error, after, layer):
    """An error in a layer after n passes: does it reach the caller, and what is left over?"""
    model, heads = remembering(answer)
    passes = 0

    def stop(module, inputs):
        nonlocal passes
        passes += 1
        if passes > after:
            raise error("stopped by the check")

    hook = model.blocks[layer].ffwd.register_forward_pre_hook(stop)
    try:
        answer(model, *texts(1, 5, 9).tensors.values())
        end = "no error"
    except (Exception, Pressed) as stopped:
        end = type(stopped).__name__
    hook.remove()
    kind = "the stop button" if error is Pressed else "an error"
    yield f"what reaches the caller of {kind} half-way", end
    yield f"heads with something in their memory after {kind}", full(heads)
    yield from text(answer, model, heads, texts(1, 4, 3), "the next")


# ------------------------------------------------------------------ what people write

HEADS = "[module for module in model.modules() if isinstance(module, MemoryHead)]"
CLEAR = "    for head in heads:\n        head.memory.clear()\n"
CLEAR_INSIDE = "        for head in heads:\n            head.memory.clear()\n"
NO_FINALLY = """
def one_text(model, prompt, noise):
    heads = [module for module in model.modules() if isinstance(module, MemoryHead)]
    for head in heads:
        head.memory.clear()
    tokens = decode(model, prompt, noise)
    for head in heads:
        head.memory.clear()
    return tokens
"""
BLANK = Blank(
    number="04.7",
    minutes=5,
    solution=one_text,
    cases=[
        Case(run_texts),
        Case(run_found),
        Case(run_stopped, error=ValueError, after=2, layer=1),
        Case(run_stopped, error=Pressed, after=2, layer=0),
        Case(run_stopped, error=Pressed, after=0, layer=1),
    ],
    mistakes={
        "the memories are emptied at the beginning, but afterwards the heads still hold the text: "
        "empty them at the end, too.": [f"finally:\n{CLEAR_INSIDE} -> finally:\n        pass\n"],
        "it assumes that the memories are empty when it begins, but another text had filled them.": [
            f"{CLEAR}    try ->     try"
        ],
        "only some heads are emptied: each head of each layer has a memory of its own, and "
        "`model.modules()` has them all.": (
            [f"{HEADS} -> {HEADS}[:1]"],
            [f"{HEADS} -> {HEADS}[:2]"],
        ),
    },
    wrong=[
        f"{HEADS} -> []",
        f"{CLEAR}    try ->     memory = []\n{CLEAR.replace('.clear()', ' = memory')}    try",
        NO_FINALLY,
    ],
    right=[
        """
def one_text(model, prompt, noise):
    def wipe(m):
        if isinstance(m, MemoryHead):
            del m.memory[:]
    model.apply(wipe)
    try:
        text = decode(model, prompt, noise)
    finally:
        model.apply(wipe)
    return text
""",
        """
from contextlib import ExitStack

def one_text(model, prompt, noise):
    with ExitStack() as stack:
        for block in model.blocks:
            for head in block.sa.heads:
                head.memory = []
                stack.callback(head.memory.clear)
        return decode(model, prompt, noise)
""",
        """
def one_text(model, prompt, noise):
    def forget():
        for head in filter(lambda m: hasattr(m, "memory"), model.modules()):
            head.memory = []

    forget()
    try:
        text = decode(model, prompt, noise)
    except BaseException:
        forget()
        raise
    forget()
    return text
""",
    ],
    hints=(
        "When must the memories be empty, and which of these moments also comes after an error? What does Python run however a block ends?",
        "`model.modules()` yields every module, including the heads. `try: … finally: …` runs its last part even after an error.",
        "clear all memories; then try: return decode(model, prompt, noise); finally: clear all again",
    ),
    advice={
        "the tokens of": "All memories must be empty when a text begins.",
        "a memory is no list": "A head appends to its memory, and decode does not turn it on: leave "
        "an empty list, as clear() does.",
        "after the stop": "Clean-up that must always run belongs in `finally`.",
        "after an error": "Clean-up that must always run belongs in `finally`.",
        "memory after": "Empty the memories of all heads when the text has ended.",
    },
    axes=[("text", "token")],
)
