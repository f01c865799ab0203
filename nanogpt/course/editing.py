"""Answers made from text: the solution after edits, as live code among the names of a lesson."""

from __future__ import annotations

import ast
import linecache
from functools import cache, partial
from typing import Any

from .page import Anew, Answer, Blank
from .solutions import lesson_names


def edited(blank: Blank, *edits: str) -> Answer:
    """The solution after these edits, as live code. Raises ValueError for an idle one."""
    return compiled(blank.name, blank.text_of(*edits))


@cache
def known_mistakes(blank: Blank) -> list[tuple[str, Anew]]:
    """(message, wrong answer) of each way to make each mistake of a page."""
    found = []
    for message, edits in blank.mistakes.items():
        ways = edits if isinstance(edits, tuple) else (edits,)
        found += [(message, Anew(partial(edited, blank, *way))) for way in ways]
    return found


def compiled(name: str, source: str) -> Answer:
    """The function or class of that name, defined by `source` among the names of a lesson."""
    scope = lesson_names()
    execute(source, f"<{name} {hash(source)}>", scope)
    answer: Answer = scope[name]
    return answer


def execute(text: str, name: str, scope: dict[str, Any]) -> None:
    """Execute code so that inspect and error messages can find its lines."""
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    exec(compile(text, name, "exec"), scope)


def execute_again(statement: ast.stmt, name: str, scope: dict[str, Any]) -> None:
    """Execute one statement of code that was executed under this name; its lines stay the same."""
    exec(compile(ast.Module([statement], []), name, "exec"), scope)
