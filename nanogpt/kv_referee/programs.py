"""A scenario as a program: what is done with a model's sessions, step by step, as plain data.

Everything that the referee tries is such a list of steps. So one function runs every scenario, one
says which logits are expected (each text is read once without a cache), one makes a failing
scenario shorter, and one prints it as a script.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from .contract import Model, Session

Ids = tuple[tuple[int, ...], ...]  # the tokens of each text, (B, t)


@dataclass(frozen=True)
class Start:
    """An empty session for this many texts."""

    session: str
    rows: int = 1


@dataclass(frozen=True)
class Read:
    """The next tokens of a session's texts."""

    session: str
    ids: Ids


@dataclass(frozen=True)
class Rewind:
    """Forget the last n tokens of each text."""

    session: str
    n: int


@dataclass(frozen=True)
class Reorder:
    """Text i continues from text rows[i]."""

    session: str
    rows: tuple[int, ...]


@dataclass(frozen=True)
class Keep:
    """Only these texts stay."""

    session: str
    rows: tuple[int, ...]


@dataclass(frozen=True)
class Fork:
    """A second session, `into`, that continues from here."""

    session: str
    into: str


ProgramStep = Start | Read | Rewind | Reorder | Keep | Fork
Program = tuple[ProgramStep, ...]
Length = int | tuple[int, int]  # of a piece; (2, 3) has 2 tokens, then 3 wrong ones, taken back


@dataclass
class Written:
    """A text as a session held it at its end, with the logits that its tokens got."""

    session: str
    row: int  # of the batch
    ids: Tensor  # (T,)
    logits: Tensor  # (T, V)
    steps: list[int]  # of each token, the index of the step that read it
    rows: list[int]  # of each token, its row in that step

    def starts_at(self, token: int) -> int:
        """The first token of the piece that this token was read in."""
        return self.steps.index(self.steps[token])


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

    @property
    def place(self) -> tuple[int, int]:
        """The row and the column of the wrong token in that step."""
        assert self.text is not None
        return self.text.rows[self.at], self.at - self.text.starts_at(self.at)


@dataclass
class _Held:
    """What a session has read so far."""

    session: Session
    numbers: list[int]  # of its texts
    ids: Tensor  # (B, T)
    rows: Tensor  # (B, T): the row of each token when it was read
    logits: Tensor | None = None  # (B, T, V)
    steps: list[int] = field(default_factory=list)

    def read(self, step: int, ids: Tensor) -> None:
        """Read the next tokens.  (B, t)"""
        logits = self.session.read(ids)
        self.logits = logits if self.logits is None else torch.cat([self.logits, logits], 1)
        self.ids = torch.cat([self.ids, ids], 1)
        rows = torch.arange(len(ids))[:, None].expand(ids.shape)
        self.rows = torch.cat([self.rows, rows], 1)
        self.steps += [step] * ids.shape[1]

    def written(self, name: str, rows: Iterable[int]) -> list[Written]:
        """These texts as they are now."""
        if self.logits is None:
            return []
        found = []
        for i in rows:
            steps, read_as = list(self.steps), self.rows[i].tolist()
            found.append(
                Written(name, self.numbers[i], self.ids[i], self.logits[i], steps, read_as)
            )
        return found

    def select(self, rows: Sequence[int]) -> None:
        """Text i continues from text rows[i]."""
        self.ids = self.ids[list(rows)]
        self.rows = self.rows[list(rows)]
        self.logits = None if self.logits is None else self.logits[list(rows)]

    def forget(self, n: int) -> None:
        """Drop the last n tokens."""
        end = self.ids.shape[1] - n
        self.ids = self.ids[:, :end]
        self.rows = self.rows[:, :end]
        self.logits = None if self.logits is None else self.logits[:, :end]
        self.steps = self.steps[:end]


def run(model: Model, program: Program, cache: str) -> list[Written]:
    """Run a program and return all texts that its sessions have read, also those that left.

    A session is dropped after its last step, so that a model may free what it holds. Raises
    whatever the model raises.
    """
    held: dict[str, _Held] = {}
    texts: list[Written] = []
    last = {name: i for i, step in enumerate(program) for name in _names(step)}
    for i, step in enumerate(program):
        if isinstance(step, Start):
            hints = (room(program, step.session), is_rewound(program, step.session))
            session = model.start(cache, step.rows, *hints)
            empty = torch.empty(step.rows, 0, dtype=torch.long)
            held[step.session] = _Held(session, list(range(step.rows)), empty, empty)
            del session  # the only reference is in `held`
        else:
            one = held[step.session]
            if isinstance(step, Read):
                one.read(i, torch.tensor(step.ids))
            elif isinstance(step, Rewind):
                one.session.rewind(step.n)
                one.forget(step.n)
            elif isinstance(step, Reorder):
                one.session.reorder(list(step.rows))
                texts += one.written(step.session, set(range(len(one.ids))) - set(step.rows))
                one.select(step.rows)
            elif isinstance(step, Keep):
                one.session.keep(list(step.rows))
                texts += one.written(step.session, set(range(len(one.ids))) - set(step.rows))
                one.numbers = [one.numbers[row] for row in step.rows]
                one.select(step.rows)
            else:
                held[step.into] = replace(one, session=one.session.fork(), steps=list(one.steps))
            del one
        for name in _names(step):
            if last[name] == i and name in held:
                texts += held[name].written(name, range(len(held[name].ids)))
                del held[name]
    return texts


def _names(step: ProgramStep) -> tuple[str, ...]:
    """The sessions that a step uses."""
    return (step.session, step.into) if isinstance(step, Fork) else (step.session,)


def sessions(program: Program) -> list[str]:
    """The names of a program's sessions, in the order in which they begin."""
    return list(dict.fromkeys(name for step in program for name in _names(step)))


def room(program: Program, session: str) -> int:
    """The most tokens that a session holds, or one that was forked from it."""
    levels: dict[str, int] = {}
    highest: dict[str, int] = {}
    for step in program:
        if isinstance(step, Read):
            levels[step.session] = levels.get(step.session, 0) + len(step.ids[0])
        elif isinstance(step, Rewind):
            levels[step.session] -= step.n
        elif isinstance(step, Fork):
            levels[step.into] = levels.get(step.session, 0)
            if step.session == session:  # the second session has as much room
                highest[session] = max(highest.get(session, 0), room(program, step.into))
        level = levels.get(step.session, 0)
        highest[step.session] = max(highest.get(step.session, 0), level)
    return max(highest.get(session, 0), levels.get(session, 0))


def is_rewound(program: Program, session: str) -> bool:
    """Whether tokens of this session are taken back, or of one that was forked from it."""
    names = {session}
    for step in program:
        if isinstance(step, Fork) and step.session in names:
            names.add(step.into)
    return any(isinstance(step, Rewind) and step.session in names for step in program)


def is_valid(program: Program) -> bool:
    """Whether the steps fit together: sessions exist, and no more is taken back than was read."""
    levels: dict[str, int] = {}
    rows: dict[str, int] = {}
    for step in program:
        if isinstance(step, Start):
            levels[step.session], rows[step.session] = 0, step.rows
            continue
        if step.session not in levels:
            return False
        if isinstance(step, Read):
            if len(step.ids) != rows[step.session] or not step.ids[0]:
                return False
            levels[step.session] += len(step.ids[0])
        elif isinstance(step, Rewind):
            levels[step.session] -= step.n
            if levels[step.session] < 0:
                return False
        elif isinstance(step, Fork):
            levels[step.into], rows[step.into] = levels[step.session], rows[step.session]
        else:
            if max(step.rows) >= rows[step.session]:
                return False
            rows[step.session] = len(step.rows)
    return any(isinstance(step, Read) for step in program)


def reads_of(program: Program) -> list[Read]:
    """The steps that read tokens."""
    return [step for step in program if isinstance(step, Read)]


def tokens_read(program: Program) -> int:
    """The number of tokens that a program reads through caches."""
    return sum(len(step.ids) * len(step.ids[0]) for step in reads_of(program))


# ------------------------------------------------------------------ writing programs


def ids_of(texts: Tensor) -> Ids:
    """A tensor of ids as the data of a step.  (B, t)"""
    return tuple(tuple(row) for row in texts.tolist())


def in_pieces(
    texts: Tensor, lengths: Iterable[Length], vocab_size: int, session: str = "a"
) -> Program:
    """Read texts in pieces of these lengths through one session.  (B, T)

    (2, 3) has 2 tokens and 3 wrong ones, which are taken back.
    """
    steps: list[ProgramStep] = [Start(session, len(texts))]
    start = 0
    for length in lengths:
        n, wrong = length if isinstance(length, tuple) else (length, 0)
        piece = texts[:, start : start + n]
        start += n
        if wrong:
            # Wrong tokens: each differs from the text's token there.
            first = texts[:, min(start, texts.shape[1] - 1)][:, None]
            others = (first + 1 + torch.arange(wrong)) % vocab_size
            piece = torch.cat([piece, others], dim=1)
        if piece.shape[1]:
            steps.append(Read(session, ids_of(piece)))
        if wrong:
            steps.append(Rewind(session, wrong))
    return tuple(steps)


def kept(lengths: Iterable[Length]) -> int:
    """The number of tokens that are kept of pieces of these lengths."""
    count = 0
    for length in lengths:
        count += length[0] if isinstance(length, tuple) else length
    return count


def fitted(lengths: Iterable[Length], shortest: int) -> list[Length]:
    """The same pieces for a model whose prompts need this many tokens: the first ones are joined.

    Drafts among them are left out.
    """
    if shortest <= 1:
        return list(lengths)
    head = 0
    rest: list[Length] = []
    for length in lengths:
        if rest or head >= shortest:
            rest.append(length)
        else:
            head += kept([length])
    return [head, *rest] if head else rest


def in_single_tokens(program: Program) -> Program:
    """The same for a model that reads one token at a time behind the prompt."""
    steps: list[ProgramStep] = []
    begun: set[str] = set()
    for step in program:
        if isinstance(step, Fork):
            begun.add(step.into)
        if isinstance(step, Read) and step.session in begun:
            columns = range(len(step.ids[0]))
            steps += [replace(step, ids=tuple((row[i],) for row in step.ids)) for i in columns]
        else:
            steps.append(step)
        if isinstance(step, Read):
            begun.add(step.session)
    return tuple(steps)


def by_turns(*programs: Program) -> Program:
    """The steps of several programs, one of each in turn."""
    steps: list[ProgramStep] = []
    for i in range(max(map(len, programs))):
        steps += [program[i] for program in programs if i < len(program)]
    return tuple(steps)


def changed(
    program: Program, at: int, row: int, column: int, change: Callable[[int], int]
) -> Program:
    """The program with another token at this place of a Read."""
    step = program[at]
    assert isinstance(step, Read)
    texts = [list(text) for text in step.ids]
    texts[row][column] = change(texts[row][column])
    new = replace(step, ids=tuple(map(tuple, texts)))
    return (*program[:at], new, *program[at + 1 :])
