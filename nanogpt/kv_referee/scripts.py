"""Bugs as scripts that run without this project: they import torch and what was judged."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .contract import Model
from .errors import ERRORS, first_line
from .programs import (
    Failure,
    Fork,
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

_SCRIPT = '''\
"""{name}: {way}.

In the report: {words}
Below is the shortest way found that still shows it: there, size and tokens may differ.
"""

{imports}


def logits_of(out, rows):
    """(rows, tokens, vocabulary): of an array, by itself, in a tuple, in a dict or on an object."""
    out = out["logits"] if isinstance(out, dict) else getattr(out, "logits", out)
    out = torch.as_tensor(out[0] if isinstance(out, (tuple, list)) else out)
    return out.reshape(rows, -1, out.shape[-1])


{model}

with torch.no_grad():
{body}
'''
_COMPARED = """\
moved = (got.double() - wanted.double())[wanted.isfinite()]
# How far two logits have moved relative to each other; a cache must not move them.
print(float(moved.max() - moved.min()))"""


class StepCode:
    """The code of each step, for an adapter in the variable MODEL."""

    def __init__(self, model: Model, cache: str):
        self.model = model
        self.cache = cache

    def build(self, dtype: torch.dtype | None) -> tuple[list[str], list[str]]:
        """The imports, and the lines that make MODEL in this dtype."""
        given = self.model.given
        imports, lines = _made(given)
        if dtype == torch.float64:
            if callable(getattr(given, "to", None)):
                lines.append("MODEL = MODEL.to(torch.float64) or MODEL")
            elif self.model.module is not None:
                held = getattr(given, "__dict__", {}).items()
                name = next((f".{name}" for name, x in held if x is self.model.module), "")
                lines.append(f"MODEL{name}.double()")
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


def script(model: Model, finding: Judgement, failure: Failure) -> str:
    """A Python script that runs the program and prints how far its wrong logits are off."""
    calls = _calls_of(model, finding.cache or model.caches[0])
    threads = finding.kind is ScenarioKind.THREADS and len(sessions(failure.program)) > 1
    imports = [_source_of_threads()] if threads else []
    # 1. The steps; what the wrong one returns is `got`.
    body = (_in_threads if threads else _steps)(calls, failure.program, failure)
    # 2. The exception, or the right logits.
    if failure.error is not None:
        body.append(f"# {type(failure.error).__name__}: {first_line(failure.error)}")
    if failure.text is not None:
        text, at = failure.text, failure.at
        ids = text.ids[: max(at + 1, model.limits.shortest)].tolist()
        body.append(f"wanted = logits_of({calls.plain(str([ids]))}, 1)[0, {at - len(ids)}]")
        body.append(_COMPARED)
    return _filled(finding, model, calls, imports, body)


def plain_script(model: Model, finding: Judgement, ids: Tensor, ends: int) -> str:
    """A script that compares a pass over the first tokens with one over all; no cache.  (1, T)"""
    calls = _calls_of(model, model.caches[0])
    body = [
        f"ids = {ids.tolist()}",
        f"got = logits_of({calls.plain(f'[ids[0][:{ends}]]')}, 1)[0, {ends - 1}]",
        f"wanted = logits_of({calls.plain('ids')}, 1)[0, {ends - 1}]",
        _COMPARED,
    ]
    return _filled(finding, model, calls, [], body)


def padding_script(
    model: Model, finding: Judgement, ids: Tensor, mask: Tensor, lengths: Sequence[int]
) -> str:
    """A script that reads a padded batch through the cache and in one pass.  (B, T) twice"""
    calls = _calls_of(model, model.caches[0])
    rows = len(ids)
    body = [
        f"ids = {ids.tolist()}",
        f"mask = {mask.tolist()}",
        f"got = logits_of({calls.padded('ids', 'mask', str(list(lengths)))}, {rows})",
        f"wanted = logits_of({calls.padded('ids', 'mask', 'None')}, {rows})",
        "off = ((got - wanted) * torch.tensor(mask)[..., None]).nan_to_num().abs().amax(-1)",
        "row, at = divmod(int(off.argmax()), off.shape[1])",
        "got, wanted = got[row, at], wanted[row, at]",
        _COMPARED,
    ]
    return _filled(finding, model, calls, [], body)


def _calls_of(model: Model, cache: str) -> StepCode:
    """How the steps are written for this model."""
    own = getattr(model.given, "calls", StepCode)
    calls: StepCode = own(model, cache)
    return calls


def _filled(
    finding: Judgement, model: Model, calls: StepCode, imports: list[str], body: Sequence[str]
) -> str:
    """The script with this body."""
    dtype = torch.float64 if model.dtype == torch.float64 else None
    theirs, lines = calls.build(dtype)
    return _SCRIPT.format(
        name=model.name,
        way=finding.way,
        words=finding.words,
        imports="\n".join(["import torch", *theirs, *imports]),
        model="\n".join(lines),
        body="\n".join(f"    {line}" for line in "\n".join(body).splitlines()),
    )


def _steps(calls: StepCode, program: Program, failure: Failure) -> list[str]:
    """The lines of a program; the wrong logits are `got`."""
    names = {name: f"session_{i}" for i, name in enumerate(sessions(failure.program))}
    lines: list[str] = []
    for step in program:
        name = names[step.session]
        if isinstance(step, Start):
            rewound = is_rewound(program, step.session)
            lines += calls.start(name, step.rows, room(program, step.session), rewound)
        elif isinstance(step, Read):
            code = calls.read(name, str([list(row) for row in step.ids]))
            if failure.step is not None and step is failure.program[failure.step]:
                row, column = failure.place
                column -= len(step.ids[0])  # from the end: a model may return the last logits only
                code = f"got = logits_of({code}, {len(step.ids)})[{row}, {column}]"
            lines.append(code)
        elif isinstance(step, Rewind):
            lines.append(calls.rewind(name, step.n))
        elif isinstance(step, Reorder):
            lines.append(calls.reorder(name, list(step.rows)))
        elif isinstance(step, Fork):
            lines.append(calls.fork(name, names[step.into]))
        else:
            lines.append(calls.keep(name, list(step.rows)))
    return lines


def _in_threads(calls: StepCode, program: Program, failure: Failure) -> list[str]:
    """The lines of two sessions, each in a function that runs in a thread of its own."""
    names = sessions(program)
    lines: list[str] = []
    for i, session in enumerate(names):
        body = _steps(calls, tuple(step for step in program if step.session == session), failure)
        if failure.text is not None and failure.text.session == session:
            body.append("return got")
        lines.append(f"def thread_{i}():")
        lines.append("    with torch.no_grad():")
        lines += [f"        {line}" for line in body]
    functions = ", ".join(f"thread_{i}" for i in range(len(names)))
    wrong = 0 if failure.text is None else names.index(failure.text.session)
    lines.append(f"got = by_turns_in_threads({functions})[{wrong}]")
    return lines


def _source_of_threads() -> str:
    """The code that runs two threads in a fixed order, without its docstring."""
    from . import threads

    source = Path(inspect.getfile(threads)).read_text(encoding="utf-8")
    _, _, code = source.partition('"""\n\n')
    # What lies beside a script is the library that is judged.
    return code.replace("os.path.dirname(__file__)", '"<none>"').rstrip() + "\n"


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
