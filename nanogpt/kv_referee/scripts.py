"""Bugs as scripts that run without this project: they import torch and what was judged."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .contract import ERRORS, Form, Model, NoLogits, first_line
from .padding import Padding
from .programs import (
    Fork,
    Keep,
    PlainPass,
    Program,
    Read,
    Reorder,
    Rewind,
    Start,
    is_rewound,
    room,
    sessions,
)
from .report import Judgement, ScenarioKind
from .shrinking import Failure
from .yardstick import Yardstick

_SCRIPT = '''\
"""{name}: {way}.

In the report: {words}
Below is the shortest way found that still shows it: there, size and tokens may differ.
"""

{imports}

{model}
with torch.no_grad():
{body}
# How far two logits have moved relative to each other; a cache must not move them.
print(float(moved.max() - moved.min()))
'''
_FAILS = '''\
"""{name}: {way}.

In the report: {words}
"""

{imports}

{model}
with torch.no_grad():
{body}
'''
_NAMES = "abcdefghijklmnopqrstuvwxyz"


class StepCode:
    """The code of each step, for an adapter in the variable MODEL."""

    def __init__(self, model: Model, cache: str):
        self.model = model
        self.cache = cache

    def build(self, dtype: torch.dtype | None) -> tuple[list[str], list[str]]:
        """The imports, and the lines that make MODEL in this dtype."""
        imports, lines = _made(self.model.given)
        if dtype == torch.float64:
            if callable(getattr(self.model.given, "to", None)):
                lines.append("MODEL = MODEL.to(torch.float64) or MODEL")
            elif self.model.module is not None:
                name = _attribute(self.model.given, self.model.module)
                lines.append(f"MODEL.{name}.double()" if name else "MODEL.double()")
        return imports, lines

    def start(self, name: str, rows: int, room: int, rewinds: bool) -> list[str]:
        hints = ""
        if hasattr(self.model.given, "caches"):
            hints = f", cache={self.cache!r}, room={room}, rewinds={rewinds}"
        return [f"{name} = MODEL.start({rows}{hints})"]

    def read(self, name: str, ids: str) -> str:
        return f"{name}.read(torch.tensor({ids}))"

    def rewind(self, name: str, n: int) -> str:
        return f"{name}.rewind({n})"

    def reorder(self, name: str, rows: list[int]) -> str:
        return f"{name}.reorder({rows})"

    def keep(self, name: str, rows: list[int]) -> str:
        return f"{name}.keep({rows})"

    def fork(self, name: str, into: str) -> str:
        return f"{into} = {name}.fork()"

    def plain(self, ids: str) -> str:
        return f"MODEL.plain(torch.tensor({ids}))"

    def padded(self, ids: str, mask: str, lengths: str) -> str:
        return f"MODEL.padded(torch.tensor({ids}), torch.tensor({mask}), {lengths})"


def _calls_of(model: Model, cache: str) -> StepCode:
    """How the steps are written for this model."""
    own = getattr(model.given, "calls", StepCode)
    calls: StepCode = own(model, cache)
    return calls


def script(model: Model, yard: Yardstick, finding: Judgement, failure: Failure) -> str:
    """A Python script that runs the program and prints how far its wrong logits are off."""
    calls = _calls_of(model, finding.cache or model.caches[0])
    # 1. The model, in the dtype in which it was judged.
    own = finding.kind is ScenarioKind.OWN_DTYPE
    imports, lines = calls.build(None if own else yard.dtype)
    threads = finding.kind is ScenarioKind.THREADS and len(sessions(failure.program)) > 1
    if threads:
        imports.append(_source_of_threads())
    # 2. The steps.
    wrong = failure.step
    if threads:
        body = _in_threads(calls, model, failure, wrong)
    else:
        body = _steps(calls, model, failure.program, wrong)
    parts = _filled(finding, model, imports, lines)
    if failure.text is None:
        if isinstance(failure.error, NoLogits):  # this room's class: the script shows the logits
            reads = [".read(" in line and "=" not in line for line in body]
            body = [f"print({x})" if seen else x for x, seen in zip(body, reads, strict=True)]
        if failure.error is not None:
            body.append(f"# {type(failure.error).__name__}: {first_line(failure.error)}")
        return _FAILS.format(**parts, body=_indented(body))
    # 3. The wrong logits, and the right ones.
    text, at = failure.text, failure.at
    least = max(at + 1, model.limits.shortest)
    ids = text.ids[:least].tolist()
    got = model.forms.get("read", Form("{}", 3))
    plain = model.forms.get("plain", Form("{}", 3))
    step = failure.program[text.steps[at]]
    assert isinstance(step, Read)
    rows = len(step.ids)
    row = 0 if rows == 1 else _row_of(failure, step)
    column = at - text.starts_at(at) - len(step.ids[0])
    if not threads:
        body.append(_vector("got", got, rows, row, column))
    body.append(f"wanted = {plain.code.format(calls.plain(str([ids])))}")
    body.append(_vector("wanted", plain, 1, 0, at - len(ids)))
    body.append("moved = got.double() - wanted.double()")
    body += _chosen(model, yard)
    return _SCRIPT.format(**parts, body=_indented(body))


def plain_script(model: Model, yard: Yardstick, finding: Judgement, ids: Tensor, ends: int) -> str:
    """A script that compares a pass over the first tokens with one over all; no cache.  (1, T)"""
    calls = _calls_of(model, model.caches[0])
    imports, lines = calls.build(yard.dtype)
    form = model.forms.get("plain", Form("{}", 3))
    whole = ids.tolist()
    body = [
        f"ids = {whole}",
        f"got = {form.code.format(calls.plain(f'[ids[0][:{ends}]]'))}[0, {ends - 1}]",
        f"wanted = {form.code.format(calls.plain('ids'))}[0, {ends - 1}]",
        "moved = got.double() - wanted.double()",
        *_chosen(model, yard),
    ]
    parts = _filled(finding, model, imports, lines)
    return _SCRIPT.format(**parts, body=_indented(body))


def padding_script(model: Model, yard: Yardstick, finding: Judgement, padding: Padding) -> str:
    """A script that reads a padded batch through the cache and in one pass."""
    calls = _calls_of(model, model.caches[0])
    imports, lines = calls.build(yard.dtype)
    ids, mask = padding.ids.tolist(), padding.mask.tolist()
    form = Form("{}", 3)
    body = [
        f"ids = {ids}",
        f"mask = {mask}",
        f"got = {form.code.format(calls.padded('ids', 'mask', str(list(padding.lengths))))}",
        f"wanted = {form.code.format(calls.padded('ids', 'mask', 'None'))}",
        "got, wanted = (getattr(x, 'logits', x) for x in (got, wanted))",
        "moved = (got.double() - wanted.double()) * torch.tensor(mask)[..., None]",
        "at = int(moved.abs().amax((0, 2)).argmax())",
        "moved = moved[moved[:, at].abs().amax(-1).argmax(), at]",
    ]
    parts = _filled(finding, model, imports, lines)
    return _SCRIPT.format(**parts, body=_indented(body))


def _filled(
    finding: Judgement, model: Model, imports: Sequence[str], lines: Sequence[str]
) -> dict[str, str]:
    """What all scripts have in common."""
    return {
        "name": model.name,
        "way": finding.way,
        "words": finding.words,
        "imports": "\n".join(["import torch", *imports]),
        "model": "\n".join(lines) + "\n",
    }


def _steps(calls: StepCode, model: Model, program: Program, wrong: int | None) -> list[str]:
    """The lines of a program; what the wrong step returns is `got`."""
    names = dict(zip(sessions(program), _letters(), strict=False))
    form = model.forms.get("read", Form("{}", 3))
    fresh: dict[str, bool] = {}  # whether a session has read nothing yet
    lines: list[str] = []
    for i, step in enumerate(program):
        if isinstance(step, PlainPass):
            lines.append(calls.plain(str([list(row) for row in step.ids])))
            continue
        name = names[step.session]
        if isinstance(step, Start):
            rewound = is_rewound(program, step.session)
            lines += calls.start(name, step.rows, room(program, step.session), rewound)
            fresh[name] = True
        elif isinstance(step, Read):
            ids = torch.tensor(step.ids)
            parts = model.limits.parts(ids, fresh.pop(name, False))
            codes = [calls.read(name, str(part.tolist())) for part in parts]
            if i == wrong and len(codes) > 1:  # of a piece in parts, all logits
                lines.append(f"got = [{', '.join(form.code.format(code) for code in codes)}]")
                shape = "x.reshape(len(x) if x.ndim > 2 else 1, -1, x.shape[-1])"
                lines.append(f"got = torch.cat([{shape} for x in got], 1)")
            elif i == wrong:
                lines.append(f"got = {form.code.format(codes[0])}")
            else:
                lines += codes
        elif isinstance(step, Rewind):
            lines.append(calls.rewind(name, step.n))
        elif isinstance(step, Reorder):
            lines.append(calls.reorder(name, list(step.rows)))
        elif isinstance(step, Keep):
            lines.append(calls.keep(name, list(step.rows)))
        elif isinstance(step, Fork):
            lines.append(calls.fork(name, names[step.into]))
    return lines


def _in_threads(calls: StepCode, model: Model, failure: Failure, wrong: int | None) -> list[str]:
    """The lines of two sessions, each in a function that runs in a thread of its own."""
    lines: list[str] = []
    names = []
    index = 0
    for i, session in enumerate(sessions(failure.program)):
        own = [(at, step) for at, step in enumerate(failure.program) if step.session == session]
        places = [at for at, _ in own]
        inner = places.index(wrong) if wrong in places else None
        body = _steps(calls, model, tuple(step for _, step in own), inner)
        names.append(f"thread_{i}")
        lines.append(f"def thread_{i}():")
        lines.append("    with torch.no_grad():")
        lines += [f"        {line}" for line in body]
        if inner is not None and failure.text is not None:
            index = i
            step = own[inner][1]
            assert isinstance(step, Read)
            column = failure.at - failure.text.starts_at(failure.at) - len(step.ids[0])
            form = model.forms.get("read", Form("{}", 3))
            lines.append(f"        {_vector('got', form, 1, 0, column)}")
            lines.append("        return got")
    lines.append(f"got = by_turns_in_threads({', '.join(names)})[{index}]")
    return lines


def _source_of_threads() -> str:
    """The code that runs two threads in a fixed order, without its docstring."""
    from . import threads

    source = Path(inspect.getfile(threads)).read_text(encoding="utf-8")
    _, _, code = source.partition('"""\n\n')
    # What lies beside a script is the library that is judged.
    return code.replace("os.path.dirname(__file__)", '"<none>"').rstrip() + "\n"


def _row_of(failure: Failure, step: Read) -> int:
    """The row of the wrong text in the step that read its wrong token."""
    assert failure.text is not None
    text = failure.text
    start = text.starts_at(failure.at)
    mine = text.ids[start : failure.at + 1].tolist()
    rows = [r for r, ids in enumerate(step.ids) if list(ids[: len(mine)]) == mine]
    return text.row if text.row in rows or not rows else rows[0]


def _vector(name: str, form: Form, rows: int, row: int, column: int) -> str:
    """The line that takes the logits of one token from `name`."""
    if form.ndim == 3:
        return f"{name} = {name}[{row}, {column}]"
    return f"{name} = {name}.reshape({rows}, -1, {name}.shape[-1])[{row}, {column}]"


def _chosen(model: Model, yard: Yardstick) -> list[str]:
    """The line that leaves out logits of tokens that are never chosen, if there are any."""
    columns = yard.columns
    if columns is None or bool(columns.all()) or len(columns) < model.vocab_size:
        return []
    keep = columns.nonzero()[:, 0].tolist()
    part = f":{len(keep)}" if keep == list(range(len(keep))) else str(keep)
    return [f"moved = moved[{part}]  # the others are never chosen"]


def _letters() -> list[str]:
    """The names of sessions in a script."""
    return [*_NAMES, *(f"{a}{b}" for a in _NAMES for b in _NAMES if f"{a}{b}" not in _WORDS)]


_WORDS = ("as", "if", "in", "is", "or")


def _indented(lines: Sequence[str]) -> str:
    return "\n".join(f"    {line}" for line in "\n".join(lines).splitlines())


def _attribute(given: Any, module: Any) -> str:
    """The attribute in which an adapter holds its module; empty if it is the module."""
    held = getattr(given, "__dict__", {}).items()
    return next((name for name, x in held if x is module), "")


def _made(given: Any) -> tuple[list[str], list[str]]:
    """The import of an object's class and the line that constructs it, if they can be known."""
    if builds := getattr(given, "builds", ""):
        return [], builds.splitlines()
    kind = type(given)
    importable = kind.__module__ not in ("__main__", "builtins", "types")
    if not importable or "<" in kind.__qualname__:
        return [], ["# MODEL: the object that was judged"]
    imports = [f"from {kind.__module__} import {kind.__qualname__.split('.')[0]}"]
    try:
        required = [
            p
            for p in inspect.signature(kind).parameters.values()
            if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
    except ERRORS:
        required = []
    if required:
        names = ", ".join(p.name for p in required)
        return imports, [f"MODEL = {kind.__qualname__}(…)  # construct it as usual, with {names}"]
    return imports, [f"MODEL = {kind.__qualname__}()"]
