"""The checks of heads that store keys and values themselves: read_on, AskedHead and one_text."""

from __future__ import annotations

import inspect
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from ...attention import attend
from ...sampling import draw_noise, sample
from .. import solutions
from ..traps import MemoryHead, decode
from .exercise import Anew, Answer, Case, Exercise, Pairs
from .head import WIDTH, new_head, run_gradients, run_head, visible
from .loop import SIZE, Watched
from .observing import Arguments, form, numbers

BLOCK = 40  # block size of a model


def head_of(answer: Answer) -> Any:
    """The MemoryHead that an answer refers to: the notebook's own, if it comes from one.

    The notebook's is a subclass of the learner's Head, not of the package's.
    """
    theirs = getattr(inspect.unwrap(answer), "__globals__", {}).get("MemoryHead")
    usable = isinstance(theirs, type) and issubclass(theirs, nn.Module)
    return theirs if usable else MemoryHead


def remembering(answer: Answer, n_layer: int = 2) -> tuple[Watched, list[Any]]:
    """A model of MemoryHeads in eval mode and float64, and its heads."""
    model = Watched(BLOCK, head_of(answer), n_layer).double().eval()
    return model, heads_in(model)


def heads_in(model: nn.Module) -> list[Any]:
    """The heads with a memory."""
    return [module for module in model.modules() if hasattr(module, "memory")]


# ------------------------------------------------------------------ read_on


def run_read(
    answer: Answer, pieces: list[int], B: int = 1, texts: int = 1, begun: int = 0
) -> Pairs:
    """Texts in pieces. The first `begun` pieces are read by another loop, with positions."""
    model, heads = remembering(answer)
    for turn in range(texts):
        for head in heads:
            head.memory = []
        again = ", in a second text" * turn
        generator = torch.Generator().manual_seed(B + turn)
        ids = torch.randint(SIZE, (B, sum(pieces)), generator=generator)
        for number, pos in enumerate(torch.arange(ids.shape[1]).split(pieces)):
            given = Arguments(x=ids[:, pos])
            with torch.no_grad():
                if number < begun:
                    model(ids[:, pos], pos=pos)
                    continue
                model.positions.clear()
                logits = answer(model, *given.tensors.values())
            yield from given.changes()
            after = f"after {int(pos[0])} tokens{again}"
            yield f"the positions at which the model reads {after}", torch.tensor(model.positions)
            yield f"the shape of the result {after}", form(logits)
            yield f"the logits {after}", logits if isinstance(logits, Tensor) else form(logits)


def read_by(start: Any, result: Any = lambda logits: logits) -> Answer:
    """read_on with another first position, computed from heads and tokens, or another result."""

    def read_on(model: Any, x: Tensor) -> Any:
        pos = torch.arange(x.shape[1]) + start(heads_in(model), x)
        return result(model(x, pos=pos)[0])

    return read_on


def count(heads: list[Any]) -> int:
    """The number of tokens in the first head's memory."""
    return sum(k.shape[1] for k, _ in heads[0].memory)


def size_of(heads: list[Any], dim: int) -> int:
    return sum(k.shape[dim] for k, _ in heads[0].memory)


def pass_itself(model: Any, x: Tensor) -> Any:
    return model(x, pos=torch.arange(x.shape[1]) + count(heads_in(model)))


def one_position(model: Any, x: Tensor) -> Any:
    return model(x, pos=torch.full((x.shape[1],), count(heads_in(model))))[0]


def twice(model: Any, x: Tensor) -> Any:
    pass_itself(model, x)
    return pass_itself(model, x)[0]


def forgetful(model: Any, x: Tensor) -> Any:
    logits = pass_itself(model, x)[0]
    for head in heads_in(model):
        head.memory.clear()
    return logits


def only_newest(model: Any, x: Tensor) -> Any:
    return pass_itself(model, x[:, -1:])[0]


def in_training(model: Any, x: Tensor) -> Any:
    model.train()
    return pass_itself(model, x)[0]


def counted() -> Answer:
    """A read_on that counts tokens itself instead of looking into the memories."""
    total = 0

    def start(heads: list[Any], x: Tensor) -> int:
        nonlocal total
        total += x.shape[1]
        return total - x.shape[1]

    return read_by(start)


READ_ON = Exercise(
    notebook="04",
    hints=(
        "At which position is the next token if 12 tokens were read before it? And what knows "
        "how many were read?",
        "`model(x, pos=…)` takes the tokens' positions. Any `MemoryHead` in `model.modules()` "
        "knows how many tokens came before, because its `memory` holds their keys, one piece "
        "per call.",
        "start = sum(k.shape[1] for k, v in head.memory); then return model(x, pos=places(start, "
        "x.shape[1], x))[0]",
    ),
    right=solutions.read_on,
    cases=[
        Case(run_read, pieces=[5, 1, 1], texts=2),
        Case(run_read, pieces=[1, 1, 1]),
        Case(run_read, pieces=[5, 3, 2], B=3),
        Case(run_read, pieces=[4, 1, 1], texts=2),
        Case(run_read, pieces=[3, 2, 2, 1], begun=2),
        Case(run_read, pieces=[30, *[1] * 10]),
        Case(run_read, pieces=[7, 9], B=7),
    ],
    mistakes={
        "each call is numbered from 0: the next tokens continue after those in the "
        "memory.": read_by(lambda heads, x: 0),
        "the pieces in the memory are counted, but a piece may have many tokens: add up their "
        "k.shape[1].": read_by(lambda heads, x: len(heads[0].memory)),
        "only the last piece in the memory is counted: add them all up.": read_by(
            lambda heads, x: heads[0].memory[-1][0].shape[1] if heads[0].memory else 0
        ),
        "only the first piece in the memory is counted: add up all of them.": read_by(
            lambda heads, x: heads[0].memory[0][0].shape[1] if heads[0].memory else 0
        ),
        "the tokens of all heads are added up: each head holds all tokens, so ask one "
        "of them.": read_by(lambda heads, x: len(heads) * count(heads)),
        "keys and values are both counted: a token has one of each.": read_by(
            lambda heads, x: 2 * count(heads)
        ),
        "the batch size k.shape[0] is counted: the tokens are dimension 1.": read_by(
            lambda heads, x: size_of(heads, 0)
        ),
        "the head size k.shape[2] is counted: the tokens are dimension 1.": (
            read_by(lambda heads, x: size_of(heads, 2))
        ),
        "the positions are one too large: after N tokens the next one is at N, because the "
        "first is at 0.": read_by(lambda heads, x: count(heads) + 1),
        "from the second call on, the positions are one too small: after N tokens the next one "
        "is at N.": read_by(lambda heads, x: max(0, count(heads) - 1)),
        "the new tokens are counted before they are read: `start` is the number of tokens "
        "before them.": read_by(lambda heads, x: count(heads) + x.shape[1]),
        "all tokens of a piece get the first one's position: they have consecutive "
        "positions.": one_position,
        "your function keeps its own count: the memories hold what was read, and another text "
        "begins at 0 again.": Anew(counted),
        "model(…) returns logits and a loss: return only the logits, [0].": pass_itself,
        "only the last logits are returned: return all T, (B, T, V).": read_by(
            lambda heads, x: count(heads), lambda logits: logits[:, -1]
        ),
        "only the last token's logits are returned, in a dimension of size 1: T tokens give (B, "
        "T, V).": (read_by(lambda heads, x: count(heads), lambda logits: logits[:, -1:])),
        "probabilities are returned: leave the softmax to `sample`.": read_by(
            lambda heads, x: count(heads), lambda logits: logits.softmax(-1)
        ),
        "tokens are returned: leave the choice to `sample`, which needs logits.": read_by(
            lambda heads, x: count(heads), lambda logits: logits.argmax(-1)
        ),
        "the tokens are read twice: one call of the model is enough.": twice,
        "the memories are cleared after the call: the next tokens need them.": forgetful,
        "only the newest token is read: read all T that are passed in.": only_newest,
        "the model is put into training mode, in which it remembers nothing: do not change the "
        "mode.": (in_training),
    },
    advice={
        "the positions at": (
            "The next token's position is the number of tokens before it, which is the number in "
            "one head's memory."
        ),
        "the shape of the result": (
            "The model returns logits (B, T, V) and a loss: return the logits."
        ),
        "the logits": (
            "Each token must be read once, at the position that equals the number of tokens before "
            "it."
        ),
        "list index": "At first the memory is empty.",
        "StopIteration": "Look for the head among `model.modules()`.",
    },
    axes=[("text", "token", "candidate"), ("token",)],
)


# ------------------------------------------------------------------ AskedHead


def run_memory(
    answer: Answer, pieces: list[int], B: int = 2, texts: int = 1, dropout: float = 0.0
) -> Pairs:
    """Two heads, each with its own memory, filled alternately, then turned off."""
    heads = [new_head(answer, dropout)[0].eval() for _ in range(2)]
    yield "a new head has no self.memory = None", vars(heads[0]).get("memory", "none") is not None
    T = sum(pieces)
    for turn in range(texts):
        again = ", in a second text" * turn
        for head in heads:
            head.memory = []
        for pos in torch.arange(T).split(pieces):
            for number, head in enumerate(heads):
                x = numbers(B, T, WIDTH, seed=10 + 2 * turn + number)
                given = Arguments(x=x[:, pos], pos=pos.clone())
                with torch.no_grad():
                    out = head(*given.tensors.values())
                where = f"from position {int(pos[0])} on{again}" + ", in a second head" * number
                yield from given.changes()
                yield f"the shape of the output {where}", form(out)
                yield f"the output with the memory on, {where}", out
        heads[0].memory = None
        plain = heads[0](numbers(B, 5, WIDTH, seed=10), torch.arange(5))
        yield f"the output when the memory is off again{again}", plain


def run_off(answer: Answer) -> Pairs:
    """Batches of several shapes in eval mode with the memory off."""
    head = new_head(answer)[0].eval()
    for number, (B, T) in enumerate([(4, 6), (4, 6), (3, 5), (1, 1), (2, 7)]):
        out = head(numbers(B, T, WIDTH, seed=number), torch.arange(T))
        yield f"the shape of the output for batch {number}, while the memory is off", form(out)
        yield f"the output for batch {number}, while the memory is off", out
        yield "the head turned its memory on itself", head.memory is not None


def run_mode(answer: Answer) -> Pairs:
    """Training while the memory is on: before a text, and in the middle of one."""
    head, _ = new_head(answer)
    head.memory = []
    x = numbers(2, 6, WIDTH, seed=12)
    pos = torch.arange(6)
    where = "in training mode, while the memory is on"
    yield f"the output {where} and empty", head.train()(x, pos)
    yield "in training the head wrote to its memory", bool(head.memory)
    head.eval()
    yield "the output with the memory on, in eval mode after training", head(x[:, :4], pos[:4])
    yield f"the output {where} and full", head.train()(numbers(3, 5, WIDTH, seed=1), pos[:5])
    head.eval()
    for place in pos[4:].split(1):
        out = head(x[:, place], place)
        yield "the output with the memory on, in a text that goes on after training", out


def on_in_eval(head: Any) -> bool:
    return head.memory is not None and not head.training


def remember(head: Any, k: Tensor, v: Tensor) -> Any:
    """Keep new keys and values; return all so far."""
    head.memory.append((k, v))
    return [torch.cat(rows, dim=1) for rows in zip(*head.memory, strict=True)]


def last_rows(T: int, S: int) -> Tensor:
    """True where the last T of S may attend.  -> (T, S)"""
    return visible(torch.arange(S - T, S), torch.arange(S))


ASKED: dict[str, Any] = {
    "project": lambda head, x: (head.query(x), head.key(x), head.value(x)),
    "on": on_in_eval,
    "keep": remember,
    "mask": last_rows,
    "drops": lambda head: False,
}


class Asked(solutions.Head):
    """The reference solution. Each step can be replaced, which is how mistakes are made."""

    def __init__(self, config: Any, **steps: Any) -> None:
        super().__init__(config)  # type: ignore[no-untyped-call]
        self.memory = None
        self.step = SimpleNamespace(**ASKED | steps)

    def forward(self, x: Tensor, pos: Tensor) -> Tensor:
        q, k, v = self.step.project(self, x)
        if self.step.on(self):
            k, v = self.step.keep(self, k, v)
        out: Tensor = attend(q, k, v, self.step.mask(q.shape[1], k.shape[1]))
        return F.dropout(out, self.dropout) if self.step.drops(self) else out


def asked_by(**steps: Any) -> Answer:
    """A head with one step replaced."""
    return partial(Asked, **steps)


def turned_on(head: Any) -> bool:
    if head.memory is None:
        head.memory = []
    return not head.training


def on_clearing(head: Any) -> bool:
    if head.training and head.memory:
        head.memory.clear()
    return on_in_eval(head)


def read_in_training(head: Any, k: Tensor, v: Tensor) -> Any:
    """All so far; only those of eval mode are kept."""
    rows = [*head.memory, (k, v)]
    if not head.training:
        head.memory.append((k, v))
    return [torch.cat(row, dim=1) for row in zip(*rows, strict=True)]


def keep_by(join: Any) -> Answer:
    """A head that keeps new keys and values, and attends to `join` of its memory."""

    def keep(head: Any, k: Tensor, v: Tensor) -> Any:
        head.memory.append((k, v))
        return join(head.memory)

    return asked_by(keep=keep)


def joined(memory: list[Any], dim: int = 1) -> list[Tensor]:
    return [torch.cat(rows, dim=dim) for rows in zip(*memory, strict=True)]


def old_alone(head: Any, k: Tensor, v: Tensor) -> Any:
    held = joined(head.memory) if head.memory else [k, v]
    head.memory.append((k, v))
    return held


def kept_twice(head: Any, k: Tensor, v: Tensor) -> Any:
    remember(head, k, v)
    return remember(head, k, v)


def all_kept_again(head: Any, k: Tensor, v: Tensor) -> Any:
    held = remember(head, k, v)
    head.memory.append(tuple(held))
    return held


def never_kept(head: Any, k: Tensor, v: Tensor) -> Any:
    return joined([*head.memory, (k, v)])


def last_kept(head: Any, k: Tensor, v: Tensor) -> Any:
    held = never_kept(head, k, v)
    head.memory[:] = [(k, v)]
    return held


def triangle(T: int, S: int) -> Tensor:
    return torch.ones(T, S).tril().bool()


BOTH = "check both conditions, `self.memory is not None and not self.training`"
ASKED_HEAD = Exercise(
    notebook="04",
    hints=(
        "What turns the memory on, and how can a head tell? What must it do while the loss is "
        "measured in eval mode?",
        "Two conditions must both hold: the memory is on, and the model is not in training. Be "
        "careful with the first one: `if []:` does nothing.",
        "if self.memory is not None and not self.training: self.memory.append((k, v)); then k, v = "
        "(torch.cat(rows, dim=1) for rows in zip(*self.memory))",
    ),
    method="forward",
    right=solutions.AskedHead,
    cases=[
        Case(run_off),
        Case(run_memory, pieces=[1, 1, 1, 1, 1]),
        Case(run_memory, pieces=[5, 1, 1]),
        Case(run_mode),
        Case(run_memory, pieces=[5, 3, 2], texts=2, B=3),
        Case(run_memory, pieces=[4, 2, 1], B=1, dropout=0.5),
        Case(run_head, modes=("eval", "training", "eval")),
        Case(run_gradients),
        Case(run_memory, pieces=[60, *[1] * 10, 30], B=1),
    ],
    mistakes={
        f"the memory was never turned on, but something is kept in eval mode anyway: {BOTH}.": (
            asked_by(on=turned_on)
        ),
        "while the memory is off it is None, but your head appends to it: check `self.memory is "
        "not None` first.": asked_by(on=lambda head: not head.training),
        "each piece is read as if it were the first, although the memory is on: an empty list "
        "is falsy, so check `self.memory is not None`; then append and join.": asked_by(
            on=lambda head: bool(head.memory) and not head.training
        ),
        f"in training the memory is used because it is on: {BOTH}.": asked_by(
            on=lambda head: head.memory is not None
        ),
        "the memory is used in training and not in eval mode: it is the other way round.": asked_by(
            on=lambda head: head.memory is not None and head.training
        ),
        "in training your head reads the memory, although it does not write to it: it must do "
        "neither.": asked_by(on=lambda head: head.memory is not None, keep=read_in_training),
        "the memory is emptied in training: a text that is being decoded loses its past.": asked_by(
            on=on_clearing
        ),
        "the newest keys come first in the joined keys, but the mask expects the new tokens in "
        "the last rows.": keep_by(lambda memory: joined(memory[::-1])),
        "only the first piece of the memory is used: join all pairs.": keep_by(
            lambda memory: memory[0]
        ),
        "the new tokens see the earlier ones but not themselves: append them first, then join.": (
            asked_by(keep=old_alone)
        ),
        "each call appends its keys and values twice: once is enough.": asked_by(keep=kept_twice),
        "the joined tensors are appended again: the memory holds each piece once.": asked_by(
            keep=all_kept_again
        ),
        "the memory holds only the last piece, because each call replaces the earlier ones: "
        "append.": (asked_by(keep=last_kept)),
        "the pieces are joined along the batch: the tokens are dimension 1.": keep_by(
            partial(joined, dim=0)
        ),
        "keys and values are swapped when read from the memory: it holds pairs (k, v).": keep_by(
            lambda memory: joined(memory)[::-1]
        ),
        "the keys of all tokens are used, but the values of only the new ones: take both from "
        "the memory.": keep_by(lambda memory: (joined(memory)[0], memory[-1][1])),
        "there is no mask: a token of a piece sees those after it.": asked_by(
            mask=lambda T, S: torch.ones(T, S).bool()
        ),
        "the mask is aligned top left: the T queries belong to the last of the S keys, "
        "order[-x.shape[1]:].": asked_by(mask=triangle),
        "a piece of several tokens gets no mask if the memory holds something: it needs one.": (
            asked_by(mask=lambda T, S: last_rows(T, S) | (T < S))
        ),
        "the mask is (T, T), but there are S keys: with a memory S is larger than T.": asked_by(
            mask=lambda T, S: last_rows(T, T)
        ),
        "a token does not see itself: <=, not <.": asked_by(
            mask=lambda T, S: torch.ones(T, S).tril(S - T - 1).bool() | (torch.arange(S) == 0)
        ),
        "queries and keys are swapped: the memory holds keys.": asked_by(
            project=lambda head, x: (head.key(x), head.query(x), head.value(x))
        ),
        "something is dropped in eval mode: dropout belongs to training.": asked_by(
            drops=lambda head: not head.training
        ),
    },
    advice={
        "shape of the output": "Does it end with `return`, and return (B, T, hs)?",
        "self.memory = None": "Leave the given __init__ as it is.",
        "while the memory is off": "Nothing may be kept if the memory is None.",
        "turned its memory on": "The decoding loop sets head.memory = [].",
        "in training mode, while": "In training the memory is not used.",
        "wrote to its memory": "In training the memory is not used, even if it is on.",
        "off again": "head.memory = None turns it off.",
        "with the memory on": "Append the new pair, then join all: the last T of S keys belong to "
        "the queries.",
        "in eval mode": "Without a memory it is plain causal attention.",
        "gradient": "Without a memory it is plain causal attention, without detach() or no_grad().",
        "NoneType": f"While it is off the memory is None: {BOTH}.",
    },
    axes=[("text", "token", "number")],
)


# ------------------------------------------------------------------ one_text


class Pressed(KeyboardInterrupt):
    """The stop button, pressed by the check."""


def case(T: int, n: int, B: int = 1) -> Arguments:
    """A prompt (B, T) and noise (n, B, V)."""
    generator = torch.Generator().manual_seed(T)
    prompt = torch.randint(SIZE, (B, T), generator=generator)
    return Arguments(prompt=prompt, noise=draw_noise(n, B, SIZE, generator))


def run_text(answer: Answer, model: Any, given: Arguments, which: str) -> Pairs:
    """One text, and what the memories hold afterwards."""
    tokens = answer(model, *given.tensors.values())
    yield from given.changes()
    yield f"the form of {which} text", form(tokens)
    yield f"the tokens of {which} text", tokens if isinstance(tokens, Tensor) else form(tokens)
    yield f"heads with something in their memory after {which} text", held(model)


def held(model: nn.Module) -> int:
    return sum(bool(head.memory) for head in heads_in(model))


def run_texts(answer: Answer) -> Pairs:
    """Texts of several lengths, one after the other."""
    model, _ = remembering(answer)
    yield from run_text(answer, model, case(5, 6), "the first")
    yield from run_text(answer, model, case(1, 5), "the second")
    yield from run_text(answer, model, case(7, 1), "the third")
    yield from run_text(answer, model, case(4, 3, B=2), "the fourth")
    given = case(5, 6).tensors
    yield "the tokens that `decode` generates after all that", decode(model, *given.values())


def run_found(answer: Answer) -> Pairs:
    """Memories filled by another text."""
    model, _ = remembering(answer)
    decode(model, *case(6, 2).tensors.values())
    yield from run_text(answer, model, case(5, 6), "this")


def run_stopped(answer: Answer, error: type[BaseException], after: int, layer: int) -> Pairs:
    """An error in a layer after n passes: does it reach the caller, and what is left over?"""
    model, _ = remembering(answer)
    passes = 0

    def stop(module: nn.Module, given: Any) -> None:
        nonlocal passes
        passes += 1
        if passes > after:
            raise error("stopped by the check")

    block: Any = model.blocks[layer]
    hook = block.ffwd.register_forward_pre_hook(stop)
    try:
        answer(model, *case(5, 9).tensors.values())
        end = "no error"
    except (ValueError, Pressed) as stopped:
        end = type(stopped).__name__
    hook.remove()
    kind = "the stop button" if error is Pressed else "an error"
    yield f"what reaches the caller of {kind} half-way", end
    yield f"heads with something in their memory after {kind}", held(model)
    yield from run_text(answer, model, case(4, 3), "the next")


def empty(heads: list[Any]) -> None:
    for head in heads:
        head.memory.clear()


def text_by(
    before: Any = empty, after: Any = empty, write: Any = decode, last: bool = True
) -> Answer:
    """One text. `last`: the clean-up afterwards also runs after an error."""

    def one_text(model: Any, prompt: Tensor, noise: Tensor) -> Any:
        heads = heads_in(model)
        before(heads)
        try:
            tokens = write(model, prompt, noise)
        except BaseException:
            if last:
                after(heads)
            raise
        after(heads)
        return tokens

    return one_text


def nothing(heads: list[Any]) -> None:
    """Leave the memories as they are."""


def after_exceptions(model: Any, prompt: Tensor, noise: Tensor) -> Any:
    heads = heads_in(model)
    empty(heads)
    try:
        tokens = decode(model, prompt, noise)
    except Exception:
        empty(heads)
        raise
    empty(heads)
    return tokens


def swallowed(errors: Any) -> Answer:
    def one_text(model: Any, prompt: Tensor, noise: Tensor) -> Any:
        heads = heads_in(model)
        empty(heads)
        tokens = None
        try:
            tokens = decode(model, prompt, noise)
        except errors:
            pass
        finally:
            empty(heads)
        return tokens

    return one_text


def renamed(model: Any, prompt: Tensor, noise: Tensor) -> Any:
    try:
        return text_by()(model, prompt, noise)
    except BaseException as error:
        raise ValueError("the text was stopped") from error


def share_a_list(heads: list[Any]) -> None:
    memory: list[Any] = []
    for head in heads:
        head.memory = memory


def remove(heads: list[Any]) -> None:
    for head in heads:
        head.memory = None


def drop_last(heads: list[Any]) -> None:
    for head in heads:
        head.memory[-1:] = []


def with_prompt(model: Any, prompt: Tensor, noise: Tensor) -> Tensor:
    return torch.cat([prompt, decode(model, prompt, noise)], dim=1)


def without_past(model: Any, prompt: Tensor, noise: Tensor) -> Tensor:
    """The loop with memories emptied at each step."""
    x = prompt
    start = 0
    out = []
    for row in noise:
        empty(heads_in(model))
        logits, _ = model(x, pos=torch.arange(start, start + x.shape[1]))
        start += x.shape[1]
        x = sample(logits[:, -1], row)
        out.append(x)
    return torch.cat(out, dim=1)


def no_positions(model: Any, prompt: Tensor, noise: Tensor) -> Tensor:
    x = prompt
    out = []
    for row in noise:
        x = sample(model(x)[0][:, -1], row)
        out.append(x)
    return torch.cat(out, dim=1)


def in_training_mode(model: Any, prompt: Tensor, noise: Tensor) -> Any:
    model.train()
    return decode(model, prompt, noise)


ONE_TEXT = Exercise(
    notebook="04",
    hints=(
        "When must the memories be empty, and which of these moments also comes after an error? "
        "What does Python run however a block ends?",
        "`model.modules()` yields every module, including the heads. `try: … finally: …` runs "
        "its last part even after an error.",
        "clear all memories; then try: return decode(model, prompt, noise); finally: clear all "
        "again",
    ),
    right=solutions.one_text,
    cases=[
        Case(run_texts),
        Case(run_found),
        Case(run_stopped, error=ValueError, after=2, layer=1),
        Case(run_stopped, error=Pressed, after=2, layer=0),
        Case(run_stopped, error=ValueError, after=0, layer=0),
        Case(run_stopped, error=Pressed, after=0, layer=1),
    ],
    mistakes={
        "the memories are never emptied: the next text attends to this one.": text_by(
            nothing, nothing
        ),
        "the memories are emptied at the beginning, but afterwards the heads still hold the "
        "text: empty them at the end, too.": text_by(after=nothing),
        "it assumes that the memories are empty when it begins, but another text had filled "
        "them.": (text_by(before=nothing)),
        "after an error half-way the memories are full: clean-up that must always run belongs "
        "in `finally`.": text_by(last=False),
        "the stop button raises no Exception, so it leaves the memories full: `finally` also "
        "runs after it.": after_exceptions,
        "an error inside is swallowed: it must reach the caller.": swallowed(BaseException),
        "an Exception does not reach the caller: let it propagate after the memories are "
        "emptied.": (swallowed(Exception)),
        "the stop button comes out as another error: `finally` lets it propagate "
        "unchanged.": renamed,
        "only the first head is emptied: each has its own memory.": text_by(
            lambda heads: empty(heads[:1]), lambda heads: empty(heads[:1])
        ),
        "only the first layer's heads are emptied: `model.modules()` has those of all layers.": (
            text_by(lambda heads: empty(heads[:2]), lambda heads: empty(heads[:2]))
        ),
        "only the last head is emptied: that line belongs inside the loop.": text_by(
            lambda heads: empty(heads[-1:]), lambda heads: empty(heads[-1:])
        ),
        "at the end only one head is emptied: that line belongs inside the loop over the heads.": (
            text_by(after=lambda heads: empty(heads[-1:]))
        ),
        "all heads get the same list: each needs its own, or clear() the existing ones.": text_by(
            before=share_a_list
        ),
        "the memories are None afterwards, but a head appends to a list: empty them with "
        "clear().": text_by(after=remove),
        "only the last piece is removed from each memory: clear() removes all.": text_by(
            drop_last, drop_last
        ),
        "the prompt is returned in front of the new tokens: decode returns only the new ones.": (
            text_by(write=with_prompt)
        ),
        "the memories are emptied at each token: within a text they are its past.": text_by(
            write=without_past
        ),
        "the loop passes no positions: call decode, which does.": text_by(write=no_positions),
        "the model is in training mode, in which its heads remember nothing: do not change the "
        "mode.": text_by(write=in_training_mode),
    },
    advice={
        "the form of": "It must return what decode returns, the new tokens.",
        "the tokens of": "All memories must be empty when a text begins.",
        "that `decode` generates": "The heads must be able to remember again: leave empty lists.",
        "after the stop": "Clean-up that must always run belongs in `finally`.",
        "after an error": "Clean-up that must always run belongs in `finally`.",
        "memory after": "Empty the memories of all heads when the text has ended.",
        "reaches the caller": "Let it propagate: `finally` does.",
    },
    axes=[("text", "token")],
)
