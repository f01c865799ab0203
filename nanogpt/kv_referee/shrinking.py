"""Make a failing scenario as short as it gets: fewer sessions, texts, steps and tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from torch import Tensor

from .contract import ERRORS, NoLogits, OutOfTime
from .judging import first_wrong, sizes_of
from .programs import (
    Ids,
    Keep,
    Length,
    PlainPass,
    Program,
    ProgramStep,
    Read,
    Reorder,
    Rewind,
    Start,
    Written,
    in_pieces,
    is_valid,
    sessions,
    tokens_read,
)
from .yardstick import Yardstick

_TRIES = 120  # programs that are tried to make one shorter
_TOKENS = 20_000  # that they read in all
_SIZES = (2, 3, 4, 5, 6, 8, 11, 15, 20)  # tokens of the short texts that are tried first


@dataclass(frozen=True)
class Setting:
    """How a scenario is run, and which logits it should give."""

    run: Callable[[Program], list[Written]]
    expected: Callable[[list[Tensor]], list[Tensor]]
    yard: Yardstick
    inside: Callable[[], float]
    vocab_size: int
    refusals: tuple[type[BaseException], ...]


@dataclass(frozen=True)
class Failure:
    """Where a program goes wrong: the text and its first wrong token, or the exception."""

    program: Program
    text: Written | None = None
    at: int = 0
    error: BaseException | None = None

    @property
    def step(self) -> int | None:
        """The index of the step that returned the wrong logits; None if it is not known."""
        return None if self.text is None else self.text.steps[self.at]


def failure_of(setting: Setting, program: Program) -> Failure | None:
    """Run a program and find its first wrong logits; None if they are right, or not offered."""
    if not is_valid(program):
        return None
    try:
        texts = setting.run(program)
        expected = setting.expected([text.ids for text in texts])
    except OutOfTime:
        raise
    except setting.refusals:
        return None
    except ERRORS as error:
        return Failure(program, error=error)
    if any(len(t.logits) != len(e) for t, e in zip(texts, expected, strict=True)):
        return None
    sizes = sizes_of(setting.yard, [text.logits for text in texts], expected)
    starts = enumerate(first_wrong(sizes, setting.inside()))
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
        # Logits of a wrong shape come with wrong ones; any other exception is a mistake of its own.
        alike = other is not None and (
            type(other.error) is type(found.error) or isinstance(found.error, NoLogits)
        )
        if other is None or not alike:
            return False
        found = other
        return True

    # 1. A short text through one session often shows it, too.
    for program in _simple(setting, failure):
        if fails(program):
            break
    else:
        # 2. Else less and less of the scenario itself, as long as it fails.
        while any(fails(program) for program in _smaller(found)):
            pass
    # 3. Of either, no tokens that are not needed.
    while any(fails(program) for program in _with_shorter_reads(found.program)):
        pass
    return found


def _simple(setting: Setting, failure: Failure) -> Iterator[Program]:
    """Yield the programs that read the beginning of the wrong text through one session."""
    if failure.text is None:
        return
    ids = failure.text.ids[None]
    rewinds = any(isinstance(step, Rewind) for step in failure.program)
    for n in _SIZES:
        if n > min(failure.at + 2, ids.shape[1]):
            break
        ways: list[tuple[Length, ...]] = [(n - 1, 1)]
        if n > 2:
            ways += [(n - 2, 2), (n - 2, 1, 1), (1, n - 1)]
        if rewinds:
            ways += [((n - 1, 1), 1), ((n - 1, 2), 1)]
        for way in ways:
            yield in_pieces(ids[:, :n], way, setting.vocab_size)


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
    moved = setting.yard.sizes(after[None, None], before[None, None])
    return float(moved.max()) > setting.inside()


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


def with_distinct_tokens(program: Program, vocab_size: int) -> Program | None:
    """The program with distinct tokens in each text; None if the vocabulary is too small.

    Equal tokens at the same place stay equal, so that texts still share their beginnings.
    """
    names: dict[tuple[int, int], int] = {}  # of each token at its place
    lengths: dict[str, int] = {}
    steps: list[ProgramStep] = []
    for step in program:
        length = lengths.get(step.session, 0)
        if isinstance(step, Read):
            rows = []
            for row in step.ids:
                new = [names.setdefault((length + i, x), len(names)) for i, x in enumerate(row)]
                rows.append(tuple(new))
            lengths[step.session] = length + len(step.ids[0])
            step = replace(step, ids=tuple(rows))
        elif isinstance(step, Rewind):
            lengths[step.session] = length - step.n
        steps.append(step)
    return tuple(steps) if len(names) <= vocab_size else None


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
    steps = [step for step in program if step.session == name and not isinstance(step, PlainPass)]
    if any(isinstance(step, (Reorder, Keep)) for step in steps):
        return
    (rows,) = {len(step.ids) for step in steps if isinstance(step, Read)} or {1}
    for gone in range(rows) if rows > 1 else ():
        smaller: list[object] = []
        for step in program:
            if step.session != name or isinstance(step, PlainPass):
                smaller.append(step)
            elif isinstance(step, Start):
                smaller.append(replace(step, rows=rows - 1))
            elif isinstance(step, Read):
                smaller.append(replace(step, ids=step.ids[:gone] + step.ids[gone + 1 :]))
            else:
                smaller.append(step)
        yield tuple(smaller)  # type: ignore[arg-type]


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
