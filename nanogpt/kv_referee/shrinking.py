"""Make a failing scenario as short as it gets: fewer sessions, texts, steps and tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from torch import Tensor

from .errors import ERRORS, OutOfTime
from .judging import first_wrong, sizes_of
from .programs import (
    Failure,
    Ids,
    Keep,
    Program,
    ProgramStep,
    Read,
    Reorder,
    Rewind,
    Start,
    Written,
    is_valid,
    sessions,
    tokens_read,
)
from .reference import Reference
from .yardstick import Yardstick

_TRIES = 120  # programs that are tried to make one shorter
_TOKENS = 20_000  # that they read in all


@dataclass(frozen=True)
class Setting:
    """How a program is run, and the logits that its texts should have."""

    run: Callable[[Program], list[Written]]
    reference: Reference

    @property
    def yard(self) -> Yardstick:
        return self.reference.yard

    @property
    def vocab_size(self) -> int:
        return self.reference.model.vocab_size

    @property
    def refusals(self) -> tuple[type[BaseException], ...]:
        return self.reference.model.refusals

    def apart(self, a: Tensor, b: Tensor) -> float:
        """How far the logits of one token are apart.  (V,) twice"""
        return float(self.yard.sizes(a[None, None], b[None, None]).max())


def failure_of(setting: Setting, program: Program) -> Failure | None:
    """Run a program and find its first wrong logits; None if they are right, or not offered."""
    if not is_valid(program):
        return None
    try:
        texts = setting.run(program)
        expected = setting.reference.expected([text.ids for text in texts])
    except OutOfTime:
        raise
    except setting.refusals:
        return None
    except ERRORS as error:
        return Failure(program, error=error)
    if any(len(t.logits) != len(e) for t, e in zip(texts, expected, strict=True)):
        return None
    sizes = sizes_of(setting.yard, [text.logits for text in texts], expected)
    starts = enumerate(first_wrong(sizes, setting.yard.inside))
    wrong = [(texts[i].steps[at], i, at) for i, at in starts if at is not None]
    if not wrong:
        return None
    _, i, at = min(wrong)
    return Failure(program, texts[i], at)


def shortest(setting: Setting, failure: Failure) -> Failure:
    """The shortest failure of the same kind that is found."""
    tries = iter(range(_TRIES))
    tokens = 0
    found = failure

    def fails(program: Program) -> bool:
        """Whether this shorter program also fails; if so, it is kept."""
        nonlocal found, tokens
        tokens += tokens_read(program)
        if tokens > _TOKENS or next(tries, None) is None:
            return False
        try:
            other = failure_of(setting, program)
        except OutOfTime:  # what was found so far is reported
            for _ in tries:
                pass
            return False
        # Another exception is a mistake of its own.
        if other is None or type(other.error) is not type(found.error):
            return False
        found = other
        return True

    # 1. Less and less of the scenario, as long as it fails.
    while any(fails(program) for program in _smaller(found)):
        pass
    # 2. No tokens that are not needed.
    while any(fails(program) for program in _with_shorter_reads(found.program)):
        pass
    return found


def keeps_state(setting: Setting, failure: Failure) -> bool:
    """Whether the wrong logits are others after another program was run.

    Then something outlives the model itself, such as a dictionary of its class.
    """
    if failure.text is None:
        return False
    steps = [
        replace(step, ids=other_ids(step.ids, setting.vocab_size))
        if isinstance(step, Read)
        else step
        for step in failure.program
    ]
    before = logits_at(setting, failure.program, failure)
    setting.run(tuple(steps))
    after = logits_at(setting, failure.program, failure)
    return setting.apart(after, before) > setting.yard.inside


def other_ids(ids: Ids, vocab_size: int) -> Ids:
    """Another token at each place."""
    return tuple(tuple((x + 1) % vocab_size for x in row) for row in ids)


def logits_at(setting: Setting, program: Program, failure: Failure) -> Tensor:
    """The logits of the failure's wrong token, if this program is run instead.  (V,)"""
    assert failure.text is not None
    for text in setting.run(program):
        same = (text.session, text.row) == (failure.text.session, failure.text.row)
        if same and len(text.logits) > failure.at:
            return text.logits[failure.at]
    return failure.text.logits[failure.at]


def earlier_requests(program: Program, vocab_size: int) -> Iterator[Program]:
    """Yield this program behind earlier requests: of its first prompt, of another, of both."""
    same = next(step.ids for step in program if isinstance(step, Read))
    rows = len(same)
    other = other_ids(same, vocab_size)
    for ids in ((same,), (other,), (other, same)):
        before: list[ProgramStep] = []
        for i, one in enumerate(ids):
            name = f"an earlier request{' too' * i}"
            before += [Start(name, rows), Read(name, one)]
            before.append(Read(name, tuple(text[-1:] for text in one)))
        yield (*before, *program)


def _smaller(failure: Failure) -> Iterator[Program]:
    """Yield the programs with one thing less than this one."""
    program = failure.program
    # 1. Nothing behind the step that is wrong.
    if failure.step is not None and failure.step + 1 < len(program):
        yield program[: failure.step + 1]
    # 2. A session less.
    for name in sessions(program):
        yield tuple(
            step for step in program if step.session != name and getattr(step, "into", None) != name
        )
    # 3. A text less in a batch.
    for name in sessions(program):
        yield from _fewer_rows(program, name)
    # 4. A step less; of what is taken back, also the tokens.
    for i in reversed(range(len(program))):
        step = program[i]
        if isinstance(step, Start):
            continue
        yield program[:i] + program[i + 1 :]
        before = program[i - 1]
        if isinstance(step, Rewind) and isinstance(before, Read) and len(before.ids[0]) > step.n:
            kept = tuple(row[: -step.n] for row in before.ids)
            yield (*program[: i - 1], replace(before, ids=kept), *program[i + 1 :])


def _fewer_rows(program: Program, name: str) -> Iterator[Program]:
    """Yield the programs in which this session has one text less."""
    steps = [step for step in program if step.session == name]
    if any(isinstance(step, (Reorder, Keep)) for step in steps):
        return
    (rows,) = {len(step.ids) for step in steps if isinstance(step, Read)} or {1}
    for gone in range(rows) if rows > 1 else ():
        smaller: list[ProgramStep] = []
        for step in program:
            if step.session != name:
                smaller.append(step)
            elif isinstance(step, Start):
                smaller.append(replace(step, rows=rows - 1))
            elif isinstance(step, Read):
                smaller.append(replace(step, ids=step.ids[:gone] + step.ids[gone + 1 :]))
            else:
                smaller.append(step)
        yield tuple(smaller)


def _with_shorter_reads(program: Program) -> Iterator[Program]:
    """Yield the programs in which one piece lacks half of its tokens, or one."""
    for i, step in enumerate(program):
        if not isinstance(step, Read):
            continue
        n = len(step.ids[0])
        for part in dict.fromkeys((n // 2, 1)):
            if not 0 < part < n:
                continue
            for kept in (slice(part, None), slice(None, -part)):
                shorter = replace(step, ids=tuple(row[kept] for row in step.ids))
                yield (*program[:i], shorter, *program[i + 1 :])
