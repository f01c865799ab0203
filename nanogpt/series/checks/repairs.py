"""The checks of repaired_loop, repaired_baseline and check_length."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ...cache import disable_kv_cache, enable_kv_cache, kv_cache
from .. import solutions
from .caches import GrowingCache
from .exercise import Answer, Case, Exercise, Pairs
from .loop import Watched, draw, texts
from .observing import form

# ------------------------------------------------------------------ repaired_loop


def run_repaired(answer: Answer, T: int, n: int, block_size: int, turns: int = 1) -> Pairs:
    """Complete texts: the tokens, and everything that the model reads."""
    model = Watched(block_size).double().eval()
    for turn in range(turns):
        again = " of a second text" * turn
        given = texts(1, T, n + turn)
        with torch.no_grad():
            tokens = answer(model, *given.tensors.values())
        yield from given.changes()
        yield f"what is returned{again}", form(tokens)
        yield f"the number of tokens that the model reads{again}", len(model.positions)
        yield f"the positions that the model reads{again}", torch.tensor(model.positions)
        yield f"a pass of the model{again} without a cache", not all(model.cached)
        yield f"the tokens returned{again}", _tensor(tokens)
        yield f"the tokens that the model reads{again}", torch.cat(model.tokens, dim=1)
        yield f"the cache is still on afterwards{again}", model.caching
        for notes in (model.tokens, model.positions, model.cached):
            notes.clear()


def _tensor(tokens: Any) -> Any:
    """The tokens, or a description of anything else."""
    return tokens if isinstance(tokens, Tensor) else form(tokens)


LOOP: dict[str, Any] = {
    "around": lambda model: kv_cache(model, GrowingCache),
    "first": lambda model, prompt: (prompt, 0),
    "logits": lambda logits: logits[:, -1],
    "row": lambda noise, i: noise[i],
    "draw": draw,
    "feed": lambda prompt, x: x,
    "after": lambda start, x: start + x.shape[1],
    "join": lambda prompt, out: torch.cat(out, dim=1),
}


def loop(model: Any, prompt: Tensor, noise: Tensor, **steps: Any) -> Any:
    """The reference solution. Each step can be replaced."""
    step = SimpleNamespace(**LOOP | steps)
    out = []
    with step.around(model):
        x, start = step.first(model, prompt)
        for i in range(len(noise)):
            logits, _ = model(x, pos=torch.arange(start, start + x.shape[1]))
            start = step.after(start, x)
            new = step.draw(step.logits(logits), step.row(noise, i))
            out.append(new)
            x = step.feed(prompt, new)
    return step.join(prompt, out)


def loop_by(**steps: Any) -> Answer:
    """The loop with one step replaced."""
    return partial(loop, **steps)


def read_prompt(model: Any, prompt: Tensor) -> None:
    model(prompt, pos=torch.arange(prompt.shape[1]))


def last_at_its_end(model: Any, prompt: Tensor) -> tuple[Tensor, int]:
    read_prompt(model, prompt)
    return prompt[:, -1:], prompt.shape[1]


def last_again(model: Any, prompt: Tensor) -> tuple[Tensor, int]:
    read_prompt(model, prompt)
    return prompt[:, -1:], prompt.shape[1] - 1


def last_alone(model: Any, prompt: Tensor) -> tuple[Tensor, int]:
    return prompt[:, -1:], prompt.shape[1] - 1


def all_twice(model: Any, prompt: Tensor) -> tuple[Tensor, int]:
    read_prompt(model, prompt)
    return prompt, 0


def whole_text(model: Any, prompt: Tensor, noise: Tensor) -> Tensor:
    text = prompt
    for row in noise:
        logits, _ = model(text)
        text = torch.cat([text, draw(logits[:, -1], row)], dim=1)
    return text[:, prompt.shape[1] :]


def whole_text_cached(model: Any, prompt: Tensor, noise: Tensor) -> Tensor:
    """The whole text at each step, with new caches each time."""
    text = prompt
    for row in noise:
        with kv_cache(model, GrowingCache):
            logits, _ = model(text, pos=torch.arange(text.shape[1]))
        text = torch.cat([text, draw(logits[:, -1], row)], dim=1)
    return text[:, prompt.shape[1] :]


def new_caches(model: Any, prompt: Tensor, noise: Tensor) -> Tensor:
    out = []
    x = prompt
    start = 0
    for row in noise:
        with kv_cache(model, GrowingCache):
            logits, _ = model(x, pos=torch.arange(start, start + x.shape[1]))
        start += x.shape[1]
        x = draw(logits[:, -1], row)
        out.append(x)
    return torch.cat(out, dim=1)


def left_on(model: Any, prompt: Tensor, noise: Tensor) -> Any:
    disable_kv_cache(model)
    enable_kv_cache(model, GrowingCache)
    return loop(model, prompt, noise, around=lambda model: nullcontext())


def one_too_many(model: Any, prompt: Tensor, noise: Tensor) -> Any:
    with kv_cache(model, GrowingCache):
        tokens = loop(model, prompt, noise, around=lambda model: nullcontext())
        end = prompt.shape[1] + len(noise)
        model(tokens[:, -1:], pos=torch.arange(end - 1, end))
    return tokens


def first_of_its_own(model: Any, prompt: Tensor, noise: Tensor) -> Any:
    """A first token from the prefill with the first row of noise, which is then used again."""
    noise = torch.cat([noise[:1], noise[:-1]])
    return loop(model, prompt, noise)


REPAIRED_LOOP = Exercise(
    notebook="04",
    hints=(
        "What do the prefill's last logits predict, and what does the trap do with them? How "
        "often does it read the prompt's last token?",
        "Count the tokens in the cache after the first turn of the loop. How many did the "
        "prompt have? The loop needs no separate prefill: let the first `x` be the whole prompt.",
        "x = prompt; start = 0; in the loop: logits, _ = model(x, pos=places(start, x.shape[1], "
        "x)); start += x.shape[1]; x = sample(logits[:, -1], row)",
    ),
    right=solutions.repaired_loop,
    # Every token is read once, in pieces of any size.
    cases=[
        Case(run_repaired, T=5, n=4, block_size=16),
        Case(run_repaired, T=1, n=12, block_size=30),
        Case(run_repaired, T=6, n=1, block_size=8),
        Case(run_repaired, T=2, n=19, block_size=20),  # to the end of the block
        Case(run_repaired, T=7, n=5, block_size=16, turns=2),
        Case(run_repaired, T=30, n=10, block_size=64),
    ],
    mistakes={
        "the prompt's last token is read again, at T: the prefill's own logits decide the first "
        "new token.": loop_by(first=last_at_its_end),
        "the prompt's last token is read twice at T - 1: use the prefill's logits, or leave "
        "that token out of the prefill.": loop_by(first=last_again),
        "only the prompt's last token is read: the cache needs all of them.": loop_by(
            first=last_alone
        ),
        "the prompt is read twice: the loop needs no separate prefill if its first x is the "
        "prompt.": loop_by(first=all_twice),
        "each new token is read at position 0: the token sampled in turn t (from 0) is at "
        "position T + t.": loop_by(after=lambda start, x: 0),
        "new tokens are read one position too far: the token sampled in turn t (from 0) is at T "
        "+ t, not T + t + 1.": loop_by(after=lambda start, x: start + x.shape[1] + (not start)),
        "new tokens are read one position too early: the first of them is at T, because the "
        "prompt takes 0 to T - 1.": loop_by(
            after=lambda start, x: start + x.shape[1] - (not start)
        ),
        "all new tokens are read at the same position, T: each is one position after the one "
        "before.": loop_by(after=lambda start, x: max(start, x.shape[1])),
        "each new token is read T positions after the one before: "
        "after the prefill add 1.": lambda model, prompt, noise: loop(
            model, prompt, noise, after=lambda start, x: start + prompt.shape[1]
        ),
        "the prompt advances the position by 1, like each new token: it has T tokens, so add "
        "x.shape[1].": loop_by(after=lambda start, x: start + 1),
        "the prompt is read from position 1 on: its first token is at 0.": loop_by(
            first=lambda model, prompt: (prompt, 1)
        ),
        "only the prompt's last token is read, at position 0: the cache needs the whole "
        "prompt.": loop_by(first=lambda model, prompt: (prompt[:, -1:], 0)),
        "a token is missing: each row of noise samples one, including the first and the last.": (
            lambda model, prompt, noise: loop(model, prompt, noise[1:])
        ),
        "the cache is off, but only the newest token is read: put the loop inside `with "
        "kv_cache(model, KVCache):`.": loop_by(around=lambda model: nullcontext()),
        "the whole text is read at each step, without a cache: read each token once.": whole_text,
        "the whole text is read at each step, with a new cache each time: use one with-block "
        "around all steps.": whole_text_cached,
        "each step has a new cache, which has forgotten the text: use one with-block around all "
        "steps.": new_caches,
        "the prompt is read again together with each new token: reading the new token "
        "is enough.": loop_by(feed=lambda prompt, x: torch.cat([prompt, x], dim=1)),
        "the last new token is read, too: the logits after it are never used.": one_too_many,
        "the cache is still on after the loop: `with kv_cache(model, KVCache):` removes it.": (
            left_on
        ),
        "the first token's logits are used: use the last ones, logits[:, -1].": loop_by(
            logits=lambda logits: logits[:, 0]
        ),
        "the noise is not used, and the likeliest token is chosen.": loop_by(
            draw=lambda logits, row: logits.argmax(-1, keepdim=True)
        ),
        "each step uses the first row of noise: there is one for each token.": loop_by(
            row=lambda noise, i: noise[0]
        ),
        "the first row of noise samples two tokens: each token has its own row.": first_of_its_own,
        "the noise is used in reverse: row t is for turn t.": loop_by(
            row=lambda noise, i: noise[-1 - i]
        ),
        "the prompt is returned in front of the new tokens: return only those.": loop_by(
            join=lambda prompt, out: torch.cat([prompt, *out], dim=1)
        ),
        "a list is returned: join the tokens with torch.cat(out, dim=1).": loop_by(
            join=lambda prompt, out: out
        ),
        "the tokens are returned as a column, (n, 1): join them along dim=1.": loop_by(
            join=lambda prompt, out: torch.cat(out)
        ),
        "only the newest token is returned: collect all of them.": loop_by(
            join=lambda prompt, out: out[-1]
        ),
    },
    advice={
        "what is returned": "Return the n new tokens, (1, n), without the prompt.",
        "the number of tokens that": (
            "`model` itself must read each token once, and the last new one never."
        ),
        "the positions that": "The token sampled in turn t (from 0) is at position T + t.",
        "without a cache": "Put the loop inside `with kv_cache(model, KVCache):`.",
        "still on": "Use `with kv_cache(model, KVCache):`.",
        "the tokens returned": (
            "A pass's last logits, with their own row of noise, give the next token."
        ),
        "the tokens that the model reads": "The prompt's tokens come first, then the new ones.",
    },
    axes=[("text", "token"), ("token",)],
)


# ------------------------------------------------------------------ repaired_baseline


def run_baseline(
    answer: Answer, T: int, n: int, training: bool, dropout: float = 0.5, block_size: int = 24
) -> Pairs:
    """Two runs with the same noise, by a model with dropout in this mode."""
    model = Watched(block_size, dropout=dropout).double().train(training)
    mode = "training" if training else "eval"
    for turn in range(2):
        again = " of a second run" * turn
        given = texts(1, T, n)
        with torch.no_grad():
            tokens = answer(model, *given.tensors.values())
        yield from given.changes()
        yield f"what is returned{again}", form(tokens)
        yield f"the baseline has a cache on{again}", any(model.cached) or model.caching
        yield f"the tokens{again}", _tensor(tokens)
        yield f"the mode of a model that was in {mode} mode", modes(model)
        yield "your code changes the model's dropout rate", _shares(model) != {dropout}


def modes(model: torch.nn.Module) -> str:
    """The mode of a model and of its layers, in words."""
    words = {True: "training", False: "eval"}
    inside = {words[part.training] for part in model.modules() if part is not model}
    return f"{words[model.training]}, and that of its layers {' and '.join(sorted(inside))}"


def _shares(model: torch.nn.Module) -> set[float]:
    return {part.p for part in model.modules() if isinstance(part, torch.nn.Dropout)}


BASE: dict[str, Any] = {
    "begin": lambda model: model.eval(),
    "end": lambda model, was: model.train(was),
    "logits": lambda logits: logits[:, -1],
    "row": lambda noise, i: noise[i],
    "draw": draw,
    "read": lambda model, text, prompt: model(text)[0],
    "cut": lambda text, prompt: text[:, prompt.shape[1] :],
}


def base(model: Any, prompt: Tensor, noise: Tensor, **steps: Any) -> Any:
    """The reference solution. Each step can be replaced."""
    step = SimpleNamespace(**BASE | steps)
    was = model.training
    text = prompt
    step.begin(model)
    for i in range(len(noise)):
        logits = step.read(model, text, prompt)
        new = step.draw(step.logits(logits), step.row(noise, i))
        text = torch.cat([text, new], dim=1)
    step.end(model, was)
    return step.cut(text, prompt)


def base_by(**steps: Any) -> Answer:
    """The baseline with one step replaced."""
    return partial(base, **steps)


def no_dropout(model: Any) -> None:
    for part in model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0


def seeded(model: Any) -> None:
    torch.manual_seed(0)


def eval_in_the_loop(model: Any, prompt: Tensor, noise: Tensor) -> Any:
    """eval() after the first pass."""

    def read(model: Any, text: Tensor, prompt: Tensor) -> Any:
        logits, _ = model(text)
        model.eval()
        return logits

    return base(model, prompt, noise, begin=lambda model: None, read=read)


def with_a_cache(model: Any, prompt: Tensor, noise: Tensor) -> Any:
    was = model.training
    tokens = loop(model.eval(), prompt, noise)
    model.train(was)
    return tokens


def only_the_parts(model: Any, was: bool) -> None:
    """Set only the model's own flag: its layers stay in eval mode."""
    model.training = was


REPAIRED_BASELINE = Exercise(
    notebook="04",
    hints=(
        "Which layer of the model draws its own random numbers, and in which mode? In which "
        "mode should training find the model afterwards?",
        "`model.training` is the model's mode. `model.eval()` turns dropout off. "
        "`model.train(mode)` takes the mode as an argument.",
        "was_training = model.training; model.eval(); the loop; then model.train(was_training)",
    ),
    right=solutions.repaired_baseline,
    cases=[
        Case(run_baseline, T=5, n=6, training=False),
        Case(run_baseline, T=5, n=6, training=True),
        Case(run_baseline, T=1, n=7, training=True),
        Case(run_baseline, T=3, n=1, training=False, dropout=0.1),
        Case(run_baseline, T=4, n=6, training=True, block_size=9),  # to the end of the block
        Case(run_baseline, T=40, n=3, training=True, dropout=0.2, block_size=64),
    ],
    mistakes={
        "something besides the noise is random: dropout is on in training mode, and "
        "model.eval() turns it off.": base_by(begin=lambda model: None),
        "a seed makes two runs equal, but dropout is still on: model.eval() turns it off.": (
            base_by(begin=seeded, end=lambda model, was: None)
        ),
        "the model is left in eval mode, so training continues without dropout: save "
        "model.training before eval(), and restore it.": base_by(end=lambda model, was: None),
        "the model is put into training mode at the end, whatever it was before: "
        "model.train(mode) takes the mode.": base_by(end=lambda model, was: model.train()),
        "the mode at the end is the opposite of the original one: model.train(was_training).": (
            base_by(end=lambda model, was: model.train(not was))
        ),
        "model.training is set by hand, so the layers keep their mode: "
        "model.train(was_training) sets all.": base_by(end=only_the_parts),
        "eval() comes after the first pass, which has dropout: it belongs before the loop.": (
            eval_in_the_loop
        ),
        "eval() comes at the end and train() before the loop: swap them.": base_by(
            begin=lambda model: model.train(), end=lambda model, was: model.eval()
        ),
        "the dropout rate is set to 0 and never restored: model.eval() turns dropout off and "
        "keeps the rate.": base_by(begin=no_dropout),
        "the prompt is returned in front of the new tokens: leave it out.": base_by(
            cut=lambda text, prompt: text
        ),
        "the last T tokens are returned: those after the first T are the new ones.": base_by(
            cut=lambda text, prompt: text[:, -prompt.shape[1] :]
        ),
        "only the last token is read: without a cache every pass needs the whole text.": base_by(
            read=lambda model, text, prompt: model(text[:, -1:])[0]
        ),
        "only the prompt is read, again and again: read the text so far.": base_by(
            read=lambda model, text, prompt: model(prompt)[0]
        ),
        "a window as long as the prompt is read: a pass needs the whole text.": base_by(
            read=lambda model, text, prompt: model(text[:, -prompt.shape[1] :])[0]
        ),
        "the first logits are used: use the last ones, which are logits[:, -1].": base_by(
            logits=lambda logits: logits[:, 0]
        ),
        "the noise is not used, and the likeliest token is chosen.": base_by(
            draw=lambda logits, row: logits.argmax(-1, keepdim=True)
        ),
        "each step uses the first row of noise: there is one for each token.": base_by(
            row=lambda noise, i: noise[0]
        ),
        "a cache is on: the baseline is what the cached text is compared with, so it has none.": (
            with_a_cache
        ),
        "nothing is returned: return the new tokens.": base_by(cut=lambda text, prompt: None),
    },
    advice={
        "what is returned": "Return the n new tokens, (1, n), without the prompt.",
        "has a cache on": "The baseline is what the cached text is compared with.",
        "the tokens": (
            "It must be the true text, in eval mode: read the whole text at each step, and sample "
            "from the last logits with a row of noise."
        ),
        "the mode of": (
            "Save model.training at the start, and pass it to model.train(…) at the end."
        ),
        "dropout rate": "model.eval() turns dropout off and keeps its rate.",
    },
    axes=[("text", "token")],
)


# ------------------------------------------------------------------ check_length


def run_length(answer: Answer, T: int, n_new: int, block_size: int) -> Pairs:
    """One call: it returns None, or raises a ValueError that says how many tokens fit."""
    room = block_size + 1 - T
    try:
        said = answer(T, n_new, block_size)
        end = "nothing is raised"
        words = ""
    except Exception as error:
        said = None
        end = "a ValueError" if isinstance(error, ValueError) else f"a {type(error).__name__}"
        words = str(error)
    yield "what happens", end
    yield "what is returned", form(said)
    if n_new > room > 0:  # after a prompt that does not fit there is no such number
        numbers = re.findall(r"\d+", words.replace(",", ""))
        missing = end == "a ValueError" and str(room) not in numbers
        yield "the message does not say how many tokens are possible", missing


def lengths(block_size: int, prompts: Iterable[int]) -> list[Case]:
    """For each prompt length: as many tokens as fit, one more, and others."""
    cases = []
    for T in prompts:
        room = block_size + 1 - T
        for n_new in (room, room + 1, 1, room - 1, room + 40, 500):
            if n_new > 0:
                cases.append(Case(run_length, T=T, n_new=n_new, block_size=block_size))
    return cases


def length_by(
    room: Any = lambda T, n, block: block + 1 - T,
    fits: Any = lambda T, n, block: block >= T,
    words: Any = lambda T, n, room: f"a prompt of {T} leaves room for {room}, not {n}",
    error: Any = ValueError,
    result: Any = None,
) -> Answer:
    """check_length with another number of tokens, error or result."""

    def check_length(T: int, n_new: int, block_size: int) -> Any:
        most = room(T, n_new, block_size)
        if not fits(T, n_new, block_size) or n_new > most:
            raise error(words(T, n_new, most))
        return result

    return check_length


def as_answer(no: Any, yes: Any) -> Answer:
    """check_length that returns its answer."""

    def check_length(T: int, n_new: int, block_size: int) -> Any:
        return no if block_size < T or n_new > block_size + 1 - T else yes

    return check_length


CHECK_LENGTH = Exercise(
    notebook="04",
    hints=(
        "A block of 4 positions and a prompt of 4 tokens: can the model generate one more "
        "token, and which positions does it read for that?",
        "Which positions are read? The prompt's, and those of all new tokens but one: the last "
        "is only returned. `block_size - 1` is the last valid position.",
        "room = block_size + 1 - T; raise a ValueError with room in its message if T > block_size "
        "or n_new > room",
    ),
    right=solutions.check_length,
    cases=[
        *lengths(64, [20]),
        *lengths(64, [1, 63, 64]),
        *(Case(run_length, T=T, n_new=1, block_size=64) for T in (65, 66, 200)),
        *lengths(8, [3, 8]),
        *lengths(256, [100]),
        *lengths(1, [1]),
        Case(run_length, T=20, n_new=0, block_size=64),
        Case(run_length, T=70, n_new=0, block_size=64),
        Case(run_length, T=65, n_new=0, block_size=64),
    ],
    mistakes={
        "one token too few is allowed: the last new token is returned and never read, so it needs "
        "no position.": length_by(room=lambda T, n, block: block - T),
        "one token too many is allowed, and generation breaks before it: n - 1 of n new tokens "
        "are read.": length_by(room=lambda T, n, block: block + 2 - T),
        "any number of tokens is allowed after any prompt: compare n_new with the room.": (
            length_by(room=lambda T, n, block: n)
        ),
        "the prompt is ignored: it takes T positions of the block.": length_by(
            room=lambda T, n, block: block
        ),
        "the sign of the 1 is wrong: room is block_size + 1 - T, two tokens more than "
        "yours.": length_by(room=lambda T, n, block: block - 1 - T),
        "a prompt of exactly block_size is refused, but it fits: one token can follow.": length_by(
            fits=lambda T, n, block: block > T
        ),
        "every prompt is refused, or every number of tokens: raise only where the model cannot.": (
            length_by(fits=lambda T, n, block: False)
        ),
        "the condition is the wrong way round: raise if the tokens do not fit.": (
            lambda T, n_new, block_size: (
                None if n_new > block_size + 1 - T else length_by(room=lambda *_: -1)(T, n_new, 0)
            )
        ),
        "64 is hard-coded in your function: block_size is the block's length.": (
            lambda T, n_new, block_size: length_by()(T, n_new, 64)
        ),
        "a prompt that does not fit must be an error even if no token is requested: T > "
        "block_size.": length_by(fits=lambda T, n, block: True),
        "you raise if no token is requested: zero tokens fit.": length_by(
            fits=lambda T, n, block: block >= T and n > 0
        ),
        "False is returned if the tokens do not fit: raise a ValueError.": as_answer(False, True),
        "True is returned if the tokens fit: return nothing.": length_by(result=True),
        "a message is returned if the tokens do not fit: `raise ValueError(text)`.": as_answer(
            "too long", None
        ),
        "the error itself is returned: `raise` it.": as_answer(ValueError("too long"), None),
        "a message is printed or None returned, and nothing is raised: raise a ValueError.": (
            as_answer(None, None)
        ),
        "an AssertionError is raised, but `python -O` removes assertions: raise a "
        "ValueError.": length_by(error=AssertionError),
        "an IndexError is raised, like the model's: raise a ValueError.": length_by(
            error=IndexError
        ),
        "the message has no number: say how many tokens are possible.": length_by(
            words=lambda T, n, room: "too long"
        ),
        "the message says how many tokens were requested, not how many are possible.": length_by(
            words=lambda T, n, room: f"{n} tokens do not fit after {T}"
        ),
        "the message says by how many it is too long: say how many are possible.": length_by(
            words=lambda T, n, room: f"{n - room} tokens too many"
        ),
    },
    advice={
        "what happens": (
            "After a prompt of T tokens there is room for block_size + 1 - T more; raise a "
            "ValueError for anything beyond."
        ),
        "what is returned": "Raise a ValueError if the tokens do not fit, else return nothing.",
        "the message": "It must contain block_size + 1 - T in digits.",
    },
)
